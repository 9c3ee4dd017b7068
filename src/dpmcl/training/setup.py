"""The setup of a job: what is fixed while one method is trained for a group of replicas."""

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from dpmcl.core.batch import Batch
from dpmcl.core.keys import Purpose
from dpmcl.core.memory import Memories
from dpmcl.core.model import Buffers, Model, Theta, initial_weights
from dpmcl.core.tree import tree_map
from dpmcl.data.augmentation import Augmentation, augmented
from dpmcl.data.motion import Motion, motion_of
from dpmcl.data.sampling import Draw, Supply, Weighing, draw_rows, task_weights
from dpmcl.data.splits import Splits
from dpmcl.data.stream import Stream
from dpmcl.data.task_info import TaskInfo, task_infos
from dpmcl.engine import Engine, Feed
from dpmcl.exceptions import printable
from dpmcl.methods._method import Batches, Method, Phase, State, Update, returned
from dpmcl.training.state import Position, RunState
from dpmcl.training.user_code import locating_errors

_LOG = logging.getLogger("dpmcl")


@dataclass(frozen=True, eq=False, kw_only=True)
class Setup:
    """One method on one stream for a group of seeds.

    Attributes:
        method: Hyper-parameters, and the phases of a task.
        model: The network and its cost, from `Method.modelled`.
        stream: Tasks over a pool of rows.
        splits: Training, validation and test rows of each replica.
        seeds: Seed of each replica.
        engine: Runs a function of one replica for all replicas.
        weights: Seeds of the initial weights; () for `seeds`.
        name: Name of the method in the spec; messages begin with it.
        infos: The `TaskInfo` of each task; () to derive them from the stream. A learner passes its
            own, since its stream holds only its memory and the newest rows.
    """

    method: Method
    model: Model
    stream: Stream
    splits: Splits
    seeds: tuple[int, ...]
    engine: Engine
    weights: tuple[int, ...] = ()
    name: str = ""
    infos: tuple[TaskInfo, ...] = ()
    _warned: set[str] = field(default_factory=set, init=False)

    @cached_property
    def seed(self) -> Tensor:
        """Return the seeds, int64 (replicas,)."""
        return torch.tensor(self.seeds, dtype=torch.int64, device=self.model.device)

    @property
    def method_name(self) -> str:
        """Return the name of the method, for messages."""
        return self.name or type(self.method).__name__

    @property
    def tasks(self) -> int:
        """Return the number of tasks."""
        return len(self.stream.tasks)

    @cached_property
    def task_infos(self) -> tuple[TaskInfo, ...]:
        """Return the `TaskInfo` of each task, which the method receives."""
        return self.infos or task_infos(self.stream, self.splits)

    @property
    def first_task(self) -> int:
        """Return the number of the stream's first task, from which keys of draws are derived."""
        return self.infos[0].number if self.infos else 0

    @cached_property
    def phases(self) -> tuple[tuple[Phase, ...], ...]:
        """Return the phases of each task."""
        with self.locating("`phases`", mapped=False):
            return tuple(self.method.planned(self.model, task) for task in self.task_infos)

    @cached_property
    def evaluation_phases(self) -> tuple[tuple[Phase, ...], ...]:
        """Return the phases that run on a copy of the state before each evaluation."""
        method, model = self.method, self.model
        with self.locating("`evaluation_phases`", mapped=False):
            return tuple(method.planned_evaluation(model, task) for task in self.task_infos)

    @cached_property
    def start(self) -> State:
        """Return the replicas' states before the first task."""
        method, first = self.method, self.task_infos[0]
        theta = initial_weights(self.model, self.weights or self.seeds)

        def start_state(theta: Theta) -> State:
            state = returned(method.start(theta, first), State, f"`start` of '{self.method_name}'")
            return state._replace(common=method.common(theta))

        with self.locating("`start`"):
            state: State = self.engine.map(start_state, theta)
        replicas = len(self.seeds)
        buffers: Buffers = tree_map(
            lambda leaf: leaf.expand(replicas, *leaf.shape).clone(), self.model.init_buffers()
        )
        return state._replace(buffers=buffers)

    def with_rows(self, stream: Stream, splits: Splits, infos: tuple[TaskInfo, ...]) -> "Setup":
        """Return a copy of the setup with other rows and the same initial states.

        Args:
            stream: Tasks over a pool of rows.
            splits: Rows of each replica.
            infos: The `TaskInfo` of each task.
        """
        return replace(self, stream=stream, splits=splits, infos=infos).with_start(self.start)

    def with_start(self, start: State) -> "Setup":
        """Return a copy of the setup with other initial states.

        Args:
            start: States before the first task, with a leading replica dimension.
        """
        copy = replace(self)
        copy.__dict__["start"] = start
        return copy

    def updates_before(self, position: Position) -> int:
        """Return the number of updates that each replica makes before a position.

        Args:
            position: A position in the run.
        """
        tasks, number, update = position
        count = sum(phase.updates for phases in self.phases[:tasks] for phase in phases)
        if number:
            count += sum(phase.updates for phase in self.phases[tasks][:number])
        return count + update

    def update(self, phase: Phase) -> Update:
        """Return a phase's update with augmentation of its batches and new running statistics.

        Each update that trains (`Phase.trains`) changes the running statistics once, by the rows of
        `Phase.steps_on` and with the parameters before the update, never while a method looks
        ahead.

        Args:
            phase: A phase of the run.
        """
        moves = self.start.buffers and phase.trains
        update = _with_statistics(self.model, phase) if moves else phase.update
        augmentations = self.method.augmenting
        return _with_augmentation(update, phase, augmentations) if augmentations else update

    def motion(self, task: int) -> Motion:
        """Return the motion dx of the rows of a task.

        Args:
            task: Number of the task.
        """
        cache: dict[int, Motion] = self.__dict__.setdefault("_motion", {})
        if task not in cache:
            cache.clear()  # earlier tasks are not asked for again
            cache[task] = motion_of(self.stream, self.splits, task, self.model.dtype)
        return cache[task]

    def weighing(self, task: int) -> Weighing | None:
        """Return the weights that gamma gives to the tasks seen; None if all are equal.

        Args:
            task: Number of the task.
        """
        first = self.first_task
        weights = task_weights(self.method.discounting, first + task, first + self.tasks)
        if weights is None:
            return None
        return Weighing(weights.to(self.model.device), self.method.discount_on)

    def feed(self, memories: Memories, phase: Phase, position: Position, stop: int) -> Feed:
        """Return the batches and keys of the updates from `position` to the one before `stop`.

        Args:
            memories: Memories from which rows are drawn, besides the splits.
            phase: The phase of the updates.
            position: Position of the first update.
            stop: Number, within the phase, of the update after the last one.
        """
        task, number, first = position
        moves = any(draw.moved is not None for draw in phase.draws.values())
        motion = self.motion(task) if moves else None
        draws = draw_rows(
            phase.draws,
            Supply(self.splits, memories, self.seed, motion, self.weighing(task), self.first_task),
            (task, number),
            range(first, stop),
            update_keys=phase.keys,
            remember=phase.remember,
        )
        return Feed(draws, self.stream, self.model.dtype)

    def probe(
        self, draws: Mapping[str, Draw], run: RunState, weighing: Weighing | None = None
    ) -> dict[str, Batch]:
        """Return batches of all replicas for measurements; they do not affect any other draw.

        Args:
            draws: The draws, by name.
            run: The state before an update.
            weighing: Weights that gamma gives to the tasks; None for equal weights.
        """
        task, number, update = run.position
        motion = self.motion(task)
        supply = Supply(self.splits, run.memories, self.seed, motion, weighing, self.first_task)
        steps = range(update, update + 1)
        drawn = draw_rows(draws, supply, (task, number), steps, purpose=Purpose.PROBE)
        return drawn.batches(self.stream, self.model.dtype, 0, slice(None))

    def locating(self, what: str, *, mapped: bool = True) -> AbstractContextManager[None]:
        """Return a block in which errors in the method's code name its line (`locating_errors`).

        Args:
            what: What the block runs, as in "The update".
            mapped: Whether the engine runs it for all replicas.
        """
        batched = mapped and self.engine.name == "batched"
        return locating_errors(f"{what} of '{self.method_name}'", batched=batched)

    def warn(self, message: str, *, once: str | None = None) -> None:
        """Log a warning that begins with the method's name.

        Args:
            message: Text of the warning.
            once: Topic that is logged once for all jobs of the method; None logs each time.
        """
        if once in self._warned:
            return
        if once is not None:
            self._warned.add(once)
        text = printable(f"{self.name}: {message}" if self.name else message)
        _LOG.warning(text, extra={"once": once and f"{self.name}: {once}"})


