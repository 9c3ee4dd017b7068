"""What an update draws: which rows, from where, and how many batches of them.

The draws of many replicas and steps are made at once; each is a function of its key alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from dpmcl import keys, memory
from dpmcl.batch import Batch
from dpmcl.exceptions import SpecError
from dpmcl.memory import Memory
from dpmcl.splits import Splits
from dpmcl.stream import Stream
from dpmcl.tree import tree_map

Source = Literal["new", "memory", "all"]


@dataclass(frozen=True)
class Draw:
    """One named draw of an update: a batch, or a block of batches.

    source: "new", the new task's rows; "memory", D_P; "all", every row of the tasks seen so far.
    batch: rows a batch, drawn with replacement. block: None for one batch (batch, ...); k for a
    block of k batches (k, batch, ...), so that an inner loop can live inside one update.
    split: "train", or "validation" for the outer loops of meta-learning methods.
    """

    source: Source
    batch: int
    block: int | None = None
    split: Literal["train", "validation"] = "train"

    def __post_init__(self) -> None:
        if self.source == "memory" and self.split != "train":
            raise SpecError(f"A memory holds training rows, got split = '{self.split}'.")


class Chunk(NamedTuple):
    """The draws of a run of updates, all replicas: what an engine consumes.

    row, task: int64 and present: bool, each a dict by draw name of (replicas, steps, [block],
    batch); key: int64 (replicas, steps, keys, 2), the update's own random keys.
    """

    row: dict[str, Tensor]
    present: dict[str, Tensor]
    task: dict[str, Tensor]
    key: Tensor

    @property
    def steps(self) -> int:
        """How many updates the chunk feeds."""
        return self.key.shape[1]

    def only(self, step: int) -> "Chunk":
        """The draws of one of the steps."""
        return Chunk(*tree_map(lambda leaf: leaf[:, step : step + 1], tuple(self)))

    def batches(
        self, stream: Stream, dtype: torch.dtype, step: int, replica: int | slice
    ) -> dict[str, Batch]:
        """The batches of one step, for one replica or (slice) for all, replicas first."""
        return {
            name: stream.batch(
                self.row[name][replica, step],
                self.present[name][replica, step],
                self.task[name][replica, step],
                dtype,
                replica,
            )
            for name in self.row
        }


def chunk(
    draws: Mapping[str, Draw],
    splits: Splits,
    held: Memory,
    seed: Tensor,
    place: tuple[int, int],
    steps: range,
    update_keys: int,
) -> Chunk:
    """The draws of some steps of a phase.

    held: memory with a leading replica dimension. seed: int64 (replicas,).
    place: (task, phase). steps: the updates of the phase to draw for.
    update_keys: how many keys of its own each update gets.
    """
    task, phase = place
    step = torch.arange(steps.start, steps.stop, device=seed.device)
    key = keys.derive(seed[:, None], keys.Purpose.BATCH, task, phase, step)
    rows, present, tasks = {}, {}, {}
    for lane, (name, draw) in enumerate(draws.items()):
        pool = splits.named(draw.split)
        n = draw.batch * (draw.block or 1)
        position, there = _positions(draw.source, pool.offset, held, key, n, task, lane)
        index = position.flatten(1)
        shape = (draw.batch,) if draw.block is None else (draw.block, draw.batch)
        rows[name] = pool.row.gather(1, index).view_as(position).unflatten(-1, shape)
        tasks[name] = pool.task.gather(1, index).view_as(position).unflatten(-1, shape)
        present[name] = there.unflatten(-1, shape)
    number = step[:, None] * update_keys + torch.arange(update_keys, device=seed.device)
    own = keys.derive(seed[:, None, None], keys.Purpose.DROPOUT, task, phase, number)
    return Chunk(rows, present, tasks, own)


def _positions(
    source: Source, offset: Tensor, held: Memory, key: Tensor, n: int, task: int, lane: int
) -> tuple[Tensor, Tensor]:
    """Positions in the split's rows and whether they are there: (replicas, steps, n) each."""
    if source == "memory":
        drawn = torch.func.vmap(
            lambda one, own: torch.func.vmap(lambda k: memory.draw(one, k, n, lane))(own)
        )(held, key)
        position: Tensor
        position, there = drawn
        return position, there
    start = offset[:, task] if source == "new" else torch.zeros_like(offset[:, 0])
    count = (offset[:, task + 1] - start)[:, None, None]
    position = start[:, None, None] + keys.integers(key, (n,), count, lane)
    return position, torch.ones_like(position, dtype=torch.bool)
