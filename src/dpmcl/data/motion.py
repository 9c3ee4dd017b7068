"""Motion dx of the inputs from one task to the next, from the dynamics or from means."""

from typing import NamedTuple

import torch
from torch import Tensor

from dpmcl.core.batch import Batch
from dpmcl.data.splits import Splits
from dpmcl.data.stream import Stream

ROWS = 512
"""Largest number of training rows of a task over which means are taken."""


class Motion(NamedTuple):
    """Motion of rows between tasks.

    Args:
        following: Pool row to which each row moves at the next task, int64 (rows of the pool,);
            None if the stream does not know its dynamics.
        x: Change of the mean input of the training rows from the previous task to this one,
            (replicas, ...); 0 at the first task.
        y: Change of their mean target, (replicas, outputs); 0 for classification.
    """

    following: Tensor | None
    x: Tensor
    y: Tensor


def motion_of(stream: Stream, splits: Splits, task: int, dtype: torch.dtype) -> Motion:
    """Return the motion of rows at a task, for every replica.

    Dynamics give the motion to the next task; means only give that from the previous one.

    Args:
        stream: Tasks over a pool of rows.
        splits: Rows of each replica.
        task: Number of the task.
        dtype: Type of the means.
    """
    shifts = []
    for replica in range(len(splits.train.offset)):
        now, before = (  # the same at the first task
            arriving_rows(stream, splits, number, replica=replica, dtype=dtype)
            for number in (task, max(task - 1, 0))
        )
        y = torch.zeros_like(now.y[0])
        if stream.kind == "regression":
            y = now.y.mean(0) - before.y.mean(0)
        shifts.append((now.x.mean(0) - before.x.mean(0), y))
    x_all, y_all = zip(*shifts, strict=True)
    return Motion(stream.following, torch.stack(x_all), torch.stack(y_all))


def arriving_rows(
    stream: Stream, splits: Splits, task: int, *, replica: int, dtype: torch.dtype
) -> Batch:
    """Return the first training rows that arrive with a task, at most 512, as a batch.

    Args:
        stream: Stream that holds the rows.
        splits: Rows of each replica.
        task: Number of the task.
        replica: Index of the replica.
        dtype: Type of inputs and weights.
    """
    offset = splits.train.offset[replica]
    low, high = int(offset[task]), int(offset[task + 1])
    high = min(high, low + ROWS)
    row, owner = splits.train.row[replica, low:high], splits.train.task[replica, low:high]
    return stream.batch(row, torch.ones_like(row, dtype=torch.bool), owner, dtype, replica=replica)
