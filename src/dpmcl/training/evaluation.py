"""Evaluate models on the tasks of a stream, before the first task and after each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import annotated_types as at
import numpy as np
import torch
from torch import Tensor

from dpmcl.core.batch import Batch
from dpmcl.core.errors import Errors
from dpmcl.core.settings import Positive, Settings
from dpmcl.data.splits import Rows
from dpmcl.exceptions import SpecError
from dpmcl.methods._method import State, returned
from dpmcl.results.record import unequal_rows
from dpmcl.training.loop import after_evaluation_phases
from dpmcl.training.memories import overrides
from dpmcl.training.observer import Observer
from dpmcl.training.setup import Setup
from dpmcl.training.state import RunState

_PREFIX = "errors."
_ROWS_AT_ONCE = 2048  # rows of a replica in a forward pass; fifty replicas' features must fit


@dataclass(frozen=True, kw_only=True)
class Evaluation(Settings):
    """Settings of evaluation. By default the test rows of the tasks seen are evaluated.

    Attributes:
        train: Whether to evaluate training rows too.
        future: Whether to evaluate tasks not seen yet too (for forward transfer).
        evaluate_every: Number of tasks between evaluations of all tasks seen, which also follow the
            last task. After the other tasks only the newest task is evaluated.
        test_rows: Maximum number of rows to evaluate for each task and split; None for all. This
            and `evaluate_every` limit the cost of evaluation on long streams.
        predictions: Whether to keep the final predictions on test rows (classes, or values of a
            regression) with their targets and tasks, for metrics that read predictions.
        confusion: Whether to keep the predictions and draw the confusion matrix by class.
        arriving: Whether to evaluate new rows just before the update that trains on them
            (test-then-train). Gives errors of the split "arriving", one mean for each task; needs
            training.passes = 1.
        held_out: Share of each task's training rows that is excluded from training and evaluated
            in place of the test rows, for choosing settings; None evaluates the test rows.
    """

    train: bool = False
    future: bool = False
    evaluate_every: Positive = 1
    test_rows: Positive | None = None
    predictions: bool = False
    confusion: bool = False
    arriving: bool = False
    held_out: Annotated[float, at.Gt(0), at.Lt(1)] | None = None

    def tasks(self, after: int, tasks: int) -> range:
        """Return the tasks that are evaluated after a task.

        Args:
            after: Number of the task; -1 stands for the evaluation before the first task.
            tasks: Number of tasks in the stream.
        """
        if after >= 0 and (after + 1) % self.evaluate_every and after + 1 < tasks:
            return range(after, after + 1)
        return range(tasks if after < 0 or self.future else after + 1)


def evaluate(setup: Setup, state: State, rows: Rows, tasks: Sequence[int]) -> Tensor:
    """Return the mean error of every replica on some tasks.

    The model, the stream and all random states are unchanged.

    Args:
        setup: Setup with the engine, model and stream.
        state: State with a leading replica dimension.
        rows: The split to evaluate.
        tasks: Consecutive task numbers.

    Returns:
        Float64 (replicas, tasks of the stream), NaN for all other tasks.
    """
    low, high = rows.offset[:, tasks[0]], rows.offset[:, tasks[-1] + 1]
    shape = len(low), 1 + setup.tasks
    sums = torch.zeros(shape, dtype=torch.float64, device=low.device)
    counts = torch.zeros_like(sums)
    with torch.no_grad():
        for batch, present in _batches(setup, rows, low, high):
            errors = setup.engine.map(partial(row_errors, setup), state, batch)
            task = torch.where(present, batch.task, setup.tasks)
            sums.scatter_add_(1, task, errors)
            counts.scatter_add_(1, task, torch.ones_like(errors))
    return (sums / counts)[:, : setup.tasks]


def row_errors(setup: Setup, state: State, batch: Batch) -> Tensor:
    """Return the error of one replica on each row of a batch, float64 (rows,).

    Args:
        setup: Setup with the model and stream.
        state: State of the replica.
        batch: Rows.
    """
    model, within = setup.model, setup.stream.within
    outputs = model.holding(state.buffers).predict(state.theta, batch.x)
    return model.errors(outputs, batch.y, None if within is None else within[batch.task])


def _batches(setup: Setup, rows: Rows, low: Tensor, high: Tensor) -> Iterator[tuple[Batch, Tensor]]:
    """Yield batches of the rows from low to high, and the mask of the rows that are no padding."""
    width = int((high - low).max())
    for start in range(0, width, _ROWS_AT_ONCE):
        item = torch.arange(start, min(start + _ROWS_AT_ONCE, width), device=low.device)
        position = low[:, None] + item
        present = position < high[:, None]
        position = position.clamp(max=rows.row.shape[1] - 1)
        row, task = rows.row.gather(1, position), rows.task.gather(1, position)
        yield setup.stream.batch(row, present, task, setup.model.dtype), present


def predict(setup: Setup, state: State, rows: Rows) -> dict[str, np.ndarray]:
    """Return the predictions of the replicas for the rows of a split, in the order of its tasks.

    Args:
        setup: Setup with the engine, model and stream.
        state: State with a leading replica dimension.
        rows: The split.

    Returns:
        "test": classes, int64 (replicas, rows), or values (replicas, rows, outputs);
        "test.target": the targets, in the same form; "test.task": the task of each row, int64
        (replicas, rows).
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
        for batch, _ in _batches(setup, rows, rows.offset[:, 0], rows.offset[:, -1]):
            predicted.append(setup.engine.map(answer, state, batch))
            target.append(batch.y)
    tensors = {"test": torch.cat(predicted, 1), "test.target": torch.cat(target, 1)}
    tensors["test.task"] = rows.task
    return {name: tensor.cpu().numpy() for name, tensor in tensors.items()}


