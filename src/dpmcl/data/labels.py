"""Labels of any plain type, mapped to class numbers 0 .. C-1."""

import logging
import re
from collections.abc import Iterable, Mapping, Set
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpmcl.data.plain_arrays import plain_array, unwrapped
from dpmcl.data.read_errors import reading
from dpmcl.exceptions import DataError, shown

_LOG = logging.getLogger("dpmcl")

_NUMBER = re.compile(r"(?!-0$)-?(0|[1-9][0-9]{0,999})(\.[0-9]{1,999})?(e[+-]?[0-9]{1,3})?")
"""A number as Python writes it, unlike "007", "+9" and "-0"."""


class Labels(NamedTuple):
    """Class numbers, and the label of each number.

    Numbers follow the order of the labels: false before true, numbers by value (also as text, if
    all are written as Python writes them), strings by code points.

    Attributes:
        y: Class numbers, int64 (rows,).
        classes: Original label of each number, as text.
    """

    y: Tensor
    classes: tuple[str, ...]


def number_labels(labels: Any, what: str) -> Labels:
    """Return labels as class numbers, in the order of the labels.

    Args:
        labels: Strings, whole numbers or true/false, in a list, or an array or tensor (rows,) or
            (rows, 1). Elements may be Python's, NumPy's, or tensors of one element. Floats are
            accepted if all are whole, because missing cells in a table turn its integers into
            floats.
        what: Name of the labels in errors, such as "column 'kind' of my.csv".

    Returns:
        The class numbers and the names of the classes.

    Raises:
        DataError: Labels are missing, mixed, or of another type.

    >>> number_labels([7, 3, 7], "labels")
    Labels(y=tensor([1, 0, 1]), classes=('3', '7'))
    """
    labels = unwrapped(labels, what)
    digits = 53
    if isinstance(labels, np.ndarray) and (labels.dtype.kind != "O" or labels.ndim):
        if labels.dtype.kind == "f":
            digits = min(np.finfo(labels.dtype).nmant + 1, digits)
        labels = _flat(labels, what)
    names = _names(_as_list(labels, what), what, digits)
    classes = sorted_names(set(names))
    if missing := {"nan", "NaN", "<NA>", "NaT"}.intersection(classes):
        _LOG.warning(
            f"{what}: the class {missing.pop()!r} is how missing values are written as text; drop "
            "its rows if their labels are missing."
        )
    order = {name: k for k, name in enumerate(classes)}
    y = torch.tensor([order[name] for name in names], dtype=torch.int64)
    return Labels(y, tuple(classes))


def family_of(labels: Any) -> str:
    """Return the type of the first label: "strings", "whole numbers" or "true/false", else "".

    Args:
        labels: Labels that `number_labels` accepts.
    """
    return next((_family(_python_value(label)) or "" for label in labels), "")


def sorted_names(names: Iterable[str], folders: bool = False) -> list[str]:
    """Return class names in order: by value if all are numbers, else by code points.

    Numbers are ordered by value even as text, because text files do not say which is meant.

    Args:
        names: Class names.
        folders: Whether the names are paths of folders, to compare folder by folder ("a/y" before
            "a b/x").

    >>> sorted_names(["9.5", "10"]), sorted_names(["9", "010", "10"])
    (['9.5', '10'], ['010', '10', '9'])
    """
    names = sorted(names)  # so that 1 is before 1.0
    if all(_NUMBER.fullmatch(name) for name in names):
        return sorted(names, key=Decimal)
    return sorted(names, key=lambda name: name.split("/") if folders else name)


def is_whole(name: str) -> bool:
    """Return True for a whole number that is written as Python writes it, unlike "007".

    Args:
        name: Name of a class.
    """
    return re.fullmatch(r"-?[1-9][0-9]{0,999}|0", name) is not None


def _flat(array: NDArray[Any], what: str) -> NDArray[Any]:
    """Return an array (rows, 1) as (rows,). Raises DataError for other shapes and invalid types."""
    if array.dtype.kind not in "biufUSO":
        raise DataError(
            f"{what} must be strings, whole numbers or true/false, got values of type "
            f"{array.dtype}; convert them."
        )
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(
            f"{what} must be one label a row, got the shape {array.shape}; flatten them, as by "
            "ravel(), or give the argmax of one-hot rows."
        )
    return array


def _as_list(labels: Any, what: str) -> list[Any]:
    """Return labels as a list. Raises DataError for a set, a mapping, or a single label."""
    if isinstance(labels, str | bytes | Set | Mapping) or not isinstance(labels, Iterable):
        raise DataError(f"{what} must be a list of labels, got {shown(labels)}; give one a row.")
    # The user's iterator may raise anything, and so may NumPy for invalid code points.
    with reading(f"{what} must be a list of labels, and", "give a list", anything=True):
        return list(labels.tolist() if isinstance(labels, np.ndarray) and labels.ndim else labels)


def _python_value(value: Any) -> Any:
    """Return bytes as text, and a NumPy scalar, or a tensor or array of one element, as its value.

    Bytes that are not UTF-8 stay bytes, which are not valid labels.
    """
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


def _names(values: list[Any], what: str, digits: int) -> list[str]:
    """Return labels as text. digits: Number of significant bits of the labels' float type."""
    names: list[str] = []
    first = ""
    for row, value in enumerate(map(_python_value, values)):
        family = _family(value)
        if family is None:
            raise _label_error(value, row, what)
        first = first or family
        if family != first:
            raise DataError(
                f"{what} must be of one type, got {first} ({_python_value(values[0])!r}) and "
                f"{family} ({value!r}, row {row}); convert them to one."
            )
        if family == "whole numbers":
            bits = digits if isinstance(value, float) else 63
            if abs(value) > 2**bits:
                raise DataError(
                    f"{what} must be at most 2^{bits} in size as {type(value).__name__}, got "
                    f"{shown(value)} at row {row}; give them as strings."
                )
            value = int(value)
        elif family == "strings" and value.encode("utf-8", "ignore").decode() != value:
            raise DataError(f"{what} must be Unicode text, got {value!a:.60}; correct it.")
        names.append(str(value))
    return names


def _family(value: Any) -> str | None:
    """Return the type of a label, as `family_of` names it; None if it is not a label."""
    if isinstance(value, bool):
        return "true/false"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "whole numbers"
    return "strings" if isinstance(value, str) else None


def _label_error(value: Any, row: int, what: str) -> DataError:
    """Return the error for a missing label, or for a value that is not a label."""
    missing = value is None or (isinstance(value, float) and value != value)
    missing = missing or type(value).__name__ in ("NAType", "NaTType", "MaskedConstant")
    got = "none" if missing else shown(value)
    way_out = "fill it or drop the row" if missing else (
        "convert them to text, or, where they are targets of regression, set kind = 'regression'"
    )  # fmt: skip
    return DataError(
        f"{what} must be strings, whole numbers or true/false, got {got} at row {row}; {way_out}."
    )
