"""How inputs move from a task to the next: dx, known from the dynamics or from means."""

from typing import NamedTuple

import torch
from torch import Tensor

from dpmcl.core.batch import Batch
from dpmcl.data.splits import Splits
from dpmcl.data.stream import Stream

ROWS = 512
"""Training rows of a task whose mean is taken, at most."""


class Motion(NamedTuple):
    """Where rows go when the next task comes.

    Args:
        following: The pool row to which each moves, int64 (rows of the pool,), or None for a stream
            that does not know its dynamics.
        x: By how much the mean of the training rows' inputs moved from the last task to this one,
            (replicas, ...); 0 at the first task.
        y: The same of their targets, (replicas, outputs); 0 for classes.
    """

    following: Tensor | None
    x: Tensor
    y: Tensor


def motion_of(stream: Stream, splits: Splits, task: int, dtype: torch.dtype) -> Motion:
    """Return the motion at a task, for every replica.

    The dynamics say where rows go next; means can only say where they came from.

    Args:
        stream: Tasks over a pool of rows.
        splits: Rows of each replica.
        task: The task; means are over 512 of its training rows at most.
        dtype: Type of the means.
    """
    shifts = []
    for replica in range(len(splits.train.offset)):
        now = arrived(stream, splits, task, replica=replica, dtype=dtype)
        if task == 0:
            x, y = torch.zeros_like(now.x[0]), torch.zeros_like(now.y[0])
        else:
            before = arrived(stream, splits, task - 1, replica=replica, dtype=dtype)
            x, y = now.x.mean(0) - before.x.mean(0), torch.zeros_like(now.y[0])
            if stream.kind == "regression":
                y = now.y.mean(0) - before.y.mean(0)
        shifts.append((x, y))
    x_all, y_all = zip(*shifts, strict=True)
    return Motion(stream.following, torch.stack(x_all), torch.stack(y_all))


def arrived(
    stream: Stream, splits: Splits, task: int, *, replica: int, dtype: torch.dtype
) -> Batch:
    """Return the first training rows of a task: 512 at most.

    Args:
        stream: Where the rows are.
        splits: Rows of each replica.
        task: The task with which they arrive.
        replica: The replica, in whose order they are.
        dtype: Type of inputs and weights.
    """
    offset = splits.train.offset[replica]
    low, high = int(offset[task]), int(offset[task + 1])
    high = min(high, low + ROWS)
    row, owner = splits.train.row[replica, low:high], splits.train.task[replica, low:high]
    return stream.batch(row, torch.ones_like(row, dtype=torch.bool), owner, dtype, replica=replica)
