"""Trains one method on one stream for many seeds, and measures it after every task."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpmcl.core import keys, memory
from dpmcl.core.errors import Errors
from dpmcl.core.gradients import Work, counting
from dpmcl.core.memory import Memories, Memory
from dpmcl.core.model import Model, Theta, initial
from dpmcl.core.tree import at as of_replica
from dpmcl.data.motion import Motion, motion_of
from dpmcl.data.sampling import Chunk, Weighing, chunk, weigh
from dpmcl.data.splits import Rows, Splits
from dpmcl.data.stream import Stream
from dpmcl.engine import Engine, check_fit
from dpmcl.exceptions import SpecError
from dpmcl.methods._method import Method, Phase, State
from dpmcl.results.record import Divergence
from dpmcl.theory.readings import Readings
from dpmcl.training.checkpoints import Position, Snapshot
from dpmcl.training.divergence import choose_state, finite, replayed
from dpmcl.training.evaluation import Evaluation, evaluate
from dpmcl.training.keeper import Keeper, Keeping
from dpmcl.training.monitor import Monitor, MonitorSettings
from dpmcl.training.motion_check import check_motion
from dpmcl.training.noise import noise
from dpmcl.training.step_size import StepSize

Progress = Callable[[int, int], None]
"""progress(done, total): updates of all replicas done, and to be done."""

_UPDATES_AT_ONCE = 50


Report = Callable[[int, Divergence], None]
"""report(seed, divergence): a replica has been frozen."""

Note = Callable[[str], None]
"""note(line): what a user should know of a method while it trains."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a training run leaves behind.

    errors: by split ("test", and "train" where asked for); NaN from where a replica diverged.
    theta: final parameters, replicas first. work: gradients and rows spent for each replica.
    diverged: by seed, where a replica was frozen. readings: the monitor's, if there was one.
    """

    errors: dict[str, Errors]
    theta: Theta
    work: Work
    diverged: dict[int, Divergence]
    readings: Readings | None = None


def train(
    method: Method,
    model: Model,
    stream: Stream,
    splits: Splits,
    seeds: Sequence[int],
    engine: Engine,
    evaluation: Evaluation | None = None,
    progress: Progress | None = None,
    keeper: Keeper | None = None,
    report: Report | None = None,
    weights: Sequence[int] | None = None,
    watched: MonitorSettings | None = None,
    note: Note | None = None,
) -> Outcome:
    """Takes the tasks in turn; every draw is a function of the seed, the task, phase and step.

    keeper: where the run goes on from, and when it is saved. report: told of replicas that diverge;
    what it raises ends the run. weights: seeds of the initial weights, None for `seeds`.
    watched: what is measured on the way. note: told what a user should know.
    """
    model, watched = method.prepare(model), watched or MonitorSettings()
    check_fit(method, model, stream, engine.at_once(len(seeds)))
    check_motion(method, model, stream, watched.drift)
    if note and (line := noise(method, model.dtype)):
        note(line)
    run = _Run(method, model, stream, splits, tuple(seeds), engine, watched, progress, report, note)
    score = _Score(run, evaluation or Evaluation())
    keeper = keeper or Keeper(Keeping())
    start = run.start(weights or seeds)
    if run.monitor:
        run.monitor.begin(start.theta)
    fresh = run.snapshot(Position(), start, run.empty_memory(), score.values)
    here = keeper.load(fresh)
    if here is None:
        here = fresh
        score.take(start.theta, after=-1)
    else:
        run.restore(here)
        score.restore(here.values)
        if report:
            for replica, where in run.diverged.items():
                report(run.seeds[replica], where)
    state, held = here.state, here.held

    def now(position: Position) -> Callable[[], Snapshot]:
        return lambda: run.snapshot(position, state, held, score.values)

    for task in range(here.position.task, len(stream.tasks)):
        first = here.position if here.position.task == task else Position(task)
        if first == Position(task):
            state = run.begin(state, start)
            if method.stores == "before":
                held = run.store(held, task)
        for number, phase in enumerate(method.phases(model, task)):
            if number < first.phase:
                continue
            done = first.update if number == first.phase else 0
            for after, at in run.phase(state, held, phase, (task, number), done):
                state = after
                keeper.after_chunk(now(Position(task, number, at)))
        if method.stores == "after":
            held = run.store(held, task)
        score.take(state.theta, after=task)
        keeper.after_task(now(Position(task + 1)))
    run.step_size.sum_up()
    diverged = {run.seeds[replica]: where for replica, where in run.diverged.items()}
    readings = run.monitor.readings() if run.monitor else None
    return Outcome(score.errors(), state.theta, run.work, diverged, readings)


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
        watched: MonitorSettings,
        progress: Progress | None,
        report: Report | None,
        note: Note | None,
    ) -> None:
        _check_splits(method, model, stream)
        self.method, self.model, self.stream, self.splits = method, model, stream, splits
        self.seeds, self.engine = seeds, engine
        self.seed = torch.tensor(seeds, dtype=torch.int64, device=model.device)
        self.work = Work()
        self.diverged: dict[int, Divergence] = {}
        self.alive = torch.ones(len(seeds), dtype=torch.bool, device=model.device)
        self._progress, self._report = progress, report
        self._done = 0
        self._total = self._updates(Position(len(stream.tasks)))
        self._kept = ("train", "validation") if method.trains_on_validation else ("train",)
        self.step_size = StepSize(method, model, stream, splits, self.seed, engine, note)
        self.monitor: Monitor | None = None
        if watched.active:
            self.monitor = Monitor(watched, method, model, stream, splits, seeds, engine, note)
        self._motion: tuple[int, Motion] | None = None

    def start(self, weights: Sequence[int]) -> State:
        theta = initial(self.model, weights)
        state: State = self.engine.map(self.method.start, theta)
        return state

    def begin(self, state: State, start: State) -> State:
        """The state with which a task begins."""
        if self.method.restarts:
            begun = start
        elif self.method.reset_at_task:
            begun = state._replace(optimiser=self.engine.map(self.method.rule.init, state.theta))
        else:
            return state
        return choose_state(self.alive, begun, state) if self.diverged else begun

    def snapshot(
        self, position: Position, state: State, held: Memories, values: dict[str, np.ndarray]
    ) -> Snapshot:
        work = Work(**vars(self.work))
        readings = self.monitor.values.copy() if self.monitor else None
        places = self.monitor.places if self.monitor else ()
        return Snapshot(position, state, held, values, work, dict(self.diverged), readings, places)

    def restore(self, snapshot: Snapshot) -> None:
        """Takes over what a snapshot knows besides state, memory and errors."""
        self.work, self.diverged = Work(**vars(snapshot.work)), dict(snapshot.diverged)
        self.alive[list(self.diverged)] = False
        if self.monitor and snapshot.readings is not None:
            self.monitor.restore(snapshot.readings)
        self._done = self._updates(snapshot.position)

    def _updates(self, position: Position) -> int:
        """How many updates come before a position."""
        tasks, number, update = position
        count = sum(
            p.updates for task in range(tasks) for p in self.method.phases(self.model, task)
        )
        if (number, update) == (0, 0):
            return count
        phases = self.method.phases(self.model, tasks)
        return count + sum(phase.updates for phase in phases[:number]) + update

    def empty_memory(self) -> Memories:
        return {name: self._empty(name) for name in self._kept}

    def _empty(self, name: str) -> Memory:
        # Beyond the stream's rows of the split a longer memory would hold nothing more.
        capacity = min(self.method.memory, self.splits.named(name).row.shape[1])
        one = memory.empty(capacity, self.model.device)
        return Memory(*(leaf.expand(len(self.seeds), *leaf.shape) for leaf in one))

    def store(self, held: Memories, task: int) -> Memories:
        """The memories after the task's rows were offered to them."""
        return {name: self._stored(name, one, task) for name, one in held.items()}

    def _stored(self, name: str, held: Memory, task: int) -> Memory:
        offset = self.splits.named(name).offset
        width = int(offset.diff(dim=1).max())
        key = keys.derive(self.seed, keys.Purpose.MEMORY, task, self._kept.index(name))

        def add(one: Memory, start: Tensor, count: Tensor, key: Tensor) -> Memory:
            return memory.add(one, start, count, width, key, self.method.memory_policy)

        count = offset[:, task + 1] - offset[:, task]
        after: Memory = torch.func.vmap(add)(held, offset[:, task], count, key)
        return after

    def motion(self, task: int) -> Motion:
        """Where rows go at a task; the newest is kept."""
        if self._motion is None or self._motion[0] != task:
            found = motion_of(self.stream, self.splits, task, self.model.dtype)
            self._motion = task, found
        return self._motion[1]

    def weighing(self, task: int) -> Weighing | None:
        """What gamma makes of the tasks seen; None where all weigh the same."""
        found = weigh(self.method.discounting, task, len(self.stream.tasks))
        if found is None:
            return None
        return Weighing(found.to(self.model.device), self.method.discount_on)

    def _chunk(self, held: Memories, phase: Phase, place: tuple[int, int], steps: range) -> Chunk:
        moves = any(draw.moved is not None for draw in phase.draws.values())
        return chunk(
            phase.draws,
            self.splits,
            held,
            self.seed,
            place,
            steps,
            phase.keys,
            motion=self.motion(place[0]) if moves else None,
            weighing=self.weighing(place[0]),
        )

    def phase(
        self, state: State, held: Memories, phase: Phase, place: tuple[int, int], done: int
    ) -> Iterator[tuple[State, int]]:
        """The updates of a phase from `done` on: the state after each chunk, and how many then."""
        if done == 0:
            self._count(state, held, phase, place)
        while done < phase.updates:
            steps = range(done, self._stop(phase, place, done))
            if self.step_size.due(done, _UPDATES_AT_ONCE):
                motion = self.motion(place[0])
                state = self.step_size.informed(state, held, place, done, motion, self.alive)
            before = state
            state = self._advance(
                state, phase, self._chunk(held, phase, place, steps), place, steps.start
            )
            if self.monitor and self.monitor.due((*place, done)):
                self._watch((*place, done), before, state, held)
            done = steps.stop
            self._done += len(steps)
            if self._progress:
                self._progress(self._done, self._total)
            yield state, done

    def _stop(self, phase: Phase, place: tuple[int, int], first: int) -> int:
        """Where the chunk that begins at `first` ends: a watched update is one of its own."""
        last = min(first - first % _UPDATES_AT_ONCE + _UPDATES_AT_ONCE, phase.updates)
        if self.monitor is None:
            return last
        if self.monitor.due((*place, first)):
            return first + 1
        return next((u for u in range(first + 1, last) if self.monitor.due((*place, u))), last)

    def _watch(
        self, place: tuple[int, int, int], before: State, after: State, held: Memories
    ) -> None:
        """Takes a reading; freezes, from the next update on, what has been above beta too long."""
        assert self.monitor is not None
        motion, weighing = self.motion(place[0]), self.weighing(place[0])
        over = self.monitor.take(place, before, after, held, motion, weighing, self.alive)
        for replica in over:
            if self.alive[replica]:
                self.alive[replica] = False
                task, phase, update = place
                self._fell(replica, Divergence(task, phase, update + 1, "cost"))

    def _fell(self, replica: int, where: Divergence) -> None:
        """Notes, and tells, that a replica is frozen."""
        self.diverged[replica] = where
        if self._report:
            self._report(self.seeds[replica], where)

    def _advance(
        self, state: State, phase: Phase, drawn: Chunk, place: tuple[int, int], first: int
    ) -> State:
        """The state after a chunk; replicas that are not finite stay where they last were."""

        def advance(state: State, drawn: Chunk) -> State:
            stream, dtype = self.stream, self.model.dtype
            return self.engine.advance(phase.update, state, drawn, stream, dtype)

        after = advance(state, drawn)
        fine = finite(after)
        if not (self.alive & ~fine).any():
            return choose_state(self.alive, after, state) if self.diverged else after
        frozen, fell = replayed(
            state, drawn.steps, lambda now, step: advance(now, drawn.only(step)), self.alive
        )
        self.alive = self.alive & fine
        for replica, step in fell.items():
            if fine[replica]:  # it has come back since, and alone nobody would have looked
                continue
            self._fell(replica, Divergence(*place, first + step + 1))
        return choose_state(self.alive, after, frozen)

    def _count(self, state: State, held: Memories, phase: Phase, place: tuple[int, int]) -> None:
        """Counts the work of a phase by running its first update once, on one replica, aside."""
        drawn = self._chunk(held, phase, place, range(1))
        batches = drawn.batches(self.stream, self.model.dtype, 0, 0)
        with counting() as one:
            phase.update(of_replica(state, 0), batches, drawn.key[0, 0])
        self.work += one.times(phase.updates)


