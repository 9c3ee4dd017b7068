"""Trains one method on one stream for many seeds, and measures it after every task."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpmcl.core import keys, memory
from dpmcl.core.batch import Batch
from dpmcl.core.errors import Errors
from dpmcl.core.gradients import Work, counting
from dpmcl.core.memory import Memories, Memory, Notes, Offer
from dpmcl.core.model import Model, Theta, initial
from dpmcl.core.tree import at as of_replica
from dpmcl.core.tree import tree_map
from dpmcl.data.motion import Motion, motion_of
from dpmcl.data.sampling import Chunk, Supply, Weighing, chunk, weigh
from dpmcl.data.splits import Rows, Splits
from dpmcl.data.stream import Stream
from dpmcl.data.task_info import task_infos
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
_ROWS_AT_ONCE = 256  # whose notes are taken together


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
    if note and (line := noise(method, model.dtype)):
        note(line)
    run = _Run(method, model, stream, splits, tuple(seeds), engine, watched, progress, report, note)
    check_motion(method, stream, run.phases[0], watched.drift)
    score = _Score(run, evaluation or Evaluation())
    keeper = keeper or Keeper(Keeping())
    start = run.start(weights or seeds)
    if run.monitor:
        run.monitor.begin(start.theta)
    fresh = run.snapshot(Position(), start, run.empty_memory(start), score.values)
    here = keeper.load(fresh)
    if here is None:
        here = fresh
        score.take(run.evaluated(start), after=-1)
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
            state = run.begin(state, start, task)
            if method.stores == "before":
                held = run.store(held, state, task)
        for number, phase in enumerate(run.phases[task]):
            if number < first.phase:
                continue
            done = first.update if number == first.phase else 0
            for after, kept, at in run.phase(state, held, phase, (task, number), done):
                state, held = after, kept
                keeper.after_chunk(now(Position(task, number, at)))
        if method.stores == "after":
            held = run.store(held, state, task)
        state = run.end(state, task)
        score.take(run.evaluated(run.rehearsed(state, held, task)), after=task)
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
        self.tasks = task_infos(stream, splits)
        self.phases = [method.planned(model, task) for task in self.tasks]
        self.rehearsals = [tuple(method.evaluation_phases(model, task)) for task in self.tasks]
        _check_splits(method, [*self.phases, *self.rehearsals])
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
        first = self.tasks[0]
        state: State = self.engine.map(lambda one: self.method.start(one, first), theta)
        return state

    def begin(self, state: State, start: State, task: int) -> State:
        """Return the state with which a task begins."""
        method, schedule = self.method, self.method.scheduling
        settings = (method.restarts, method.reset_at_task, schedule, method.optional)
        if not any(settings):
            return state
        last = len(self.tasks) if schedule is not None and schedule.over == "run" else task + 1
        first = 0 if schedule is not None and schedule.over == "run" else task
        updates = self._updates(Position(last)) - self._updates(Position(first))
        option = torch.arange(len(method.optional), device=self.seed.device)
        key = keys.derive(self.seed[:, None], keys.Purpose.OPTION, task, option)
        begun: State = self.engine.map(
            lambda state, start, key: method.begin_task(state, start, updates, key),
            state,
            start,
            key,
        )
        return choose_state(self.alive, begun, state) if self.diverged else begun

    def end(self, state: State, task: int) -> State:
        """Return the state once a task's phases are over."""
        method, model, info = self.method, self.model, self.tasks[task]
        if not _has_own(method, "end_of_task"):
            return state
        ended: State = self.engine.map(lambda one: method.end_of_task(one, model, info), state)
        return choose_state(self.alive, ended, state) if self.diverged else ended

    def rehearsed(self, state: State, held: Memories, task: int) -> State:
        """Return a copy of the state after the method's phases before evaluation."""
        for number, phase in enumerate(self.rehearsals[task], start=len(self.phases[task])):
            self._count(state, held, phase, (task, number))
            for first in range(0, phase.updates, _UPDATES_AT_ONCE):
                steps = range(first, min(first + _UPDATES_AT_ONCE, phase.updates))
                drawn = self._chunk(held, phase, (task, number), steps)
                stream, dtype = self.stream, self.model.dtype
                state = self.engine.advance(phase.update, state, drawn, stream, dtype)
        return state

    def evaluated(self, state: State) -> State:
        """Return the state whose model is evaluated."""
        if not _has_own(self.method, "evaluated"):
            return state
        shown: State = self.engine.map(self.method.evaluated, state)
        return shown

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
        count = sum(phase.updates for phases in self.phases[:tasks] for phase in phases)
        if (number, update) == (0, 0):
            return count
        return count + sum(phase.updates for phase in self.phases[tasks][:number]) + update

    def empty_memory(self, start: State) -> Memories:
        """Return memories that hold nothing; start: gives the shapes of the notes."""
        one_row = self.seed[:, None] * 0
        notes = self._notes(start, Offer(one_row, one_row == 0))
        out = {}
        for name in self._kept:
            # Beyond the stream's rows of the split a longer memory would hold nothing more.
            capacity = min(self.method.memory, self.splits.named(name).row.shape[1])
            own = of_replica(notes, 0) if name == "train" else {}
            one = memory.empty(capacity, self.model.device, own)
            out[name] = tree_map(lambda leaf: leaf.expand(len(self.seeds), *leaf.shape), one)
        return out

    def store(self, held: Memories, state: State, task: int) -> Memories:
        """Return the memories after the task's rows were offered to them."""
        out = {}
        for name, one in held.items():
            offset = self.splits.named(name).offset
            item = torch.arange(int(offset.diff(dim=1).max()), device=offset.device)
            position = offset[:, task, None] + item
            present = position < offset[:, task + 1, None]
            key = keys.derive(self.seed, keys.Purpose.MEMORY, task, self._kept.index(name))
            out[name] = self._offered(name, one, state, Offer(position, present), key=key)
        return out

    def remembered(
        self, held: Memories, state: State, phase: Phase, drawn: Chunk, *, key: Tensor
    ) -> Memories:
        """Return the memories after the rows of a phase's update were offered to D_P.

        state: from before the update.
        """
        assert phase.remember is not None
        position, present = drawn.position[phase.remember], drawn.present[phase.remember]
        offer = Offer(position.flatten(1), present.flatten(1) > 0)
        return {**held, "train": self._offered("train", held["train"], state, offer, key=key)}

    def _offered(
        self, name: str, held: Memory, state: State, offer: Offer, *, key: Tensor
    ) -> Memory:
        """Return a split's memory after rows were offered; notes and policy are D_P's alone."""
        policy = self.method.policy
        if name == "train":
            offer = offer._replace(notes=self._notes(state, offer))
        else:
            policy = partial(memory.add, policy=self.method.memory_policy)
        after: Memory = torch.func.vmap(policy)(held, offer, key)
        return after

    def _notes(self, state: State, offer: Offer) -> Notes:
        """Return what the method keeps with training rows that are offered."""
        method, model, pool = self.method, self.model, self.splits.train
        if not _has_own(method, "notes"):
            return {}

        def notes(state: State, batch: Batch) -> Notes:
            return method.notes(model, state, batch)

        position = offer.position.clamp(max=pool.row.shape[1] - 1)
        row, task = pool.row.gather(1, position), pool.task.gather(1, position)
        blocks = []
        for first in range(0, row.shape[1], _ROWS_AT_ONCE):
            some = slice(first, first + _ROWS_AT_ONCE)
            batch = self.stream.batch(
                row[:, some], offer.present[:, some], task[:, some], model.dtype
            )
            blocks.append(self.engine.map(notes, state, batch))
        out: Notes = tree_map(lambda *parts: torch.cat(parts, 1), *blocks)
        return out

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
        motion = self.motion(place[0]) if moves else None
        supply = Supply(self.splits, held, self.seed, motion, self.weighing(place[0]))
        return chunk(
            phase.draws, supply, place, steps, update_keys=phase.keys, remember=phase.remember
        )

    def phase(
        self, state: State, held: Memories, phase: Phase, place: tuple[int, int], done: int
    ) -> Iterator[tuple[State, Memories, int]]:
        """The updates of a phase from `done` on: state, memories and updates after each chunk."""
        if done == 0:
            self._count(state, held, phase, place)
        while done < phase.updates:
            steps = range(done, self._stop(phase, place, done))
            if self.step_size.due(done, _UPDATES_AT_ONCE):
                motion = self.motion(place[0])
                state = self.step_size.informed(state, held, place, done, motion, self.alive)
            before, drawn = state, self._chunk(held, phase, place, steps)
            state = self._advance(state, phase, drawn, place, steps.start)
            if self.monitor and self.monitor.due((*place, done)):
                self._watch((*place, done), before, state, held)
            if phase.remember is not None:
                key = keys.derive(self.seed, keys.Purpose.MEMORY, *place, done + 1)
                held = self.remembered(held, before, phase, drawn, key=key)
            done = steps.stop
            self._done += len(steps)
            if self._progress:
                self._progress(self._done, self._total)
            yield state, held, done

    def _stop(self, phase: Phase, place: tuple[int, int], first: int) -> int:
        """Where the chunk that begins at `first` ends.

        An update that is watched, or whose rows enter the memory, is one of its own.
        """
        if phase.remember is not None:
            return first + 1
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
        self.work.gradient_evaluations += one.gradient_evaluations * phase.updates
        self.work.rows_backpropagated += one.rows_backpropagated * phase.updates


def _has_own(method: Method, name: str) -> bool:
    """Return True if a method overrides one of `Method`."""
    return getattr(type(method), name) is not getattr(Method, name)


def _check_splits(method: Method, tasks: Sequence[Sequence[Phase]]) -> None:
    """Raises SpecError for a method that trains on validation rows and does not say so."""
    if method.trains_on_validation:
        return
    for phases in tasks:
        for phase in phases:
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

    def take(self, state: State, after: int) -> None:
        run = self._run
        tasks = self._evaluation.tasks(after, len(run.stream.tasks))
        for name, rows in self._rows.items():
            found = evaluate(run.engine, run.model, state.theta, run.stream, rows, tasks)
            found[~run.alive] = torch.nan
            self.values[name][:, 1 + after] = found.cpu().numpy()

    def errors(self) -> dict[str, Errors]:
        def examples(rows: Rows) -> Any:
            return rows.offset.diff(dim=1).cpu().numpy()

        return {
            name: Errors(self._run.seeds, self.values[name], examples(rows))
            for name, rows in self._rows.items()
        }
