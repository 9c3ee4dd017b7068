"""Labels of any plain type, mapped once to class numbers 0 .. C-1."""

import re
from collections.abc import Iterable, Mapping, Set
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dpmcl.exceptions import DataError, reason, shown


class Labels(NamedTuple):
    """y: int64 (rows,), class numbers. classes: the original label of each number, as text.

    Numbers follow the labels' order: false before true, whole numbers by value (as text too, where
    every one is written as Python writes it), strings by their characters' code points.
    """

    y: Tensor
    classes: tuple[str, ...]


def number_labels(labels: Any, what: str) -> Labels:
    """Numbers labels: strings, whole numbers, true/false, in a list, an array or a tensor.

    Elements may be Python's, NumPy's, or tensors of one element. Floats count where all are whole
    (tables with gaps turn numbers into floats). what: names the labels in errors, as in "column
    'kind' of my.csv". Raises DataError for labels that are missing, mixed, or of another type.

    >>> number_labels([7, 3, 7], "labels")
    Labels(y=tensor([1, 0, 1]), classes=('3', '7'))
    """
    array = _array(labels, what)
    values, y = np.unique(array, return_inverse=True)
    names = [str(v) for v in values.tolist()]
    odd = next((name for name in names if not is_unicode(name)), None)
    if odd is not None:
        raise DataError(f"{what} must be Unicode text, got {odd!a:.60}; correct it.")
    classes = in_order(names)
    place = {name: k for k, name in enumerate(classes)}
    number = np.array([place[name] for name in names], dtype=np.int64)
    return Labels(torch.from_numpy(number[y]), tuple(classes))


def in_order(names: Iterable[str], folders: bool = False) -> list[str]:
    """Return class names in order: by value where all are plainly written whole numbers.

    A text file does not say which numbers are text. Others are in order of their code points,
    folder by folder where they are names of folders ("a/y" before "a b/x").

    >>> in_order(["9", "10"]), in_order(["9", "010", "10"])
    (['9', '10'], ['010', '10', '9'])
    """
    names = list(names)
    numbers = all(re.fullmatch(r"-?[1-9][0-9]{0,999}|0", name) for name in names)
    if numbers:
        return sorted(names, key=int)
    return sorted(names, key=lambda name: name.split("/") if folders else name)


