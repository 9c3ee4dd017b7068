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


class Memory(NamedTuple):
    """D_P of one replica, or its reservoir of validation rows.

    position: int64 (capacity,), positions in the rows of a split; the first `filled` count.
    filled: int64 (), how many are held. seen: int64 (), how many were ever offered.
    """

    position: Tensor
    filled: Tensor
    seen: Tensor


Memories = Mapping[str, Memory]
"""By split: "train" is D_P; "validation" is there for the methods that draw from it."""


def empty(capacity: int, device: torch.device | None = None) -> Memory:
    """A memory that holds nothing. capacity: the length of D_P in rows."""
    zero = torch.zeros((), dtype=torch.int64, device=device)
    return Memory(torch.zeros(capacity, dtype=torch.int64, device=device), zero, zero.clone())


def add(memory: Memory, start: Tensor, count: Tensor, width: int, key: Tensor, policy: Policy
        ) -> Memory:  # fmt: skip
    """The memory after the rows start .. start+count-1 were offered to it.

    start, count: int64 (). width: the most rows that any task offers (fixes the shapes).
    `reservoir` (Vitter's algorithm R): every row ever offered is held with the same probability.
    `resample`: once full, a random draw from the old memory and the new rows together, which
    favours the new rows.
    """
    item = torch.arange(width, device=memory.position.device)
    rule = _reservoir if policy == "reservoir" else _resample
    return rule(memory, start + item, item < count, count, key)


def draw(memory: Memory, key: Tensor, n: int, lane: int = 0) -> tuple[Tensor, Tensor]:
    """n positions drawn with replacement, and their weights: 1, or 0 if the memory is empty."""
    slot = keys.integers(key, (n,), memory.filled, lane)
    present = (memory.filled > 0).expand(n)
    return memory.position[slot], present


def _reservoir(memory: Memory, rows: Tensor, present: Tensor, count: Tensor, key: Tensor) -> Memory:
    capacity, width = memory.position.shape[0], rows.shape[0]
    item = torch.arange(width, device=rows.device)
    rank = memory.seen + item
    slot = torch.where(rank < capacity, rank, keys.integers(key, (width,), rank + 1))
    # Taken one after another, a later row replaces an earlier one in the same slot: the last wins.
    slot = torch.where(present & (slot < capacity), slot, capacity)
    nobody = torch.full((capacity + 1,), -1, device=rows.device)
    winner = nobody.scatter_reduce(0, slot, item, "amax")[:capacity]
    position = torch.where(winner >= 0, rows[winner.clamp(min=0)], memory.position)
    seen = memory.seen + count
    return Memory(position, seen.clamp(max=capacity), seen)


def _resample(memory: Memory, rows: Tensor, present: Tensor, count: Tensor, key: Tensor) -> Memory:
    capacity, width = memory.position.shape[0], rows.shape[0]
    held = torch.arange(capacity, device=rows.device) < memory.filled
    candidates = torch.cat([memory.position, rows])
    absent = ~torch.cat([held, present])
    room = memory.filled + count <= capacity
    # With room for all, rows keep their order; without, a random order decides who stays.
    order = torch.arange(capacity + width, device=rows.device)
    order = torch.where(room, order, keys.scores(key, capacity + width) >> 1)
    order = torch.where(absent, torch.iinfo(torch.int64).max, order)
    kept = torch.argsort(order, stable=True)[:capacity]
    filled = (memory.filled + count).clamp(max=capacity)
    return Memory(candidates[kept], filled, memory.seen + count)