def _check_splits(method: Method, model: Model, stream: Stream) -> None:
    """Raises SpecError for a method that trains on validation rows and does not say so."""
    if method.trains_on_validation:
        return
    for task in range(len(stream.tasks)):
        for phase in method.phases(model, task):
            for name, draw in phase.draws.items():
                if draw.split == "validation":
                    raise SpecError(
                        f"Draw '{name}' of phase '{phase.name}' has validation rows, which other "
                        "methods never train on; set trains_on_validation = True in "
                        f"{type(method).__name__}, so that tables say so."
                    )


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
        self.values = {name: np.full(shape, np.nan) for name in self._rows}

    def restore(self, values: Mapping[str, np.ndarray]) -> None:
        self.values = dict(values)

    def take(self, theta: Theta, after: int) -> None:
        run = self._run
        tasks = self._evaluation.tasks(after, len(run.stream.tasks))
        for name, rows in self._rows.items():
            found = evaluate(run.engine, run.model, theta, run.stream, rows, tasks)
            found[~run.alive] = torch.nan
            self.values[name][:, 1 + after] = found.cpu().numpy()

    def errors(self) -> dict[str, Errors]:
        def examples(rows: Rows) -> Any:
            return rows.offset.diff(dim=1).cpu().numpy()

        return {
            name: Errors(self._run.seeds, self.values[name], examples(rows))
            for name, rows in self._rows.items()
        }
