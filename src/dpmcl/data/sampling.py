"""What an update draws: which rows, from where, and how many batches of them.

The draws of many replicas and steps are made at once; each is a function of its key alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from dpmcl.core import keys, memory
from dpmcl.core.batch import Batch
from dpmcl.core.memory import Memories
from dpmcl.core.tree import tree_map
from dpmcl.data.motion import Motion
from dpmcl.data.splits import Rows, Splits
from dpmcl.data.stream import Stream
from dpmcl.exceptions import SpecError
from dpmcl.theory.discount import Constant, Discount, gamma

Source = Literal["new", "memory", "all", "earlier"]
Moved = Literal["exact", "estimated"]
Shift = tuple[Tensor, Tensor]

_MOST = 2**31 - 1  # below it, integers are drawn exactly


@dataclass(frozen=True)
class Draw:
    """One named draw of an update: a batch, or a block of batches.

    source: "new", the new task's rows; "memory", D_P, or for validation rows a reservoir of their
    own, as long as D_P; "all", every row of the tasks seen so far; "earlier", every row of the
    tasks before the new one.
    batch: rows a batch, drawn with replacement. block: None for one batch (batch, ...); k for a
    block of k batches (k, batch, ...), so that an inner loop can live inside one update.
    split: "train", or "validation" for the outer loops of meta-learning methods
    (`Method.trains_on_validation`).
    like: another draw's name, whose rows these are. moved: those rows once the next task has come:
    "exact" by the stream's dynamics, "estimated" by what the means moved since the last task.
    """

    source: Source
    batch: int
    block: int | None = None
    split: Literal["train", "validation"] = "train"
    like: str | None = None
    moved: Moved | None = None


class Weighing(NamedTuple):
    """What gamma does to the draws of a task.

    gamma: float64 (tasks,), the weight of each task now. on: "weights", of the rows in a batch;
    "sampling", the chance that a row of the memory, or of all rows seen, is drawn.
    """

    gamma: Tensor
    on: Literal["weights", "sampling"]


def weigh(discount: Discount, task: int, tasks: int) -> Tensor | None:
    """gamma of each task while `task` is the newest, float64 (tasks,); None where all are alike.

    Only their ratios count, so the largest is 1, and none that is above 0 vanishes in float32. A
    blurred stream brings rows of the next task early: they are as new as those of this one.
    """
    if isinstance(discount, Constant):
        return None
    found = gamma(discount, task, torch.arange(tasks).clamp(max=task))
    if (most := found.max()) == 0:
        return found
    return torch.where(found > 0, (found / most).clamp(min=1e-30), 0.0)


class Chunk(NamedTuple):
    """The draws of a run of updates, all replicas: what an engine consumes.

    row, task: int64 and present: bool, or the rows' weights, each a dict by draw name of (replicas,
    steps, [block], batch); key: int64 (replicas, steps, keys, 2), the update's own random keys.
    shift: by draw name, what is added to x (replicas, steps, ...) and y (replicas, steps, outputs).
    """

    row: dict[str, Tensor]
    present: dict[str, Tensor]
    task: dict[str, Tensor]
    key: Tensor
    shift: dict[str, Shift] = {}  # noqa: RUF012 (never changed)

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
        now: Chunk = Chunk(*tree_map(lambda leaf: leaf[replica, step], tuple(self)))
        return now.delivered(stream, dtype, replica)

    def delivered(
        self, stream: Stream, dtype: torch.dtype, replica: int | slice = slice(None)
    ) -> dict[str, Batch]:
        """The batches of a chunk that is one step, and so has lost that dimension."""
        out = {
            name: stream.batch(
                self.row[name], self.present[name], self.task[name], dtype, replica=replica
            )
            for name in self.row
        }
        for name, (dx, dy) in self.shift.items():
            batch, extra = out[name], out[name].w.dim() - (not isinstance(replica, int))
            y = batch.y + _broadcast(dy, extra, replica) if batch.y.is_floating_point() else batch.y
            out[name] = batch._replace(x=batch.x + _broadcast(dx, extra, replica), y=y)
        return out


def _broadcast(shift: Tensor, rows: int, replica: int | slice) -> Tensor:
    """A shift, with a place for each of the batch's dimensions that count rows."""
    lead = 0 if isinstance(replica, int) else 1
    return shift.view(*shift.shape[:lead], *[1] * rows, *shift.shape[lead:])


