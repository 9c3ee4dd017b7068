"""What a method is told of a task before it trains on it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dpmcl.core.model import Kind
from dpmcl.data.splits import Rows, Splits
from dpmcl.data.stream import Stream


@dataclass(frozen=True, eq=False, kw_only=True)
class TaskInfo:
    """A task of a stream, as a method sees it.

    Args:
        number: Which task it is, from 0.
        tasks: How many tasks the stream has; in a learner, how many have come.
        input_shape: Shape of one input.
        outputs: Width of the model's output.
        kind: "classification" or "regression".
        classes: Class numbers of each task of the stream, by the rows that arrive with it; empty
            tuples for regression, and in a learner for the tasks before this one.
        seen: Outputs of the classes of all tasks so far, this one included, bool (outputs,); all
            outputs for regression.
        new: Outputs of the classes that come with this task for the first time, bool (outputs,);
            at regression's first task all, then none.
        rows: Training rows that arrive with the task, the most of any replica.
        rows_seen: Training rows of all tasks so far, this one included, the most of any replica.
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
    """Return what a method is told of each task.

    Args:
        stream: Tasks over a pool of rows.
        splits: Rows of each replica; blurred boundaries have moved some to neighbouring tasks.
    """
    tasks = len(stream.tasks)
    present = _classes(stream, splits.train) | _classes(stream, splits.validation)
    seen = present.cumsum(0) > 0
    new = seen.clone()
    new[1:] &= ~seen[:-1]
    numbers = tuple(tuple(each.nonzero().flatten().tolist()) for each in present)
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


def _classes(stream: Stream, rows: Rows) -> Tensor:
    """Return which classes arrive with each task in any replica, bool (tasks, outputs)."""
    tasks, device = len(stream.tasks), rows.row.device
    if stream.kind == "regression":
        return torch.ones(tasks, stream.outputs, dtype=torch.bool, device=device)
    task, _, inside = rows.places()
    present = torch.zeros(tasks, stream.outputs, dtype=torch.bool, device=device)
    present[task[inside], stream.y[rows.row[inside]]] = True
    return present
