"""Trains one method on one stream for many seeds, and measures it after every task."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpmcl import keys, memory
from dpmcl.engine import Engine, check_fit
from dpmcl.evaluation import Errors, Evaluation, evaluate
from dpmcl.gradients import Work, counting
from dpmcl.memory import Memory
from dpmcl.method import Method, Phase, State
from dpmcl.model import Model, Theta, initial
from dpmcl.sampling import chunk
from dpmcl.splits import Rows, Splits
from dpmcl.stream import Stream
from dpmcl.tree import at

Progress = Callable[[int, int], None]
"""progress(done, total): updates of all replicas done, and to be done."""

_UPDATES_AT_ONCE = 50


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a training run leaves behind.

    errors: by split ("test", and "train" where asked for). theta: final parameters, replicas
    first. work: gradients and rows spent for each replica.
    """

    errors: dict[str, Errors]
    theta: Theta
    work: Work


def train(
    method: Method,
    model: Model,
    stream: Stream,
    splits: Splits,
    seeds: Sequence[int],
    engine: Engine,
    evaluation: Evaluation | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Takes the tasks in turn; every draw is a function of the seed, the task, phase and step."""
    model = method.prepare(model)
    check_fit(method, model, stream, engine.at_once(len(seeds)))
    run = _Run(method, model, stream, splits, tuple(seeds), engine, progress)
    score = _Score(run, evaluation or Evaluation())
    start = state = run.start()
    held = run.empty_memory()
    score.take(state.theta, after=-1)
    for task in range(len(stream.tasks)):
        if method.restarts:
            state = start
        elif method.reset_at_task:
            state = state._replace(optimiser=engine.map(method.rule.init, state.theta))
        if method.stores == "before":
            held = run.store(held, task)
        for number, phase in enumerate(method.phases(model, task)):
            state = run.phase(state, held, phase, (task, number))
        if method.stores == "after":
            held = run.store(held, task)
        score.take(state.theta, after=task)
    return Outcome(score.errors(), state.theta, run.work)


class _Run:
    """What stays the same while the tasks go by, and the count of the work."""

    def __init__(
        self,
        method: Method,
        model: Model,
        stream: Stream,
        splits: Splits,
        seeds: tuple[int, ...],
        engine: Engine,
        progress: Progress | None,
    ) -> None:
        self.method, self.model, self.stream, self.splits = method, model, stream, splits
        self.seeds, self.engine = seeds, engine
        self.seed = torch.tensor(seeds, dtype=torch.int64, device=model.device)
        self.work = Work()
        self._progress = progress
        self._done = 0
        self._total = sum(
            phase.updates
            for task in range(len(stream.tasks))
            for phase in method.phases(model, task)
        )
        self._width = int(splits.train.offset.diff(dim=1).max())

    def start(self) -> State:
        theta = initial(self.model, self.seeds)
        state: State = self.engine.map(self.method.start, theta)
        return state

    def empty_memory(self) -> Memory:
        # Beyond the stream's training rows a longer memory would hold nothing more.
        capacity = min(self.method.memory, self.splits.train.row.shape[1])
        one = memory.empty(capacity, self.model.device)
        return Memory(*(leaf.expand(len(self.seeds), *leaf.shape) for leaf in one))

    def store(self, held: Memory, task: int) -> Memory:
        """D_P after the task's training rows were offered to it."""
        offset = self.splits.train.offset
        key = keys.derive(self.seed, keys.Purpose.MEMORY, task)

        def add(one: Memory, start: Tensor, count: Tensor, key: Tensor) -> Memory:
            policy = self.method.memory_policy
            return memory.add(one, start, count, self._width, key, policy)

        count = offset[:, task + 1] - offset[:, task]
        after: Memory = torch.func.vmap(add)(held, offset[:, task], count, key)
        return after

    def phase(self, state: State, held: Memory, phase: Phase, place: tuple[int, int]) -> State:
        """All updates of a phase, a chunk at a time."""
        self._count(state, held, phase, place)
        for first in range(0, phase.updates, _UPDATES_AT_ONCE):
            steps = range(first, min(first + _UPDATES_AT_ONCE, phase.updates))
            drawn = chunk(phase.draws, self.splits, held, self.seed, place, steps, phase.keys)
            state = self.engine.advance(phase.update, state, drawn, self.stream, self.model.dtype)
            self._done += len(steps)
            if self._progress:
                self._progress(self._done, self._total)
        return state

    def _count(self, state: State, held: Memory, phase: Phase, place: tuple[int, int]) -> None:
        """Counts the work of a phase by running its first update once, on one replica, aside."""
        drawn = chunk(phase.draws, self.splits, held, self.seed, place, range(1), phase.keys)
        batches = drawn.batches(self.stream, self.model.dtype, 0, 0)
        with counting() as one:
            phase.update(at(state, 0), batches, drawn.key[0, 0])
        self.work.gradient_evaluations += one.gradient_evaluations * phase.updates
        self.work.rows_backpropagated += one.rows_backpropagated * phase.updates


class _Score:
    """Fills the error tensor."""

    def __init__(self, run: _Run, evaluation: Evaluation) -> None:
        self._run, self._evaluation = run, evaluation
        cap = evaluation.test_rows
        self._rows = {
            name: rows if cap is None else rows.at_most(cap)
            for name in (["test", "train"] if evaluation.train else ["test"])
            for rows in [run.splits.named(name)]
        }
        replicas, tasks = len(run.seeds), len(run.stream.tasks)
        shape = (replicas, 1 + tasks, tasks)
        self._values = {name: np.full(shape, np.nan) for name in self._rows}

    def take(self, theta: Theta, after: int) -> None:
        run = self._run
        tasks = self._evaluation.tasks(after, len(run.stream.tasks))
        for name, rows in self._rows.items():
            found = evaluate(run.engine, run.model, theta, run.stream, rows, tasks)
            self._values[name][:, 1 + after] = found.cpu().numpy()

    def errors(self) -> dict[str, Errors]:
        def examples(rows: Rows) -> Any:
            return rows.offset.diff(dim=1).cpu().numpy()

        return {
            name: Errors(self._run.seeds, self._values[name], examples(rows))
            for name, rows in self._rows.items()
        }
