"""Evaluate a model on the tasks of a stream: what is evaluated, and how."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import annotated_types as at
import numpy as np
import torch
from torch import Tensor

from dpmcl.core.batch import Batch
from dpmcl.core.settings import Positive, Settings
from dpmcl.data.splits import Rows
from dpmcl.methods._method import State
from dpmcl.training.setup import Setup

_ROWS_AT_ONCE = 2048  # rows a replica and forward pass; small enough for fifty replicas' features


@dataclass(frozen=True, kw_only=True)
class Evaluation(Settings):
    """What is evaluated besides the test rows of the tasks seen.

    Attributes:
        train: Whether training rows are evaluated too.
        future: Whether tasks not seen yet are evaluated too (for forward transfer).
        evaluate_every: After every so many tasks (and after the last) all tasks seen are evaluated;
            after the others the newest alone.
        test_rows: Most rows of a task, of each split; None for all. This and `evaluate_every` bound
            what evaluation costs on long streams.
        predictions: Whether the final predictions on test rows are kept, for metrics that read
            them: classes, or values of a regression; with their targets and tasks.
        held_out: Share of each task's training rows that is kept from training and evaluated in
            place of the test rows, so that settings can be chosen; None evaluates the test rows.
    """

    train: bool = False
    future: bool = False
    evaluate_every: Positive = 1
    test_rows: Positive | None = None
    predictions: bool = False
    held_out: Annotated[float, at.Gt(0), at.Lt(1)] | None = None

    def tasks(self, after: int, tasks: int) -> range:
        """Return the tasks that are evaluated after a task.

        Args:
            after: Number of the task; -1 is before the first.
            tasks: Tasks in the stream.
        """
        if after >= 0 and (after + 1) % self.evaluate_every and after + 1 < tasks:
            return range(after, after + 1)
        return range(tasks if after < 0 or self.future else after + 1)


def evaluate(setup: Setup, state: State, rows: Rows, tasks: Sequence[int]) -> Tensor:
    """Return the mean error of every replica on some tasks.

    Nothing of the model, the stream or a random state changes.

    Args:
        setup: Engine, model and stream.
        state: The replicas' states, replicas first.
        rows: The split whose rows are evaluated.
        tasks: A run of consecutive task numbers.

    Returns:
        Float64 (replicas, tasks of the stream), NaN for the tasks that were not asked for.
    """
    model, stream = setup.model, setup.stream
    device = rows.offset.device
    low, high = rows.offset[:, tasks[0]], rows.offset[:, tasks[-1] + 1]
    width = int((high - low).max())
    sums = torch.zeros(len(low), 1 + setup.tasks, dtype=torch.float64, device=device)
    counts = torch.zeros_like(sums)

    def error(state: State, batch: Batch) -> Tensor:
        within = None if stream.within is None else stream.within[batch.task]
        outputs = model.holding(state.buffers).predict(state.theta, batch.x)
        return model.errors(outputs, batch.y, within)

    with torch.no_grad():
        for start in range(0, width, _ROWS_AT_ONCE):
            item = torch.arange(start, min(start + _ROWS_AT_ONCE, width), device=device)
            position = low[:, None] + item
            present = position < high[:, None]
            position = position.clamp(max=rows.row.shape[1] - 1)
            batch = stream.batch(
                rows.row.gather(1, position), present, rows.task.gather(1, position), model.dtype
            )
            errors = setup.engine.map(error, state, batch)
            task = torch.where(present, batch.task, setup.tasks)
            sums.scatter_add_(1, task, errors)
            counts.scatter_add_(1, task, torch.ones_like(errors))
    return (sums / counts)[:, : setup.tasks]


def predict(setup: Setup, state: State, rows: Rows) -> dict[str, np.ndarray]:
    """Return what the replicas predict for the rows of a split, in the order of its tasks.

    Args:
        setup: Engine, model and stream.
        state: The replicas' states, replicas first.
        rows: The split.

    Returns:
        "test": classes, int64 (replicas, rows), or values (replicas, rows, outputs); "test.target",
        what they should be, alike; "test.task", the task of each row, int64 (replicas, rows).
    """
    model, stream = setup.model, setup.stream
    classes = stream.kind == "classification"

    def answer(state: State, batch: Batch) -> Tensor:
        outputs = model.holding(state.buffers).predict(state.theta, batch.x)
        if not classes:
            return outputs
        if stream.within is not None:
            outputs = torch.where(stream.within[batch.task], outputs, -torch.inf)
        return outputs.argmax(-1)

    predicted, target = [], []
    with torch.no_grad():
        for row, task in zip(
            rows.row.split(_ROWS_AT_ONCE, 1), rows.task.split(_ROWS_AT_ONCE, 1), strict=True
        ):
            batch = stream.batch(row, torch.ones_like(row, dtype=torch.bool), task, model.dtype)
            predicted.append(setup.engine.map(answer, state, batch))
            target.append(batch.y)
    tensors = {"test": torch.cat(predicted, 1), "test.target": torch.cat(target, 1)}
    tensors["test.task"] = rows.task
    return {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
