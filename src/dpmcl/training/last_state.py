"""The last state of a replica as a file, from which a learner resumes without the data."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from dpmcl.core.memory import Memories, Memory
from dpmcl.core.tree import contiguous_copies, named_leaves, tree_map
from dpmcl.data.splits import Splits
from dpmcl.data.stream import Stream
from dpmcl.data.task_info import first_tasks
from dpmcl.methods._method import State
from dpmcl.training.bytes_kept import row_bytes
from dpmcl.training.setup import Setup
from dpmcl.training.state import RunState

MAX_BYTES = 4 * 2**20
"""Largest size of the memories' rows that are stored with a replica's last state, in bytes: 5,000
images of MNIST, or 1,000 of CIFAR10. Rows of larger memories are read again from the data."""


@dataclass(frozen=True, eq=False)
class HeldRows:
    """Rows that memories hold.

    Attributes:
        x: Inputs (rows, ...), as the stream stores them.
        y: Targets.
        task: Number of the task of each row, int64 (rows,).
        row: Index of the row in each slot, int64 (replicas, capacity), by name of the memory.
    """

    x: Tensor
    y: Tensor
    task: Tensor
    row: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def without_rows(self) -> "HeldRows":
        """Return an empty `HeldRows` with tensors of the same types."""
        return HeldRows(self.x[:0], self.y[:0], self.task[:0])

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by their names in a file."""
        parts = {"x": self.x, "y": self.y, "task": self.task, "row": dict(self.row)}
        return named_leaves(parts, "held")


@dataclass(frozen=True, eq=False, kw_only=True)
class LastState:
    """State of replicas at the end of a run, and what a learner needs to resume from it.

    Attributes:
        setup: Setup with the method, model, scale and initial states.
        run: State with the replicas and memories.
        held: The rows that the memories hold.
        evaluated: The states that predict (`evaluation.evaluated_states`).
        first_task: Number of the task in which the class of each output first arrived, int64
            (outputs,); -1 if it has not.
    """

    setup: Setup
    run: RunState
    held: HeldRows
    evaluated: State
    first_task: Tensor


def held_rows(stream: Stream, splits: Splits, memories: Memories) -> HeldRows:
    """Return the rows that memories hold.

    Args:
        stream: The stream, whose pool has the rows.
        splits: Rows of each replica.
        memories: Memories of all replicas, whose positions are those of the splits.
    """
    rows = {}
    for name, memory in memories.items():
        pool = splits.named(name)
        row = pool.row.gather(1, memory.position.clamp(max=pool.row.shape[1] - 1))
        filled = torch.arange(row.shape[1], device=row.device) < memory.filled[:, None]
        rows[name] = torch.where(filled, row, -1)
    held = torch.cat([row.flatten() for row in rows.values()]).unique()
    held = held[held >= 0]
    task = torch.zeros(len(stream.x), dtype=torch.int64, device=held.device)
    for part in (splits.train, splits.validation):
        task[part.row] = part.task
    indices = {name: torch.searchsorted(held, row.clamp(min=0)) for name, row in rows.items()}
    slots = {name: index.clamp(max=max(len(held) - 1, 0)) for name, index in indices.items()}
    return HeldRows(stream.x[held].clone(), stream.y[held].clone(), task[held], slots)


def with_slot_positions(memories: Memories) -> Memories:
    """Return memories whose positions are the numbers of their slots, as in `HeldRows.row`.

    Args:
        memories: Memories of all replicas.
    """
    return {name: _at_slots(memory) for name, memory in memories.items()}


def _at_slots(memory: Memory) -> Memory:
    slot = torch.arange(memory.position.shape[1], device=memory.position.device)
    return memory._replace(position=slot.expand_as(memory.position))


def tensors_of(last: LastState) -> dict[str, Tensor]:
    """Return all tensors from which a learner resumes, by their names in a file.

    Args:
        last: The last state.
    """
    setup, run = last.setup, last.run
    out = named_leaves(run.replicas, "state") | {"first_task": last.first_task}
    if last.evaluated is not run.replicas:
        out |= named_leaves(last.evaluated, "shown")
    if setup.method.restarts:
        out |= named_leaves(setup.start, "start")
    if setup.stream.scale is not None:
        out |= named_leaves(setup.stream.scale, "scale") | {"scaled": setup.stream.scaled}
    for name, memory in run.memories.items():
        out |= named_leaves(dict(memory._asdict()), f"memory.{name}")
    return out | last.held.tensors


def last_states(setup: Setup, run: RunState, evaluated: State) -> tuple[bytes, ...]:
    """Return the last state of each replica as the content of a safetensors file.

    Args:
        setup: Setup of the run.
        run: State at the end of the run.
        evaluated: The states that predict.

    Returns:
        Bytes for each replica; () for a stream whose tasks transform their inputs (`Stream.view`),
        which a learner cannot do.
    """
    if setup.stream.view is not None:
        return ()
    rows = torch.tensor(setup.task_infos[-1].rows_seen)
    lasts = [_replica_state(setup, run, evaluated, replica) for replica in range(len(setup.seeds))]
    return tuple(save(contiguous_copies({**tensors_of(last), "rows": rows})) for last in lasts)


def _replica_state(setup: Setup, run: RunState, evaluated: State, replica: int) -> LastState:
    """Return the last state of one replica."""
    only = slice(replica, replica + 1)

    def select(tree: Any) -> Any:
        return tree_map(lambda leaf: leaf[only], tree)

    splits = Splits(*(select(setup.splits.named(name)) for name in ("train", "validation", "test")))
    scale = setup.stream.scale
    stream = replace(setup.stream, scale=None if scale is None else select(scale))
    memories = {}
    for name, memory in run.memories.items():
        slots = int(memory.filled[replica])
        memories[name] = select(memory)._replace(
            position=memory.position[only, :slots],
            notes={key: note[only, :slots] for key, note in memory.notes.items()},
        )
    distinct = sum(len(memory.position.unique()) for memory in memories.values())
    held = HeldRows(stream.x[:0], stream.y[:0], setup.seed[:0])
    if distinct * row_bytes(setup) <= MAX_BYTES:
        held, memories = held_rows(stream, splits, memories), dict(with_slot_positions(memories))
    replicas = select(run.replicas)
    replica_setup = replace(setup, seeds=setup.seeds[only], stream=stream, splits=splits)
    return LastState(
        setup=replica_setup.with_start(select(setup.start)),
        run=replace(run, replicas=replicas, memories=memories),
        held=held,
        evaluated=replicas if evaluated is run.replicas else select(evaluated),
        first_task=first_tasks(setup.task_infos),
    )
