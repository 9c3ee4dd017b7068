"""Information about a task, which a method gets before it trains on the task."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpmcl.core.model import Kind
from dpmcl.data.splits import Rows, Splits
from dpmcl.data.stream import Stream


@dataclass(frozen=True, eq=False, kw_only=True)
class TaskInfo:
    """Information about a task of a stream.

    Args:
        number: Number of the task, from 0.
        tasks: Number of tasks in the stream; in a learner, number of tasks so far.
        input_shape: Shape of one input.
        outputs: Width of the model's output.
        kind: "classification" or "regression".
        classes: Class numbers of the rows that may arrive with each task of the stream: those of
            the task and, with blurred boundaries, of its neighbours, whichever rows a seed moves.
            In a learner, for the tasks before this one, only those that had not arrived before.
            Empty tuples for regression.
        seen: Mask of the outputs whose classes are in `classes` of a task up to this one, bool
            (outputs,); all True for regression.
        new: Mask of the outputs whose classes are first in `classes` of this task, bool (outputs,);
            for regression, all True at the first task and all False after it.
        rows: Number of training rows that arrive with the task, the largest of any replica.
        rows_seen: Number of training rows of all tasks up to this one, the largest of any replica.
    """

    number: int
    tasks: int
    input_shape: tuple[int, ...]
    outputs: int
    kind: Kind
    classes: tuple[tuple[int, ...], ...]
    seen: Tensor
    new: Tensor
    rows: int
    rows_seen: int


def task_infos(stream: Stream, splits: Splits) -> tuple[TaskInfo, ...]:
    """Return the information about each task.

    Args:
        stream: Tasks over a pool of rows.
        splits: Rows of each replica, after blurred boundaries moved some to neighbouring tasks.
    """
    tasks = len(stream.tasks)
    present = _arriving_classes(stream, splits.train) | _arriving_classes(stream, splits.validation)
    seen = present.cumsum(0) > 0
    new = seen.clone()
    new[1:] &= ~seen[:-1]
    numbers = tuple(tuple(mask.nonzero().flatten().tolist()) for mask in present)
    offset = splits.train.offset
    return tuple(
        TaskInfo(
            number=task,
            tasks=tasks,
            input_shape=tuple(stream.x.shape[1:]),
            outputs=stream.outputs,
            kind=stream.kind,
            classes=numbers if stream.kind == "classification" else ((),) * tasks,
            seen=seen[task],
            new=new[task],
            rows=int((offset[:, task + 1] - offset[:, task]).max()),
            rows_seen=int(offset[:, task + 1].max()),
        )
        for task in range(tasks)
    )


def first_tasks(infos: Sequence[TaskInfo]) -> Tensor:
    """Return the number of the task in which the class of each output first arrived.

    Args:
        infos: The information about each task seen.

    Returns:
        int64 (outputs,); -1 for outputs whose class has not arrived.
    """
    first = torch.full_like(infos[0].new, -1, dtype=torch.int64)
    for info in infos:
        first = torch.where(info.new, info.number, first)
    return first


def _arriving_classes(stream: Stream, rows: Rows) -> Tensor:
    """Return a mask of the classes that may arrive with each task, bool (tasks, outputs)."""
    tasks, device = len(stream.tasks), rows.row.device
    if stream.kind == "regression":
        return torch.ones(tasks, stream.outputs, dtype=torch.bool, device=device)
    task, _, inside = rows.arrivals()
    if stream.blur:  # a seed moves rows of its own, and may not depend on the seeds beside it
        task = rows.task
    present = torch.zeros(tasks, stream.outputs, dtype=torch.bool, device=device)
    present[task[inside], stream.y[rows.row[inside]]] = True
    if stream.blur:
        before = present.clone()
        present[1:] |= before[:-1]
        present[:-1] |= before[1:]
    return present
