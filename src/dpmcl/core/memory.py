"""The task memory D_P, which is bounded and holds positions of a split's rows, not the rows.

The functions here are for one replica; the engine maps them. Their cost depends on the capacity of
the memory, not on the number of rows seen.
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
        position: Positions in the rows of a split, int64 (capacity,); only the first `filled` are
            valid.
        filled: Number of rows held, int64 ().
        seen: Number of rows offered so far, int64 ().
        notes: Tensors kept with the rows, by name, each (capacity, ...).
    """

    position: Tensor
    filled: Tensor
    seen: Tensor
    notes: Notes = {}  # noqa: RUF012 (never changed)


Memories = Mapping[str, Memory]
"""Memories by split: "train" is D_P; "validation" exists for methods that draw from it."""


class Offer(NamedTuple):
    """Rows offered to a memory.

    Args:
        position: Positions in the rows of the split, int64 (n,).
        present: Mask of the rows that are not padding, bool (n,).
        notes: Tensors that a method keeps with the rows, by name, each (n, ...).
    """

    position: Tensor
    present: Tensor
    notes: Notes = {}  # noqa: RUF012 (never changed)


def empty(capacity: int, device: torch.device | None = None, notes: Notes | None = None) -> Memory:
    """Return an empty memory.

    Args:
        capacity: Largest number of rows.
        device: Device of the memory.
        notes: Example notes by name, each (n, ...), for their shapes and types; None for no notes.
    """
    zero = torch.zeros((), dtype=torch.int64, device=device)
    position = torch.zeros(capacity, dtype=torch.int64, device=device)
    zeros = {k: note.new_zeros(capacity, *note.shape[1:]) for k, note in (notes or {}).items()}
    return Memory(position, zero, zero.clone(), zeros)


def add(memory: Memory, offer: Offer, key: Tensor, policy: Policy) -> Memory:
    """Offer rows to a memory, and return the memory after it.

    Args:
        memory: Memory before.
        offer: Rows offered; absent rows pad them to a fixed number n.
        key: Random key, int64 (2,).
        policy: "reservoir" (Vitter's algorithm R): all rows offered so far are held with the same
            probability. "resample": if not all fit, a random draw from the old memory and the new
            rows together, which favours the new rows.
    """
    if policy == "reservoir":
        return _reservoir(memory, offer, key)
    capacity, n = memory.position.shape[0], offer.position.shape[0]
    room = memory.filled + offer.present.sum() <= capacity
    order = torch.arange(capacity + n, device=key.device)  # used if there is room for all rows
    return keep(memory, offer, torch.where(room, order, keys.scores(key, capacity + n) >> 1))


def keep(memory: Memory, offer: Offer, order: Tensor) -> Memory:
    """Return the memory that keeps the first rows, in a given order, of its own and the offered.

    Args:
        memory: Memory before.
        offer: Rows offered.
        order: Sort key of each row, (capacity + n,), for the memory's slots and then the offered
            rows. The rows with the lowest keys are kept, but never empty slots or absent rows.
    """
    capacity = memory.position.shape[0]
    held = torch.arange(capacity, device=order.device) < memory.filled
    absent = ~torch.cat([held, offer.present])
    last = torch.inf if order.is_floating_point() else torch.iinfo(order.dtype).max
    selected = torch.argsort(torch.where(absent, last, order), stable=True)[:capacity]
    count = offer.present.sum()
    return Memory(
        torch.cat([memory.position, offer.position])[selected],
        (memory.filled + count).clamp(max=capacity),
        memory.seen + count,
        {
            name: torch.cat([note, offer.notes[name]])[selected]
            for name, note in memory.notes.items()
        },
    )


def _reservoir(memory: Memory, offer: Offer, key: Tensor) -> Memory:
    """Return the memory after algorithm R.

    Rows fill the empty slots first. A memory whose capacity has grown has some, however many rows
    it has seen.
    """
    capacity, n = memory.position.shape[0], offer.position.shape[0]
    item = torch.arange(n, device=key.device)
    earlier = offer.present.cumsum(0) - 1
    empty, rank = memory.filled + earlier, memory.seen + earlier
    slot = torch.where(empty < capacity, empty, keys.integers(key, (n,), rank + 1))
    # One by one, a later row would replace an earlier one in the same slot, so the last wins.
    slot = torch.where(offer.present & (slot < capacity), slot, capacity)
    no_winner = torch.full((capacity + 1,), -1, device=key.device)
    winner = no_winner.scatter_reduce(0, slot, item, "amax")[:capacity]

    def updated(new: Tensor, old: Tensor) -> Tensor:
        replaced = (winner >= 0).view(-1, *[1] * (old.dim() - 1))
        return torch.where(replaced, new[winner.clamp(min=0)], old)

    count = offer.present.sum()
    return Memory(
        updated(offer.position, memory.position),
        (memory.filled + count).clamp(max=capacity),
        memory.seen + count,
        {name: updated(offer.notes[name], note) for name, note in memory.notes.items()},
    )
