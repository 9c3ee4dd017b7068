"""Evaluate a model on the tasks of a stream, before the first and after each: what, and how."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from dpmcl.methods._method import State
from dpmcl.training.loop import rehearsed
from dpmcl.training.memories import has_own
from dpmcl.training.observer import Observer
from dpmcl.training.setup import Setup
from dpmcl.training.state import RunState

_PREFIX = "errors."
_ROWS_AT_ONCE = 2048  # rows a replica and forward pass; small enough for fifty replicas' features


@dataclass(frozen=True, kw_only=True)
class Evaluation(Settings):
    """Settings of evaluation: what is evaluated besides the test rows of the tasks seen.

    Attributes:
        train: Whether training rows are evaluated too.
        future: Whether tasks not seen yet are evaluated too (for forward transfer).
        evaluate_every: After every so many tasks (and after the last) all tasks seen are evaluated;
            after the others the newest alone.
        test_rows: Most rows of a task, of each split; None for all. This and `evaluate_every` bound
            what evaluation costs on long streams.
        predictions: Whether the final predictions on test rows are kept, for metrics that read
            them: classes, or values of a regression; with their targets and tasks.
        confusion: Whether they are kept, and the confusion matrix by class is drawn.
        arriving: Whether new rows are evaluated just before they are trained on, test-then-train,
            as errors of the split "arriving", a mean a task; needs training.passes = 1.
        held_out: Share of each task's training rows that is kept from training and evaluated in
            place of the test rows, so that settings can be chosen; None evaluates the test rows.
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
    model, within = setup.model, setup.stream.within
    low, high = rows.offset[:, tasks[0]], rows.offset[:, tasks[-1] + 1]
    shape = len(low), 1 + setup.tasks
    sums = torch.zeros(shape, dtype=torch.float64, device=low.device)
    counts = torch.zeros_like(sums)

    def error(state: State, batch: Batch) -> Tensor:
        outputs = model.holding(state.buffers).predict(state.theta, batch.x)
        return model.errors(outputs, batch.y, None if within is None else within[batch.task])

    with torch.no_grad():
        for batch, present in _delivered(setup, rows, low, high):
            errors = setup.engine.map(error, state, batch)
            task = torch.where(present, batch.task, setup.tasks)
            sums.scatter_add_(1, task, errors)
            counts.scatter_add_(1, task, torch.ones_like(errors))
    return (sums / counts)[:, : setup.tasks]


def _delivered(
    setup: Setup, rows: Rows, low: Tensor, high: Tensor
) -> Iterator[tuple[Batch, Tensor]]:
    """Yield batches of the rows from low to high, and which of them do not merely fill a batch."""
    width = int((high - low).max())
    for start in range(0, width, _ROWS_AT_ONCE):
        item = torch.arange(start, min(start + _ROWS_AT_ONCE, width), device=low.device)
        position = low[:, None] + item
        present = position < high[:, None]
        position = position.clamp(max=rows.row.shape[1] - 1)
        row, task = rows.row.gather(1, position), rows.task.gather(1, position)
        yield setup.stream.batch(row, present, task, setup.model.dtype), present


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
        for batch, _ in _delivered(setup, rows, rows.offset[:, 0], rows.offset[:, -1]):
            predicted.append(setup.engine.map(answer, state, batch))
            target.append(batch.y)
    tensors = {"test": torch.cat(predicted, 1), "test.target": torch.cat(target, 1)}
    tensors["test.task"] = rows.task
    return {name: tensor.cpu().numpy() for name, tensor in tensors.items()}


@dataclass(frozen=True)
class Score(Observer):
    """Evaluates the replicas.

    Attributes:
        evaluation: What is evaluated, and when.
    """

    evaluation: Evaluation

    def begin(self, setup: Setup, run: RunState) -> RunState:
        if self.evaluation.confusion and setup.model.kind == "regression":
            raise SpecError(
                "evaluation.confusion counts classes, and a regression has none; leave it out."
            )
        if all(_PREFIX + split in run.values for split in self._splits):
            return run
        shape = (len(setup.seeds), 1 + setup.tasks, setup.tasks)
        empty = {_PREFIX + split: np.full(shape, np.nan) for split in self._splits}
        return self._evaluated(setup, replace(run, values={**run.values, **empty}), after=-1)

    def after_task(self, setup: Setup, run: RunState) -> RunState:
        return self._evaluated(setup, run, after=run.position.task - 1)

    def errors(self, setup: Setup, run: RunState) -> dict[str, Errors]:
        """Return the error tensors of a run by split.

        Args:
            setup: The run's.
            run: Its last state.
        """
        return {
            split: Errors(
                setup.seeds,
                run.values[_PREFIX + split],
                self._rows(setup, split).offset.diff(dim=1).cpu().numpy(),
            )
            for split in self._splits
        }

    def predictions(self, setup: Setup, last: State) -> dict[str, np.ndarray] | None:
        """Return the final predictions on test rows (`evaluation.predict`), if they are kept.

        Args:
            setup: The run's.
            last: The states that predict at its end.
        """
        if not (self.evaluation.predictions or self.evaluation.confusion):
            return None
        return predict(setup, last, self._rows(setup, "test"))

    @property
    def _splits(self) -> tuple[str, ...]:
        return ("test", "train") if self.evaluation.train else ("test",)

    def _rows(self, setup: Setup, split: str) -> Rows:
        rows, most = setup.splits.named(split), self.evaluation.test_rows
        return rows if most is None else rows.at_most(most)

    def _evaluated(self, setup: Setup, run: RunState, after: int) -> RunState:
        tasks = self.evaluation.tasks(after, setup.tasks)
        rehearsal = rehearsed(setup, run, after) if after >= 0 else run
        state = shown(setup, rehearsal)
        values: Mapping[str, np.ndarray] = dict(run.values)
        for split in self._splits:
            errors = evaluate(setup, state, self._rows(setup, split), tasks)
            errors[~run.alive] = torch.nan
            values[_PREFIX + split][:, 1 + after] = errors.cpu().numpy()
        return replace(run, values=values, work=rehearsal.work)


def shown(setup: Setup, run: RunState) -> State:
    """Return the states whose models are evaluated.

    Args:
        setup: What stays the same.
        run: The state after a task, and after the phases that come before an evaluation.
    """
    if not has_own(setup.method, "evaluated"):
        return run.replicas
    state: State = setup.engine.map(setup.method.evaluated, run.replicas)
    return state
