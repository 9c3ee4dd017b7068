"""The rule by which a network and a cost are found to make a row's result depend on other rows."""

from collections.abc import Iterator

import torch
from torch import Tensor

from dpmcl.core.tree import equal

ROWS = 6
"""Rows of the batch whose results are compared; some data have few distinct rows."""

# Tolerance, relative to the largest value of a column. Rounding in float64 is far below it, but
# some networks compute in float32 inside.
_NEAR = 1e-4


def batches_to_compare() -> Iterator[tuple[str, Tensor]]:
    """Yield batches as the words for messages and row numbers; rows from `ROWS` on are others."""
    rows, half = torch.arange(ROWS), ROWS // 2
    yield "in a second pass", rows
    yield "in another order", rows.roll(1)
    yield "beside other rows", torch.cat([rows[:half], rows[half:] + ROWS])
    yield "beside other rows", torch.cat([rows[:half] + ROWS, rows[half:]])
    yield "alone", rows[-1:]
    yield f"in a batch of {2 * ROWS}", rows.repeat(2)


def rows_agree(expected: Tensor, results: Tensor, index: Tensor) -> bool:
    """Return True if the results of a batch are those of the first `ROWS` rows.

    Args:
        expected: Results of the first `ROWS` rows, (ROWS, ...).
        results: Results of the batch, (n, ...).
        index: Row number of each row of the batch, (n,); others than the first `ROWS` are not
            compared.
    """
    compared = index < ROWS
    right = results.shape[:1] == index.shape
    return right and is_near(results[compared], expected[index[compared]], expected)


def is_near(a: Tensor, b: Tensor, scale: Tensor, tolerance: float = _NEAR) -> bool:
    """Return True if results differ by rounding alone, relative to the largest value of a column.

    Args:
        a, b: Results (n, ...).
        scale: Rows whose columns give these largest values.
        tolerance: Largest difference, relative to these values.
    """
    if a.shape != b.shape or not a.numel():
        return a.shape == b.shape
    size = scale.abs().nan_to_num(0.0, 0.0, 0.0)
    near = (a - b).abs() <= tolerance * (size.amax(0) + 0.01 * size.amax())
    finite = a.isfinite() & b.isfinite()
    return bool((near | ~finite).all()) and equal(a.isfinite(), b.isfinite())
