"""Choose the type of floats that keeps the digits of numbers."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmcl.exceptions import DataError

_SHARE_OF_A_GAP = 0.01


def keeps(values: NDArray[Any], dtype: Any) -> bool:
    """Return True if rounding to a type of floats loses nothing that matters.

    Whole numbers must stay what they are. Other numbers must stay different, and must typically
    move by less than a hundredth of the gap to the next one. (The deviation is no measure: that of
    a first task may be far smaller than that of the column.) Whole numbers beyond 2^53, which
    float64 rounds, count as other numbers there.

    Args:
        values: (rows,), finite floats or whole numbers.
        dtype: float32 or float64.

    >>> times = 1.7e9 + np.arange(9)
    >>> keeps(times, np.float32), keeps(times, np.float64)
    (False, True)
    """
    if values.dtype.kind in "iu" and values.dtype != np.uint64:
        values = values.astype(np.int64)
    distinct = np.unique(values)
    rounded = distinct.astype(dtype)
    if len(distinct) < 2 or _same(rounded, distinct).all():
        return True
    if distinct.dtype.kind in "iu" and dtype == np.float32:
        return False
    # The difference of whole numbers may be beyond int64, and is right as uint64.
    gaps = np.diff(distinct.view(np.uint64) if distinct.dtype.kind == "i" else distinct)
    with np.errstate(over="ignore"):
        moved = np.median(np.spacing(np.abs(rounded))) / 2
    return bool(
        len(np.unique(rounded)) == len(distinct) and moved <= _SHARE_OF_A_GAP * np.median(gaps)
    )


def float_type(values: NDArray[Any], what: str) -> np.dtype[Any]:
    """Return float32 if it holds whole numbers exactly, else float64.

    Args:
        values: (rows, ...), whole numbers.
        what: Names the values in errors.

    Raises:
        DataError: float64 does not hold them exactly either.
    """
    if not values.size or max(-int(values.min()), int(values.max())) <= 2**24:
        return np.dtype(np.float32)
    for dtype in (np.float32, np.float64):
        exact = _same(values.astype(dtype), values)
        if exact.all():
            return np.dtype(dtype)
    index = np.argwhere(~exact)[0]
    raise DataError(
        f"{what} must be whole numbers that float64 holds exactly, got {values[tuple(index)]} at "
        f"row {index[0]}; subtract an offset from them, or give them in a larger unit."
    )


def _same(rounded: NDArray[Any], values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask of what rounding left as it was; comparing alone would round whole numbers."""
    with np.errstate(invalid="ignore"):
        equal: NDArray[np.bool_] = rounded.astype(values.dtype) == values
    if values.dtype.kind in "iu" and values.dtype.itemsize == 8:
        equal &= np.abs(rounded) < 2.0**63  # beyond, the way back to int64 is undefined
    return equal
