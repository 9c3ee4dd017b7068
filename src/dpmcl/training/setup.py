"""What stays the same while one method is trained for a group of replicas."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dpmcl.core import keys, memory
from dpmcl.core.batch import Batch
from dpmcl.core.memory import Memories, Memory
from dpmcl.core.model import Buffers, Model, initial
from dpmcl.core.tree import tree_map
from dpmcl.data.motion import Motion, motion_of
from dpmcl.data.sampling import Draw, Weighing, chunk, probe, weigh
from dpmcl.data.splits import Splits
from dpmcl.data.stream import Stream
from dpmcl.engine import Engine, Feed
from dpmcl.exceptions import SpecError, printable
from dpmcl.methods._method import Method, Phase, State, Update
from dpmcl.training.state import Position, RunState

_LOG = logging.getLogger("dpmcl")


@dataclass(frozen=True, eq=False, kw_only=True)
class Setup:
    """One method on one stream for a group of seeds.

    Attributes:
        method: Hyper-parameters, and the phases of a task.
        model: The network and its cost, as `Method.prepare` returns it.
        stream: Tasks over a pool of rows.
        splits: Training, validation and test rows of each replica.
        seeds: One for each replica.
        engine: Runs functions of one replica for all of them.
        weights: Seeds of the initial weights; `seeds` where they are not fixed by the spec.
        name: Of the method in the spec; messages begin with it.
    """

    method: Method
    model: Model
    stream: Stream
    splits: Splits
    seeds: tuple[int, ...]
    engine: Engine
    weights: tuple[int, ...] = ()
    name: str = ""

    def __post_init__(self) -> None:
        _check_splits(self)

    @cached_property
    def seed(self) -> Tensor:
        """Return the seeds, int64 (replicas,)."""
        return torch.tensor(self.seeds, dtype=torch.int64, device=self.model.device)

    @cached_property
    def start(self) -> State:
        """Return the replicas' states before the first task."""
        theta = initial(self.model, self.weights or self.seeds)
        state: State = self.engine.map(self.method.start, theta)
        replicas = len(self.seeds)
        buffers: Buffers = tree_map(
            lambda leaf: leaf.expand(replicas, *leaf.shape).clone(), self.model.init_buffers()
        )
        return state._replace(buffers=buffers)

    @property
    def tasks(self) -> int:
        """Return the number of tasks."""
        return len(self.stream.tasks)

    def phases(self, task: int) -> Sequence[Phase]:
        """Return the phases of a task."""
        return self.method.phases(self.model, task)

    def update(self, phase: Phase) -> Update:
        """Return a phase's update, which also moves the network's running statistics.

        They move once, at the parameters before the update, by the rows of its real step: never
        while a method looks ahead.
        """
        if not self.start.buffers:
            return phase.update
        return _moving(self.model, phase)

    def updates_before(self, position: Position) -> int:
        """Return how many updates each replica makes before a position."""
        tasks, number, update = position
        count = sum(phase.updates for task in range(tasks) for phase in self.phases(task))
        if number:
            count += sum(phase.updates for phase in self.phases(tasks)[:number])
        return count + update

    def motion(self, task: int) -> Motion:
        """Return where rows go at a task."""
        known: dict[int, Motion] = self.__dict__.setdefault("_motion", {})
        if task not in known:
            known.clear()  # only the newest task's is of use
            known[task] = motion_of(self.stream, self.splits, task, self.model.dtype)
        return known[task]

    def weighing(self, task: int) -> Weighing | None:
        """Return what gamma makes of the tasks seen; None where all weigh the same."""
        weights = weigh(self.method.discounting, task, self.tasks)
        if weights is None:
            return None
        return Weighing(weights.to(self.model.device), self.method.discount_on)

    def feed(self, memories: Memories, phase: Phase, position: Position, stop: int) -> Feed:
        """Return the batches and keys of the updates from `position` to the one before `stop`."""
        moves = any(draw.moved is not None for draw in phase.draws.values())
        draws = chunk(
            phase.draws,
            self.splits,
            memories,
            self.seed,
            position[:2],
            range(position.update, stop),
            phase.keys,
            motion=self.motion(position.task) if moves else None,
            weighing=self.weighing(position.task),
        )
        return Feed(draws, self.stream, self.model.dtype)

    def probe(
        self, draws: Mapping[str, Draw], run: RunState, weighing: Weighing | None = None
    ) -> dict[str, Batch]:
        """Return batches on which to look at a run, all replicas; looking moves no other draw."""
        drawn = probe(
            draws,
            self.splits,
            run.memories,
            self.seed,
            run.position[:2],
            run.position.update,
            self.motion(run.position.task),
            weighing,
        )
        return drawn.batches(self.stream, self.model.dtype, 0, slice(None))

    def empty_memories(self) -> Memories:
        """Return the memories before the first task."""
        return {name: self._empty(name) for name in self._remembered}

    def remember(self, memories: Memories, task: int) -> Memories:
        """Return the memories after a task's rows were offered to them."""
        return {name: self._with_rows(name, one, task) for name, one in memories.items()}

    @property
    def _remembered(self) -> tuple[str, ...]:
        return ("train", "validation") if self.method.trains_on_validation else ("train",)

    def _empty(self, name: str) -> Memory:
        # Beyond the stream's rows of the split a longer memory would hold nothing more.
        capacity = min(self.method.memory, self.splits.named(name).row.shape[1])
        one = memory.empty(capacity, self.model.device)
        return Memory(*(leaf.expand(len(self.seeds), *leaf.shape) for leaf in one))

    def _with_rows(self, name: str, held: Memory, task: int) -> Memory:
        offset = self.splits.named(name).offset
        width = int(offset.diff(dim=1).max())
        key = keys.derive(self.seed, keys.Purpose.MEMORY, task, self._remembered.index(name))

        def add(one: Memory, start: Tensor, count: Tensor, key: Tensor) -> Memory:
            return memory.add(one, start, count, width, key, self.method.memory_policy)

        count = offset[:, task + 1] - offset[:, task]
        after: Memory = torch.func.vmap(add)(held, offset[:, task], count, key)
        return after

    def say(self, line: str) -> None:
        """Log what a user should know while the method is trained."""
        _LOG.warning(printable(f"{self.name}: {line}" if self.name else line))


def _moving(model: Model, phase: Phase) -> Update:
    """Return an update after which the running statistics have moved."""
    names = phase.steps_on or [name for name, draw in phase.draws.items() if draw.like is None]

    def update(state: State, batches: Mapping[str, Batch], key: Tensor) -> State:
        after = phase.update(state, batches, key)
        rows = [batches[name] for name in names]
        w = torch.cat([batch.w.flatten() for batch in rows])
        x = torch.cat([batch.x.flatten(0, batch.w.dim() - 1) for batch in rows])
        moved = model.holding(state.buffers).moved(state.theta, x, w, key[0])
        return after._replace(buffers=moved)

    return update


def _check_splits(setup: Setup) -> None:
    """Raise SpecError for a method that trains on validation rows and does not say so."""
    if setup.method.trains_on_validation:
        return
    for task in range(setup.tasks):
        for phase in setup.phases(task):
            for name, draw in phase.draws.items():
                if draw.split == "validation":
                    raise SpecError(
                        f"Draw '{name}' of phase '{phase.name}' has validation rows, which other "
                        "methods never train on; set trains_on_validation = True in "
                        f"{type(setup.method).__name__}, so that tables say so."
                    )