def chunk(
    draws: Mapping[str, Draw],
    splits: Splits,
    held: Memories,
    seed: Tensor,
    place: tuple[int, int],
    steps: range,
    update_keys: int,
    *,
    motion: Motion | None = None,
    weighing: Weighing | None = None,
    purpose: keys.Purpose = keys.Purpose.BATCH,
) -> Chunk:
    """The draws of some steps of a phase.

    held: memories with a leading replica dimension. seed: int64 (replicas,).
    place: (task, phase). steps: the updates of the phase to draw for.
    update_keys: how many keys of its own each update gets. motion: for draws that are moved.
    weighing: None where all tasks weigh the same. purpose: keeps other draws than a method's apart.
    """
    task, phase = place
    step = torch.arange(steps.start, steps.stop, device=seed.device)
    key = keys.derive(seed[:, None], purpose, task, phase, step)
    rows, present, tasks, shift = {}, {}, {}, {}
    lanes = {name: lane for lane, name in enumerate(draws)}
    for name, draw in draws.items():
        if draw.like is not None:
            _check_like(name, draw, draws)
        lane = lanes[draw.like or name]
        pool = splits.named(draw.split)
        n = draw.batch * (draw.block or 1)
        position, there = _positions(draw, pool, held, key, n, task, lane, weighing)
        index = position.flatten(1)
        shape = (draw.batch,) if draw.block is None else (draw.block, draw.batch)
        rows[name] = pool.row.gather(1, index).view_as(position).unflatten(-1, shape)
        tasks[name] = pool.task.gather(1, index).view_as(position).unflatten(-1, shape)
        present[name] = there.unflatten(-1, shape)
        if weighing is not None and weighing.on == "weights":
            present[name] = present[name] * weighing.gamma[tasks[name]]
        if draw.moved is not None:
            assert motion is not None
            if draw.moved == "estimated":
                shift[name] = (_each(motion.x, len(step)), _each(motion.y, len(step)))
            elif motion.following is not None:
                rows[name] = motion.following[rows[name]]
    number = step[:, None] * update_keys + torch.arange(update_keys, device=seed.device)
    probing = purpose == keys.Purpose.PROBE
    own_purpose = keys.Purpose.PROBE_DROPOUT if probing else keys.Purpose.DROPOUT
    own = keys.derive(seed[:, None, None], own_purpose, task, phase, number)
    return Chunk(rows, present, tasks, own, shift)


def _check_like(name: str, draw: Draw, draws: Mapping[str, Draw]) -> None:
    other = draws.get(draw.like or name)
    if other is None or draw != replace(other, like=draw.like, moved=draw.moved):
        raise SpecError(
            f"Draw '{name}' must be like another of the same source, batch, block and split, got "
            f"like = '{draw.like}'."
        )


def probe(
    draws: Mapping[str, Draw],
    splits: Splits,
    held: Memories,
    seed: Tensor,
    place: tuple[int, int],
    update: int,
    motion: Motion,
    weighing: Weighing | None = None,
) -> Chunk:
    """Rows to look at before an update: draws of their own, so that looking moves nothing."""
    return chunk(
        draws,
        splits,
        held,
        seed,
        place,
        range(update, update + 1),
        1,
        motion=motion,
        weighing=weighing,
        purpose=keys.Purpose.PROBE,
    )


def _each(leaf: Tensor, steps: int) -> Tensor:
    """The same for every step: (replicas, steps, ...)."""
    return leaf[:, None].expand(-1, steps, *leaf.shape[1:])


def _positions(
    draw: Draw,
    pool: Rows,
    held: Memories,
    key: Tensor,
    n: int,
    task: int,
    lane: int,
    weighing: Weighing | None,
) -> tuple[Tensor, Tensor]:
    """Positions in the split's rows and whether they are there: (replicas, steps, n) each."""
    by_chance, source = weighing is not None and weighing.on == "sampling", draw.source
    if source == "memory":
        own = held[draw.split]
        if by_chance:
            assert weighing is not None
            slot = torch.arange(own.position.shape[1], device=key.device)
            chance = weighing.gamma[pool.task.gather(1, own.position)]
            chance = chance * (slot < own.filled[:, None])
            drawn, there = _weighted(chance, key, n, lane)
            return own.position.gather(1, drawn.flatten(1)).view_as(drawn), there
        pair = torch.func.vmap(
            lambda one, keys_of: torch.func.vmap(lambda k: memory.draw(one, k, n, lane))(keys_of)
        )(own, key)
        position: Tensor
        position, there = pair
        return position, there
    offset = pool.offset
    start = offset[:, task] if source == "new" else torch.zeros_like(offset[:, 0])
    stop = offset[:, task] if source == "earlier" else offset[:, task + 1]
    if by_chance and source != "new":
        assert weighing is not None
        place = torch.arange(pool.row.shape[1], device=key.device)
        chance = weighing.gamma[pool.task] * (place < stop[:, None])
        return _weighted(chance, key, n, lane)
    count = (stop - start)[:, None, None]
    position = start[:, None, None] + keys.integers(key, (n,), count, lane)
    return position, (count > 0).expand_as(position)


def _weighted(chance: Tensor, key: Tensor, n: int, lane: int) -> tuple[Tensor, Tensor]:
    """Places drawn in proportion to their chances, and whether any has one.

    chance: float64 (replicas, places). key: int64 (replicas, steps, 2). Returns (replicas, steps,
    n) twice. In whole numbers, so that every device draws the same; a chance below places / 2^31
    of the largest is none.
    """
    most = chance.amax(1, keepdim=True)
    unit = _MOST // chance.shape[1]
    whole = (chance / torch.where(most > 0, most, 1) * unit).floor().to(torch.int64)
    edge = whole.cumsum(1)
    total = edge[:, -1]
    drawn = keys.integers(key, (n,), total[:, None, None], lane)
    place = torch.searchsorted(edge, drawn.flatten(1), right=True).view_as(drawn)
    there = (total > 0)[:, None, None].expand_as(drawn)
    return place.clamp(max=chance.shape[1] - 1), there