def is_unicode(text: str) -> bool:
    """Return False for half of a pair of UTF-16, and for Python's stand-ins of other bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def plain_array(tensor: Tensor, what: str) -> np.ndarray:
    """A tensor's values; bfloat16, which NumPy lacks, as float32.

    Raises DataError for tensors without values of their own: sparse, quantised, or on "meta".
    """
    try:
        if tensor.is_nested:
            raise TypeError
        tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    except (TypeError, RuntimeError, NotImplementedError):
        kind = str(tensor.layout if tensor.layout != torch.strided else tensor.dtype)
        where = " on device 'meta'" if tensor.is_meta else ""
        raise DataError(
            f"{what} must be a dense tensor of numbers, got one of {kind}{where}; convert it, as "
            "by to_dense() or dequantize()."
        ) from None


def _array(labels: Any, what: str) -> np.ndarray:
    """A one-dimensional array of bool, int64 or str."""
    if isinstance(labels, Tensor):
        labels = plain_array(labels, what)
    labels = unmasked(labels, what)
    if isinstance(labels, np.ndarray) and labels.dtype.kind not in "OS":
        return _plain(_flat(labels, what), what)
    values = labels
    if isinstance(labels, np.ndarray):
        values = (_flat(labels, what) if labels.ndim else labels).tolist()
    # A set has no order, and a mapping's keys are no rows.
    if isinstance(values, str | bytes | Set | Mapping) or not isinstance(values, Iterable):
        raise DataError(f"{what} must be a list of labels, got {shown(labels)}; give one a row.")
    try:
        values = list(values)
    except Exception as error:  # a user's iterator, or a tensor's of no dimension
        raise DataError(
            f"{what} must be a list of labels, and cannot be read ({reason(error)}); give a list."
        ) from None
    return _of_objects(values, what)


def unmasked(values: Any, what: str) -> Any:
    """Values without NumPy's mask, where they have one, and anything else as it is.

    Raises DataError for a masked value, which NumPy and PyTorch would take for a number.
    """
    if not isinstance(values, np.ma.MaskedArray | list | tuple):
        return values
    rows = [values] if getattr(values, "ndim", 1) == 0 else values
    row = next((row for row, value in enumerate(rows) if np.ma.is_masked(value)), None)
    if row is not None:
        raise DataError(
            f"{what} must have all its values, and row {row} has a masked one; fill it or drop the "
            "row."
        )
    return np.asarray(values.data) if isinstance(values, np.ma.MaskedArray) else values


def _flat(array: np.ndarray, what: str) -> np.ndarray:
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        flat = array.ndim and array.size == max(array.shape)
        out = "flatten them, as by ravel()" if flat else "for one-hot rows give their argmax"
        raise DataError(f"{what} must be one label a row, got the shape {array.shape}; {out}.")
    return array


def _plain(array: np.ndarray, what: str) -> np.ndarray:
    if array.dtype.kind in "bU":
        return array
    if array.dtype.kind in "iu":
        if array.dtype == np.uint64 and len(array) and int(array.max()) > np.iinfo(np.int64).max:
            raise DataError(
                f"{what} must be below 2^63, got {int(array.max())}; give them as strings."
            )
        return array.astype(np.int64)
    if array.dtype.kind == "f":
        odd = np.flatnonzero(~np.isfinite(array) | (array != np.floor(array)))
        if len(odd):
            raise _no_label(array[odd[0]].item(), int(odd[0]), what)
        digits = min(np.finfo(array.dtype).nmant + 1, 53)
        if len(array) and float(np.abs(array).max()) > 2.0**digits:
            raise _too_large(what, digits, str(array.dtype))
        return array.astype(np.int64)
    raise DataError(
        f"{what} must be strings, whole numbers or true/false, got values of type {array.dtype}; "
        "convert them."
    )


def _of_objects(values: list[Any], what: str) -> np.ndarray:
    out: list[Any] = []
    first = ""
    for row, given in enumerate(values):
        value = _python(given)
        family = _family(value)
        if isinstance(value, float) and abs(value) > 2.0**53 and family is not None:
            raise _too_large(what, 53, f"float in row {row}")
        if family is None:
            raise _no_label(value, row, what)
        first = first or family
        if family != first:
            raise DataError(
                f"{what} must be of one type, got {first} ({out[0]!r}) and {family} ({value!r}, "
                f"row {row}); convert them to one."
            )
        out.append(int(value) if family == "whole numbers" else value)
    try:
        # Strings stay Python's: NumPy's own lose a NUL at their end.
        kind = {"true/false": np.bool_, "strings": np.object_}.get(first, np.int64)
        return np.array(out, dtype=kind)
    except OverflowError:
        raise DataError(f"{what} must be below 2^63 in size; give them as strings.") from None


def _python(value: Any) -> Any:
    """A NumPy scalar, or a tensor or array of one element, as a plain value."""
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return value
    if isinstance(value, Tensor):
        value = plain_array(value, "A label")
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(())[()]
    return value.item() if isinstance(value, np.generic) else value


def _family(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true/false"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "whole numbers"
    return "strings" if isinstance(value, str) else None


def _too_large(what: str, digits: int, kind: str) -> DataError:
    return DataError(
        f"{what} must be below 2^{digits} in size where they are {kind}, which cannot tell larger "
        "ones apart; give them as whole numbers or strings."
    )


def _no_label(value: Any, row: int, what: str) -> DataError:
    missing = value is None or (isinstance(value, float) and value != value)
    missing = missing or type(value).__name__ in ("NAType", "NaTType", "MaskedConstant")
    got = "none" if missing else shown(value)
    rest = "fill it or drop the row." if missing else (
        "convert them, or, where they are targets of regression, set kind = 'regression'."
    )  # fmt: skip
    return DataError(
        f"{what} must be strings, whole numbers or true/false, got {got} at row {row}; {rest}"
    )
