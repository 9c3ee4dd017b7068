"""The rows that a learner holds: those of its memories, and while it learns those of the chunk.

A run's memories hold row numbers of a pool. A learner's pool is made anew for each chunk: the rows
that the memories hold, then the chunk's. Afterwards what no memory holds any more is dropped.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from dpmcl.data.splits import Rows, Splits
from dpmcl.data.stream import Stream
from dpmcl.training.last_state import Held


class Examples(NamedTuple):
    """Rows of a chunk that go to one split.

    Attributes:
        x: Inputs (rows, ...).
        y: Targets, int64 (rows,) or floats (rows, outputs).
    """

    x: Tensor
    y: Tensor


class Group(NamedTuple):
    """Rows held out of one chunk, or of several that were merged.

    Attributes:
        first, last: Numbers of its chunks, from 0.
        then: Error on its rows just after they came.
        x: Inputs (rows, ...).
        y: Targets.
        broken: Conditions of Theorem 1 that broke meanwhile; None if they were not watched.
    """

    first: int
    last: int
    then: float
    x: Tensor
    y: Tensor
    broken: tuple[str, ...] | None = None


def joined(
    like: Stream, held: Held | None, chunk: Mapping[str, Examples], *, number: int, replicas: int
) -> tuple[Stream, Splits]:
    """Return a stream of the rows held and those of a chunk, and its splits.

    The first chunk is its only task; later ones have a task before them, the rows held.

    Args:
        like: A stream with the kind, the classes and the scale; its rows are replaced.
        held: What the memories hold; None before the first chunk.
        chunk: The new rows, by split: "train", and "validation" for methods that need it.
        number: Of the chunk, from 0.
        replicas: How many there are.
    """
    parts = list(chunk.values())
    device = parts[0].x.device
    new = torch.arange(sum(len(part.x) for part in parts), device=device)
    task = torch.full_like(new, number)
    x, y = torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts])
    if held is not None:
        new = new + len(held.x)
        x, y = torch.cat([held.x, x]), torch.cat([held.y, y])
        task = torch.cat([held.task, task])
    came = dict(zip(chunk, new.split([len(part.x) for part in parts]), strict=True))
    rows = {
        name: _rows(_slots(held, name, replicas), row, task, replicas) for name, row in came.items()
    }
    nobody = new[:0].expand(replicas, 0)
    absent = Rows(nobody, nobody, torch.zeros_like(rows["train"].offset))
    tasks = ("the rows held",) * (held is not None) + (f"chunk {number}",)
    train = rows["train"]
    stream = replace(like, x=x, y=y, row=train.row, task=train.task, tasks=tasks)
    return stream, Splits(train, rows.get("validation", absent), absent)


def _slots(held: Held | None, name: str, replicas: int) -> Tensor | None:
    """Return the row in each slot of a memory; no slots where it was left behind."""
    if held is None:
        return None
    nobody = torch.zeros(replicas, 0, dtype=torch.int64, device=held.x.device)
    return held.row.get(name, nobody)


def _rows(held: Tensor | None, new: Tensor, task: Tensor, replicas: int) -> Rows:
    """Return a split's rows: a slot's for each position of the memory, then the chunk's."""
    row, counts = new.expand(replicas, -1), [len(new)]
    if held is not None:
        row, counts = torch.cat([held, row], dim=1), [held.shape[1], len(new)]
    offset = torch.tensor([0, *counts], device=row.device).cumsum(0).expand(replicas, -1)
    return Rows(row, task[row], offset)