def _with_statistics(model: Model, phase: Phase) -> Update:
    """Return a phase's update that also updates the running statistics."""
    names = phase.steps_on or [name for name, draw in phase.draws.items() if draw.like is None]

    def update(state: State, batches: Batches, key: Tensor) -> State:
        after = phase.update(state, batches, key)
        rows = [batches[name] for name in names]
        w = torch.cat([batch.w.flatten() for batch in rows])
        x = torch.cat([batch.x.flatten(0, batch.w.dim() - 1) for batch in rows])
        buffers = model.holding(state.buffers).moved(state.theta, x, w, key[0])
        return after._replace(buffers=buffers)

    return update


def _with_augmentation(
    plain: Update, phase: Phase, augmentations: tuple[Augmentation, ...]
) -> Update:
    """Return an update that first augments the images of its batches."""
    # A draw that is like another has the same rows, so it gets the same random changes.
    numbers = {name: number for number, name in enumerate(phase.draws)}
    lanes = tuple((name, numbers[draw.like or name]) for name, draw in phase.draws.items())

    def update(state: State, batches: Batches, key: Tensor) -> State:
        changed = {
            name: batches[name]._replace(
                x=augmented(batches[name].x, augmentations, key[0], draw=number)
            )
            for name, number in lanes
        }
        return plain(state, changed, key)

    return update
