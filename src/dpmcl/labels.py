"""Labels of any plain type, mapped once to class numbers 0 .. C-1."""

from collections.abc import Iterable, Mapping, Set
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dpmcl.exceptions import DataError


class Labels(NamedTuple):
    """y: int64 (rows,), class numbers. classes: the original label of each number, as text.

    Numbers follow the labels' order: false before true, whole numbers by value, strings by their
    characters' code points.
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
    return Labels(torch.from_numpy(y.astype(np.int64)), tuple(str(v) for v in values.tolist()))


def _array(labels: Any, what: str) -> np.ndarray:
    """A one-dimensional array of bool, int64 or str."""
    if isinstance(labels, Tensor):
        labels = _numpy(labels)
    if isinstance(labels, np.ndarray) and labels.dtype.kind not in "OS":
        return _plain(_flat(labels, what), what)
    values = labels
    if isinstance(labels, np.ndarray):
        values = (_flat(labels, what) if labels.ndim else labels).tolist()
    # A set has no order, and a mapping's keys are no rows.
    if isinstance(values, str | bytes | Set | Mapping) or not isinstance(values, Iterable):
        raise DataError(f"{what} must be a list of labels, got {labels!r:.60}; give one a row.")
    return _of_objects(list(values), what)


def _flat(array: np.ndarray, what: str) -> np.ndarray:
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(
            f"{what} must be one label a row, got the shape {array.shape}; for one-hot rows give "
            "their argmax."
        )
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
        if len(array) and float(np.abs(array).max()) >= 2.0**63:
            raise DataError(f"{what} must be below 2^63 in size; give them as strings.")
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
        value = _numpy(value)
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(())[()]
    return value.item() if isinstance(value, np.generic) else value


def _numpy(tensor: Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _family(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true/false"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "whole numbers"
    return "strings" if isinstance(value, str) else None


def _no_label(value: Any, row: int, what: str) -> DataError:
    missing = value is None or (isinstance(value, float) and value != value)
    got = "none" if missing else f"{' '.join(repr(value).split()):.60}"
    rest = "fill it or drop the row." if missing else (
        "for regression set kind = 'regression', else convert them."
    )  # fmt: skip
    return DataError(
        f"{what} must be strings, whole numbers or true/false, got {got} at row {row}; {rest}"
    )
