"""The rows that a learner stores: those of its memories and, during training, those of the chunk.

A memory holds row numbers of a pool. The pool of a learner is rebuilt for each chunk: the rows that
the memories hold, followed by the rows of the chunk. After training, rows that no memory holds are
dropped.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from dpmcl.data.splits import Rows, Splits
from dpmcl.data.stream import Stream
from dpmcl.training.last_state import HeldRows


class Examples(NamedTuple):
    """Rows of one split of a chunk.

    Attributes:
        x: Inputs (rows, ...).
        y: Targets, int64 (rows,) or floats (rows, outputs).
    """

    x: Tensor
    y: Tensor


class Group(NamedTuple):
    """Rows held out of one chunk, or of several consecutive chunks that were merged.

    Attributes:
        first, last: Numbers of the first and the last chunk, from 0.
        then: Error on each row just after its chunk was learned, float64 (rows,), on the CPU.
        x: Inputs (rows, ...).
        y: Targets, as for `Examples`.
        broken: Conditions of Theorem 1 that were broken during training on the chunks; None if
            they were not checked.
    """

    first: int
    last: int
    then: Tensor
    x: Tensor
    y: Tensor
    broken: tuple[str, ...] | None = None


def chunk_stream(
    like: Stream,
    held: HeldRows | None,
    chunk: Mapping[str, Examples],
    *,
    number: int,
    replicas: int,
) -> tuple[Stream, Splits]:
    """Return a stream of the stored rows and the rows of a chunk, and its splits.

    The first chunk is the only task of its stream. Any later chunk is the second task; the first
    task contains the stored rows.

    Args:
        like: A stream with the kind, the classes and the scale; its rows are replaced.
        held: The rows that the memories hold; None before the first chunk.
        chunk: Rows of the chunk by split: "train", and "validation" if the method needs it.
        number: Number of the chunk, from 0.
        replicas: Number of replicas.
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
    added = dict(zip(chunk, new.split([len(part.x) for part in parts]), strict=True))
    no_rows = new[:0].expand(replicas, 0)
    rows = {}
    for name, row in added.items():
        # A learner that was saved without its memory has no slots.
        slots = None if held is None else held.row.get(name, no_rows)
        rows[name] = _split_rows(slots, row, task, replicas)
    absent = Rows(no_rows, no_rows, torch.zeros_like(rows["train"].offset))
    tasks = ("the rows held",) * (held is not None) + (f"chunk {number}",)
    train = rows["train"]
    stream = replace(like, x=x, y=y, row=train.row, task=train.task, tasks=tasks)
    return stream, Splits(train, rows.get("validation", absent), absent)


def _split_rows(held: Tensor | None, new: Tensor, task: Tensor, replicas: int) -> Rows:
    """Return the rows of a split: the row in each slot of the memory, then those of the chunk."""
    row, counts = new.expand(replicas, -1), [len(new)]
    if held is not None:
        row, counts = torch.cat([held, row], dim=1), [held.shape[1], len(new)]
    offset = torch.tensor([0, *counts], device=row.device).cumsum(0).expand(replicas, -1)
    return Rows(row, task[row], offset)
