"""Offer rows of a task or of an update to the memories, with the method's notes on the rows."""

from functools import partial

import torch
from torch import Tensor

from dpmcl.core import keys, memory
from dpmcl.core.batch import Batch
from dpmcl.core.gradients import Work, counting
from dpmcl.core.memory import Memories, Memory, Notes, Offer
from dpmcl.core.tree import at, tree_map
from dpmcl.data.sampling import Drawn
from dpmcl.methods._method import Method, Phase, State, returned
from dpmcl.training.setup import Setup
from dpmcl.training.state import RunState

_ROWS_AT_ONCE = 256  # rows of a replica whose notes are computed together


def empty_memories(setup: Setup, capacity: int | None = None) -> Memories:
    """Return the memories before the first task, with a reservoir of validation rows if needed.

    Args:
        setup: Setup of the run.
        capacity: Capacity of each memory in rows; None for that of the method, or the number of
            rows of the stream if the memory can never hold more.
    """
    one_row = setup.seed[:, None] * 0
    notes = _notes(setup, setup.start, Offer(one_row, one_row == 0))  # for their shapes
    # Rows that enter during a task may enter again each time that they are drawn.
    repeated = any(phase.remember for phases in setup.phases for phase in phases)
    memories = {}
    for name in _splits(setup):
        rows = setup.splits.named(name).row.shape[1]
        limit = setup.method.memory if repeated else min(setup.method.memory, rows)
        example = at(notes, 0) if name == "train" else {}
        empty = memory.empty(capacity or limit, setup.model.device, example)
        memories[name] = tree_map(lambda leaf: leaf.expand(len(setup.seeds), *leaf.shape), empty)
    return memories


def offer_task_rows(setup: Setup, run: RunState, task: int) -> Memories:
    """Return the memories after a task's rows were offered to them.

    Args:
        setup: Setup of the run.
        run: State of the run, with which the method computes its notes.
        task: Number of the task.
    """
    memories = {}
    for lane, (name, held) in enumerate(run.memories.items()):
        offset = setup.splits.named(name).offset
        item = torch.arange(int(offset.diff(dim=1)[:, task].max()), device=offset.device)
        position = offset[:, task, None] + item
        present = position < offset[:, task + 1, None]
        key = keys.derive(setup.seed, keys.Purpose.MEMORY, setup.first_task + task, lane)
        offer = Offer(position, present)
        memories[name] = _offer_rows(setup, name, held, run.replicas, offer=offer, key=key)
    return memories


def offer_update_rows(setup: Setup, run: RunState, phase: Phase, drawn: Drawn) -> Memories:
    """Return the memories after the rows of an update were offered to D_P.

    Args:
        setup: Setup of the run.
        run: State of the run before the update.
        phase: Phase of the update.
        drawn: Rows that the update drew.
    """
    if phase.remember is None:
        return run.memories
    task, number, update = run.position
    task += setup.first_task
    key = keys.derive(setup.seed, keys.Purpose.MEMORY, task, number, step=update + 1)
    position, present = drawn.position[phase.remember], drawn.present[phase.remember]
    offer = Offer(position.flatten(1), present.flatten(1) > 0)
    held = run.memories["train"]
    return {
        **run.memories,
        "train": _offer_rows(setup, "train", held, run.replicas, offer=offer, key=key),
    }


def notes_work(setup: Setup, run: RunState, rows: int) -> Work:
    """Return the work of computing the notes of rows, counted on one row of one replica.

    Args:
        setup: Setup of the run.
        run: A state of the run.
        rows: Number of rows.
    """
    if not overrides(setup.method, "notes"):
        return Work()
    row = setup.splits.train.row[0, :1]
    with counting() as row_work:
        state: State = at(run.replicas, 0)
        model = setup.model.holding(state.buffers)
        batch = setup.stream.batch(row, row >= 0, row * 0, model.dtype, replica=0)
        setup.method.notes(model, state, batch)
    return row_work.times(rows)


def overrides(method: Method, name: str) -> bool:
    """Return True if a method's class overrides an attribute of `Method`.

    Args:
        method: The method.
        name: Name of the attribute, as in "notes".
    """
    return getattr(type(method), name) is not getattr(Method, name)


def _splits(setup: Setup) -> tuple[str, ...]:
    return ("train", "validation") if setup.method.trains_on_validation else ("train",)


def _offer_rows(
    setup: Setup, name: str, held: Memory, state: State, *, offer: Offer, key: Tensor
) -> Memory:
    """Return a split's memory after an offer; the method's notes and policy are for D_P only."""
    policy = setup.method.policy
    if name == "train":
        offer = offer._replace(notes=_notes(setup, state, offer))
    else:
        policy = partial(memory.add, policy=setup.method.memory_policy)
    what = f"`policy` of '{setup.method_name}'"

    def added(held: Memory, offer: Offer, key: Tensor) -> Memory:
        return returned(policy(held, offer, key), Memory, what)

    with setup.locating("`policy`", mapped=False):
        after: Memory = torch.func.vmap(added)(held, offer, key)
    return after


def _notes(setup: Setup, state: State, offer: Offer) -> Notes:
    """Return the method's notes on the training rows of an offer."""
    method, model, pool = setup.method, setup.model, setup.splits.train
    if not overrides(method, "notes"):
        return {}

    def notes(state: State, batch: Batch) -> Notes:
        made = method.notes(model.holding(state.buffers), state, batch)
        return returned(made, dict, f"`notes` of '{setup.method_name}'")

    position = offer.position.clamp(max=pool.row.shape[1] - 1)
    row, task = pool.row.gather(1, position), pool.task.gather(1, position)
    blocks = []
    for first in range(0, row.shape[1], _ROWS_AT_ONCE):
        part = slice(first, first + _ROWS_AT_ONCE)
        batch = setup.stream.batch(row[:, part], offer.present[:, part], task[:, part], model.dtype)
        with setup.locating("`notes`"):
            blocks.append(setup.engine.map(notes, state, batch))
    return tree_map(lambda *parts: torch.cat(parts, 1), *blocks)
