"""Choice of the float type that keeps the digits of numbers."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmcl.exceptions import DataError

_SHARE_OF_A_GAP = 0.01


def keeps_digits(values: NDArray[Any], dtype: Any) -> bool:
    """Return True if rounding to a float type keeps the significant digits of numbers.

    Integers must stay exact. Other numbers must stay distinct, and the typical rounding error must
    be at most a hundredth of the typical gap between neighbours. (The column's standard deviation
    is no measure, because that of the first task may be far smaller.) For float64, integers that it
    rounds, beyond 2^53, are treated like other numbers.

    Args:
        values: Finite floats or integers, (rows,).
        dtype: float32 or float64.

    >>> times = 1.7e9 + np.arange(9)
    >>> keeps_digits(times, np.float32), keeps_digits(times, np.float64)
    (False, True)
    """
    if values.dtype.kind in "iu" and values.dtype != np.uint64:
        values = values.astype(np.int64)
    distinct = np.unique(values)
    rounded = distinct.astype(dtype)
    if len(distinct) < 2 or _unchanged(rounded, distinct).all():
        return True
    if distinct.dtype.kind in "iu" and dtype == np.float32:
        return False
    # Differences of int64 may overflow; as uint64, they are right.
    gaps = np.diff(distinct.view(np.uint64) if distinct.dtype.kind == "i" else distinct)
    with np.errstate(over="ignore"):
        error = np.median(np.spacing(np.abs(rounded))) / 2
    return bool(
        len(np.unique(rounded)) == len(distinct) and error <= _SHARE_OF_A_GAP * np.median(gaps)
    )


def float_type(values: NDArray[Any], what: str) -> np.dtype[Any]:
    """Return float32 if it holds integers exactly, else float64.

    Args:
        values: Integers (rows, ...).
        what: Name of the values in errors.

    Raises:
        DataError: float64 does not hold them exactly either.
    """
    if not values.size or max(-int(values.min()), int(values.max())) <= 2**24:
        return np.dtype(np.float32)
    for dtype in (np.float32, np.float64):
        exact = _unchanged(values.astype(dtype), values)
        if exact.all():
            return np.dtype(dtype)
    index = np.argwhere(~exact)[0]
    raise DataError(
        f"{what} must be whole numbers that float64 holds exactly, got {values[tuple(index)]} at "
        f"row {index[0]}; subtract an offset from them, or give them in a larger unit."
    )


def _unchanged(rounded: NDArray[Any], values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask of the values that rounding did not change."""
    # Cast back first, because a comparison with floats would round the integers.
    with np.errstate(invalid="ignore"):
        equal: NDArray[np.bool_] = rounded.astype(values.dtype) == values
    if values.dtype.kind in "iu" and values.dtype.itemsize == 8:
        equal &= np.abs(rounded) < 2.0**63  # casting larger floats to int64 is undefined
    return equal
