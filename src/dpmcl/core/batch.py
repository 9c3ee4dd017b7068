"""A batch: inputs, targets, weights and task ids, where weight 0 marks an absent row."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """n rows of data for one replica (the engine adds a leading replica dimension).

    x: inputs (n, ...). y: targets, int64 (n,) or float (n, outputs). w: weights (n,), at least 0;
    a row of weight 0 is absent, so an empty memory is a batch of weights 0 and not a branch.
    task: int64 (n,), the task that each row came with. row: int64 (n,), the row's number in the
    stream's pool; () in a batch made by hand. notes: what the method kept with rows of its memory
    (`Method.notes`), by name, each (n, ...); empty for other rows.
    """

    x: Tensor
    y: Tensor
    w: Tensor
    task: Tensor
    row: Any = ()
    notes: Mapping[str, Tensor] = {}


def join(first: Batch, second: Batch) -> Batch:
    """The union of two batches, first's rows before second's (b_PN = b_P u b_N, appendix B.4)."""
    x, y, w, task = (torch.cat(pair) for pair in zip(first[:4], second[:4], strict=True))
    numbered = isinstance(first.row, Tensor) and isinstance(second.row, Tensor)
    row = torch.cat([first.row, second.row]) if numbered else ()
    shared = first.notes.keys() & second.notes.keys()
    notes = {name: torch.cat([first.notes[name], second.notes[name]]) for name in sorted(shared)}
    return Batch(x, y, w, task, row, notes)


def weighted_mean(losses: Tensor, w: Tensor) -> Tensor:
    """sum(w l) / sum(w) over rows, and 0 where no row is present.

    losses, w: (n,). This is every cost J of the paper (J_N, J_P, J_PN), by which rows it is given.
    """
    total = w.sum()
    return (losses * w).sum() / torch.where(total > 0, total, torch.ones_like(total))
