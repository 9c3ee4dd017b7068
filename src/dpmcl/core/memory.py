"""The task memory D_P: bounded, holding positions of a split's rows, never the rows themselves.

Functions of one replica; the engine maps them. A memory's cost depends on its capacity, not on
how much was seen.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from dpmcl.core import keys

Policy = Literal["reservoir", "resample"]
Notes = Mapping[str, Tensor]


class Memory(NamedTuple):
    """D_P of one replica, or its reservoir of validation rows.

    Args:
        position: Positions in the rows of a split, int64 (capacity,); the first `filled` count.
        filled: How many rows are held, int64 ().
        seen: How many rows were ever offered, int64 ().
        notes: Tensors kept with the rows, by name, each (capacity, ...).
    """

    position: Tensor
    filled: Tensor
    seen: Tensor
    notes: Notes = {}  # noqa: RUF012 (never changed)


Memories = Mapping[str, Memory]
"""By split: "train" is D_P; "validation" is there for the methods that draw from it."""


class Offer(NamedTuple):
    """Rows offered to a memory.

    Args:
        position: Their positions in the rows of the split, int64 (n,).
        present: Which of them there are, bool (n,).
        notes: What a method keeps with each, by name, each (n, ...).
    """

    position: Tensor
    present: Tensor
    notes: Notes = {}  # noqa: RUF012 (never changed)


def empty(capacity: int, device: torch.device | None = None, notes: Notes | None = None) -> Memory:
    """Return a memory that holds nothing.

    Args:
        capacity: Length of D_P, in rows.
        device: Where it is kept.
        notes: Notes of some rows, (n, ...), whose shapes and types the memory's notes have.
    """
    zero = torch.zeros((), dtype=torch.int64, device=device)
    position = torch.zeros(capacity, dtype=torch.int64, device=device)
    kept = {name: note.new_zeros(capacity, *note.shape[1:]) for name, note in (notes or {}).items()}
    return Memory(position, zero, zero.clone(), kept)


def add(memory: Memory, offer: Offer, key: Tensor, policy: Policy) -> Memory:
    """Return the memory after some rows were offered to it.

    Args:
        memory: The memory before.
        offer: The rows; their number n is fixed, absent ones pad it.
        key: Random key, int64 (2,).
        policy: "reservoir" (Vitter's algorithm R): every row ever offered is held with the same
            probability. "resample": once full, a random draw from the old memory and the new rows
            together, which favours the new rows.
    """
    if policy == "reservoir":
        return _reservoir(memory, offer, key)
    capacity, n = memory.position.shape[0], offer.position.shape[0]
    room = memory.filled + offer.present.sum() <= capacity
    order = torch.arange(capacity + n, device=key.device)  # with room for all, rows keep it
    return keep(memory, offer, torch.where(room, order, keys.scores(key, capacity + n) >> 1))


def keep(memory: Memory, offer: Offer, order: Tensor) -> Memory:
    """Return the memory that keeps, of its rows and the offered ones, the first in an order.

    Args:
        memory: The memory before.
        offer: The rows offered.
        order: Sort key of each row, (capacity + n,): the memory's slots, then the offered rows.
            Those with the lowest are kept; slots that are not filled, and absent rows, never are.
    """
    capacity = memory.position.shape[0]
    held = torch.arange(capacity, device=order.device) < memory.filled
    absent = ~torch.cat([held, offer.present])
    last = torch.inf if order.is_floating_point() else torch.iinfo(order.dtype).max
    kept = torch.argsort(torch.where(absent, last, order), stable=True)[:capacity]
    count = offer.present.sum()
    return Memory(
        torch.cat([memory.position, offer.position])[kept],
        (memory.filled + count).clamp(max=capacity),
        memory.seen + count,
        {name: torch.cat([note, offer.notes[name]])[kept] for name, note in memory.notes.items()},
    )


def draw(memory: Memory, key: Tensor, n: int, lane: int = 0) -> tuple[Tensor, Tensor]:
    """Draw slots of a memory with replacement.

    Args:
        memory: The memory.
        key: Random key, int64 (2,).
        n: How many.
        lane: Tells several draws under one key apart.

    Returns:
        The slots, int64 (n,), and whether there is a row in them, bool (n,): none in an empty one.
    """
    slot = keys.integers(key, (n,), memory.filled, lane)
    return slot, (memory.filled > 0).expand(n)


def _reservoir(memory: Memory, offer: Offer, key: Tensor) -> Memory:
    """Return the memory after algorithm R."""
    capacity, n = memory.position.shape[0], offer.position.shape[0]
    item = torch.arange(n, device=key.device)
    rank = memory.seen + offer.present.cumsum(0) - 1
    slot = torch.where(rank < capacity, rank, keys.integers(key, (n,), rank + 1))
    # Taken one after another, a later row replaces an earlier one in the same slot: the last wins.
    slot = torch.where(offer.present & (slot < capacity), slot, capacity)
    nobody = torch.full((capacity + 1,), -1, device=key.device)
    winner = nobody.scatter_reduce(0, slot, item, "amax")[:capacity]

    def written(new: Tensor, old: Tensor) -> Tensor:
        here = (winner >= 0).view(-1, *[1] * (old.dim() - 1))
        return torch.where(here, new[winner.clamp(min=0)], old)

    seen = memory.seen + offer.present.sum()
    return Memory(
        written(offer.position, memory.position),
        seen.clamp(max=capacity),
        seen,
        {name: written(offer.notes[name], note) for name, note in memory.notes.items()},
    )