class Score(Observer):
    """Evaluates the replicas before the first task and after each.

    Args:
        evaluation: Settings of evaluation.
        setup: Setup of the run.

    Raises:
        SpecError: The confusion matrix of a regression is asked for, or predictions are, and
            replicas have different numbers of test rows.
    """

    def __init__(self, evaluation: Evaluation, setup: Setup) -> None:
        self.evaluation = evaluation
        if evaluation.confusion and setup.model.kind == "regression":
            raise SpecError(
                "evaluation.confusion counts classes, and a regression has none; leave it out."
            )
        if self._predicts:
            rows = self._rows(setup, "test").offset[:, -1]
            fewest, most = int(rows.min()), int(rows.max())
            if fewest < most:
                raise unequal_rows(fewest, most)

    def begin(self, setup: Setup, run: RunState) -> RunState:
        if all(_PREFIX + split in run.values for split in self._splits):
            return run
        shape = (len(setup.seeds), 1 + setup.tasks, setup.tasks)
        empty = {_PREFIX + split: np.full(shape, np.nan) for split in self._splits}
        return self._evaluate(setup, replace(run, values={**run.values, **empty}), after=-1)

    def after_task(self, setup: Setup, run: RunState) -> RunState:
        return self._evaluate(setup, run, after=run.position.task - 1)

    def errors(self, setup: Setup, run: RunState) -> dict[str, Errors]:
        """Return the error tensors of a run by split.

        Args:
            setup: Setup of the run.
            run: State at the end of the run.
        """
        return {
            split: Errors(
                setup.seeds,
                run.values[_PREFIX + split],
                self._rows(setup, split).offset.diff(dim=1).cpu().numpy(),
            )
            for split in self._splits
        }

    def predictions(self, setup: Setup, state: State) -> dict[str, np.ndarray] | None:
        """Return the final predictions on test rows (`evaluation.predict`), if they are kept.

        Args:
            setup: Setup of the run.
            state: The states to evaluate at the end of the run (`evaluated_states`).
        """
        if not self._predicts:
            return None
        return predict(setup, state, self._rows(setup, "test"))

    @property
    def _predicts(self) -> bool:
        return self.evaluation.predictions or self.evaluation.confusion

    @property
    def _splits(self) -> tuple[str, ...]:
        return ("test", "train") if self.evaluation.train else ("test",)

    def _rows(self, setup: Setup, split: str) -> Rows:
        rows, limit = setup.splits.named(split), self.evaluation.test_rows
        return rows if limit is None else rows.at_most(limit)

    def _evaluate(self, setup: Setup, run: RunState, after: int) -> RunState:
        tasks = self.evaluation.tasks(after, setup.tasks)
        prepared = after_evaluation_phases(setup, run, after) if after >= 0 else run
        state = evaluated_states(setup, prepared)
        values: Mapping[str, np.ndarray] = dict(run.values)
        for split in self._splits:
            errors = evaluate(setup, state, self._rows(setup, split), tasks)
            errors[~run.alive] = torch.nan
            values[_PREFIX + split][:, 1 + after] = errors.cpu().numpy()
        return replace(run, values=values, work=prepared.work)


def evaluated_states(setup: Setup, run: RunState) -> State:
    """Return the states whose models are evaluated.

    Args:
        setup: Setup of the run.
        run: The state after a task and after the method's evaluation phases
            (`loop.after_evaluation_phases`).
    """
    if not overrides(setup.method, "evaluated"):
        return run.replicas

    def evaluated(state: State) -> State:
        what = f"`evaluated` of '{setup.method_name}'"
        return returned(setup.method.evaluated(state), State, what)

    with setup.locating("`evaluated`"):
        state: State = setup.engine.map(evaluated, run.replicas)
    return state
