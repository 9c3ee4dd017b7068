"""A batch: inputs, targets, weights and task numbers; a row of weight 0 is absent."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """n rows of data for one replica; the engine adds a leading replica dimension.

    Attributes:
        x: Inputs (n, ...).
        y: Targets, int64 (n,) or float (n, outputs).
        w: Weights (n,), at least 0. A row of weight 0 is absent; so an empty memory gives a batch
            of rows of weight 0, and methods need no branch for it.
        task: Number of the task that each row belongs to, int64 (n,).
        row: Number of each row in the stream's pool, int64 (n,); () in a batch made by hand.
        notes: Tensors that the method keeps with the rows of its memory (`Method.notes`), by name,
            each (n, ...); empty for other rows.
    """

    x: Tensor
    y: Tensor
    w: Tensor
    task: Tensor
    row: Any = ()
    notes: Mapping[str, Tensor] = {}


def join(first: Batch, second: Batch) -> Batch:
    """Return the union of two batches (b_PN = b_P u b_N, appendix B.4).

    Args:
        first, second: Batches of the same shapes and types, number of rows aside; the rows of
            `first` come first.
    """
    x, y, w, task = (torch.cat(pair) for pair in zip(first[:4], second[:4], strict=True))
    numbered = isinstance(first.row, Tensor) and isinstance(second.row, Tensor)
    row = torch.cat([first.row, second.row]) if numbered else ()
    shared = first.notes.keys() & second.notes.keys()
    notes = {name: torch.cat([first.notes[name], second.notes[name]]) for name in sorted(shared)}
    return Batch(x, y, w, task, row, notes)


def weighted_mean(losses: Tensor, w: Tensor) -> Tensor:
    """Return sum(w l) / sum(w) over rows, or 0 if no row is present.

    Every cost of the paper is this mean; J_N, J_P and J_PN differ in their rows.

    Args:
        losses: Losses of the rows (n,).
        w: Weights of the rows (n,).
    """
    total = w.sum()
    return (losses * w).sum() / torch.where(total > 0, total, torch.ones_like(total))


class Costs(NamedTuple):
    """Scalar costs: J_N on b_N, J_P on b_P, J_PN on both; J_P is 0 during the first task."""

    J_N: Tensor
    J_P: Tensor
    J_PN: Tensor


def costs_of(losses: Tensor, b_N: Batch, b_P: Batch) -> Costs:
    """Return the three costs from the losses of the rows of b_P u b_N, as `join` orders them.

    Args:
        losses: Loss of each row (n,), those of b_P first.
        b_N: Rows of the new task.
        b_P: Rows of earlier tasks.
    """
    past = len(b_P.w)
    return Costs(
        weighted_mean(losses[past:], b_N.w),
        weighted_mean(losses[:past], b_P.w),
        weighted_mean(losses, torch.cat([b_P.w, b_N.w])),
    )
