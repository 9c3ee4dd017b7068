"""What an update draws: which rows, from where, and how many batches of them.

The draws of many replicas and steps are made at once; each is a function of its key alone.
"""

import functools
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
from dpmcl.discounts._discount import Discount, gamma
from dpmcl.discounts.constant import Constant
from dpmcl.exceptions import SpecError

Source = Literal["new", "memory", "all", "earlier", "background"]
Moved = Literal["exact", "estimated"]

_MOST = 2**31 - 1  # below it, integers are drawn exactly
_CHOICE = 1 << 20  # lanes from here on choose a task, or order the rows of a class


@dataclass(frozen=True)
class Draw:
    """One named draw of an update: a batch, or a block of batches.

    Args:
        source: "new", the new task's rows; "memory", D_P, or for validation rows a reservoir of
            their own, as long as D_P; "all", every row of the tasks seen so far; "earlier", every
            row of the tasks before the new one; "background", rows of the classes that are in no
            task (`ScenarioSettings.background`).
        batch: Rows a batch.
        block: None for one batch, (batch, ...); k for a block of k batches, (k, batch, ...), so
            that an inner loop can live inside one update.
        split: "train", or "validation" for the outer loops of meta-learning methods
            (`Method.trains_on_validation`).
        like: Another draw's name, whose rows these are.
        moved: Those rows once the next task has come: "exact" by the stream's dynamics,
            "estimated" by what the means moved since the last task.
        replace: True draws with replacement. False goes through the rows in a random order, anew
            in each pass; where they do not fill the last update of a pass, rows of weight 0 do.
        of_one: "class", of the background, takes distinct rows of one random class; "task", of
            "all", takes rows of one random task, the same for all such draws of an update. None
            takes any.
    """

    source: Source
    batch: int
    block: int | None = None
    split: Literal["train", "validation"] = "train"
    like: str | None = None
    moved: Moved | None = None
    replace: bool = True
    of_one: Literal["class", "task"] | None = None

    def __post_init__(self) -> None:
        wanted = {"class": "background", "task": "all"}.get(self.of_one or "", self.source)
        if self.source != wanted or (self.of_one and not self.replace):
            raise SpecError(
                f"of_one = {self.of_one!r} is for draws with replacement of source = "
                f"{wanted!r}, got {self.source!r}."
            )
        if self.split not in ("train", "validation"):
            raise SpecError(
                f"Updates draw training or validation rows, got split = {self.split!r}; no method "
                "may learn from test rows."
            )


class Weighing(NamedTuple):
    """What gamma does to the draws of a task.

    Args:
        gamma: Weight of each task now, float64 (tasks,).
        on: "weights", of the rows in a batch; "sampling", the chance that a row of the memory, or
            of all rows seen, is drawn.
    """

    gamma: Tensor
    on: Literal["weights", "sampling"]


def weigh(discount: Discount, task: int, tasks: int) -> Tensor | None:
    """Return gamma of each task while `task` is the newest, float64 (tasks,).

    Only their ratios count, so the largest is 1, and none that is above 0 vanishes in float32. A
    blurred stream brings rows of the next task early: they are as new as those of this one.

    Args:
        discount: The weights that gamma gives.
        task: The newest task.
        tasks: How many the stream has.

    Returns:
        The weights, or None where all are alike.
    """
    if isinstance(discount, Constant):
        return None
    weights = gamma(discount, task, torch.arange(tasks).clamp(max=task))
    if (most := weights.max()) == 0:
        return weights
    return torch.where(weights > 0, (weights / most).clamp(min=1e-30), 0.0)


class Supply(NamedTuple):
    """What draws are made from.

    Args:
        splits: Rows of each replica.
        held: Memories, replicas first.
        seed: Seed of each replica, int64 (replicas,).
        motion: Where rows go at this task; for draws that are moved.
        weighing: What gamma does at this task; None where all tasks weigh the same.
        first: Number of the splits' first task; keys are made of the numbers from there.
    """

    splits: Splits
    held: Memories
    seed: Tensor
    motion: Motion | None = None
    weighing: Weighing | None = None
    first: int = 0


class Chunk(NamedTuple):
    """The draws of a run of updates, all replicas: what an engine consumes.

    Args:
        row: Rows of the pool by draw, int64 (replicas, steps, [block], batch).
        present: Whether they are there, bool, or their weights; by draw, same shape.
        task: The task that each came with, int64; by draw, same shape.
        key: The update's own random keys, int64 (replicas, steps, keys, 2).
        shift: By draw, what is added to x (replicas, steps, ...) and y (replicas, steps, outputs).
        notes: By draw from a memory, what is kept with the rows: by name, (*row.shape, ...).
        position: Positions of the rows in their split, int64, of draws that enter the memory.
    """

    row: dict[str, Tensor]
    present: dict[str, Tensor]
    task: dict[str, Tensor]
    key: Tensor
    shift: dict[str, tuple[Tensor, Tensor]] = {}  # noqa: RUF012 (never changed)
    notes: dict[str, dict[str, Tensor]] = {}  # noqa: RUF012
    position: dict[str, Tensor] = {}  # noqa: RUF012

    @property
    def steps(self) -> int:
        """How many updates the chunk feeds."""
        return self.key.shape[1]

    def only(self, step: int) -> "Chunk":
        """Return the draws of one of the steps.

        Args:
            step: Which of the steps.
        """
        return Chunk(*tree_map(lambda leaf: leaf[:, step : step + 1], tuple(self)))

    def batches(
        self, stream: Stream, dtype: torch.dtype, step: int, replica: int | slice
    ) -> dict[str, Batch]:
        """Return the batches of one step by draw.

        Args:
            stream: Where the rows are.
            dtype: Type of inputs and weights.
            step: Which of the steps.
            replica: One replica, or a slice for all, replicas first.
        """
        now: Chunk = Chunk(*tree_map(lambda leaf: leaf[replica, step], tuple(self)))
        return now.delivered(stream, dtype, replica)

    def delivered(
        self, stream: Stream, dtype: torch.dtype, replica: int | slice = slice(None)
    ) -> dict[str, Batch]:
        """Return the batches of a chunk that is one step, and so has lost that dimension.

        Args:
            stream: Where the rows are.
            dtype: Type of inputs and weights.
            replica: One replica, or a slice for all, replicas first.
        """
        out = {
            name: stream.batch(
                self.row[name], self.present[name], self.task[name], dtype, replica=replica
            )
            for name in self.row
        }
        for name, notes in self.notes.items():
            out[name] = out[name]._replace(notes=notes)
        for name, (dx, dy) in self.shift.items():
            batch, extra = out[name], out[name].w.dim() - (not isinstance(replica, int))
            y = batch.y + _broadcast(dy, extra, replica) if batch.y.is_floating_point() else batch.y
            out[name] = batch._replace(x=batch.x + _broadcast(dx, extra, replica), y=y)
        return out


def _broadcast(shift: Tensor, rows: int, replica: int | slice) -> Tensor:
    """Return a shift with a dimension for each of the batch's dimensions that count rows."""
    lead = 0 if isinstance(replica, int) else 1
    return shift.view(*shift.shape[:lead], *[1] * rows, *shift.shape[lead:])


def chunk(
    draws: Mapping[str, Draw],
    supply: Supply,
    place: tuple[int, int],
    steps: range,
    *,
    update_keys: int = 1,
    remember: str | None = None,
    purpose: keys.Purpose = keys.Purpose.BATCH,
) -> Chunk:
    """Draw for some updates of a phase, for all replicas.

    Args:
        draws: What each update draws, by name.
        supply: What is drawn from.
        place: Numbers of the task in the splits, and of the phase.
        steps: The updates of the phase to draw for.
        update_keys: How many random keys each update gets.
        remember: The draw whose rows will enter the memory, if any.
        purpose: Keeps other draws than a method's apart.

    Returns:
        The draws of all steps.

    Raises:
        SpecError: A draw is like another of another kind, or does without replacement what
            `discount_on = "sampling"` wants drawn by chance.
    """
    task, phase = place
    seed = supply.seed
    step = torch.arange(steps.start, steps.stop, device=seed.device)
    number = supply.first + task
    key = keys.derive(seed[:, None], purpose, number, phase, step=step)
    lanes = {name: lane for lane, name in enumerate(draws)}
    made = Chunk({}, {}, {}, key, {}, {}, {})
    for name, draw in draws.items():
        if draw.like is not None:
            _check_like(name, draw, draws)
        where = _Where(key, place, step, lanes[draw.like or name])
        picked = _picked(draw, supply, where)
        if draw.source != "background":
            _check_seen(name, picked, supply.splits.named(draw.split).offset[:, task + 1])
        _add_draw(made, name, draw, picked, supply=supply)
        if name != remember:
            made.position.pop(name)
    each = step[:, None] * update_keys + torch.arange(update_keys, device=seed.device)
    probing = purpose == keys.Purpose.PROBE
    own_purpose = keys.Purpose.PROBE_DROPOUT if probing else keys.Purpose.DROPOUT
    return made._replace(
        key=keys.derive(seed[:, None, None], own_purpose, number, phase, step=each)
    )


def probe(draws: Mapping[str, Draw], supply: Supply, place: tuple[int, int], update: int) -> Chunk:
    """Draw rows to look at before an update: draws of their own, so that looking moves nothing.

    Args:
        draws: What is looked at, by name.
        supply: What is drawn from.
        place: Numbers of the task and of the phase.
        update: The update before which it is drawn.

    Returns:
        The draws, as of one step.
    """
    steps = range(update, update + 1)
    return chunk(draws, supply, place, steps, purpose=keys.Purpose.PROBE)


class _Where(NamedTuple):
    """Keys (replicas, steps, 2), (task, phase), update numbers (steps,) and lane of a draw."""

    key: Tensor
    place: tuple[int, int]
    step: Tensor
    lane: int


class _Picked(NamedTuple):
    """Positions in the rows of a split, (replicas, steps, n), whether present, and memory slots."""

    position: Tensor
    present: Tensor
    slot: Tensor | None = None


def _add_draw(made: Chunk, name: str, draw: Draw, picked: _Picked, *, supply: Supply) -> None:
    """Put what a draw picked into the dicts of a chunk that is being made."""
    pool = _background(supply) if draw.source == "background" else supply.splits.named(draw.split)
    shape = (draw.batch,) if draw.block is None else (draw.block, draw.batch)
    index, like = picked.position.flatten(1), picked.position

    def shaped(leaf: Tensor) -> Tensor:
        out: Tensor = leaf.view_as(like).unflatten(-1, shape)
        return out

    made.position[name] = shaped(like)
    made.row[name] = shaped(pool.row.gather(1, index))
    made.task[name] = shaped(pool.task.gather(1, index))
    made.present[name] = shaped(picked.present)
    if supply.weighing is not None and supply.weighing.on == "weights":
        made.present[name] = made.present[name] * supply.weighing.gamma[made.task[name]]
    if picked.slot is not None and (notes := supply.held[draw.split].notes):
        replica, slot = torch.arange(len(index), device=index.device)[:, None], picked.slot
        made.notes[name] = {
            key: note[replica, slot.flatten(1)].unflatten(1, (slot.shape[1], *shape))
            for key, note in notes.items()
        }
    if draw.moved is not None:
        motion = supply.motion
        assert motion is not None
        if draw.moved == "estimated":
            many = like.shape[1]
            made.shift[name] = (_each(motion.x, many), _each(motion.y, many))
        elif motion.following is not None:
            made.row[name] = motion.following[made.row[name]]


def _check_seen(name: str, picked: _Picked, seen: Tensor) -> None:
    """Raise SpecError where rows of tasks to come are drawn: a policy can put any in the memory."""
    if ((picked.position >= seen[:, None, None]) & picked.present.bool()).any():
        raise SpecError(
            f"Draw '{name}' has rows of tasks that are still to come; a memory's policy may keep "
            "only rows that it was offered."
        )


def _check_like(name: str, draw: Draw, draws: Mapping[str, Draw]) -> None:
    """Raise SpecError for a draw that is like another of another kind."""
    other = draws.get(draw.like or name)
    if other is None or draw != replace(other, like=draw.like, moved=draw.moved):
        raise SpecError(
            f"Draw '{name}' must be like another of the same source, batch, block and split, got "
            f"like = '{draw.like}'."
        )


def _each(leaf: Tensor, steps: int) -> Tensor:
    """Return the same for every step: (replicas, steps, ...)."""
    return leaf[:, None].expand(-1, steps, *leaf.shape[1:])


def _picked(draw: Draw, supply: Supply, where: _Where) -> _Picked:
    """Pick the rows of a draw."""
    if draw.source == "background":
        return _of_background(draw, supply, where)
    weighing = supply.weighing
    by_chance = weighing is not None and weighing.on == "sampling" and draw.source != "new"
    if by_chance and (draw.of_one or not draw.replace):
        raise SpecError(
            "discount_on = 'sampling' draws rows by chance; a pass without replacement takes each "
            "once, and FTML rows of one task. Use discount_on = 'weights'."
        )
    if draw.source == "memory":
        slot, present = _slots(draw, supply, where)
        position = supply.held[draw.split].position.gather(1, slot.flatten(1)).view_as(slot)
        return _Picked(position, present, slot)
    pool, task = supply.splits.named(draw.split), where.place[0]
    offset, n = pool.offset, draw.batch * (draw.block or 1)
    start = offset[:, task] if draw.source == "new" else torch.zeros_like(offset[:, 0])
    stop = offset[:, task] if draw.source == "earlier" else offset[:, task + 1]
    if by_chance:
        assert weighing is not None
        place = torch.arange(pool.row.shape[1], device=offset.device)
        chance = weighing.gamma[pool.task] * (place < stop[:, None])
        return _Picked(*_weighted(chance, where, n))
    if not draw.replace:
        rank, present = _in_passes(stop - start, supply, where, n)
        return _Picked(start[:, None, None] + rank, present)
    if draw.of_one == "task":
        chosen = keys.integers(where.key, (1,), task + 1, _CHOICE)[..., 0]
        low, high = offset.gather(1, chosen), offset.gather(1, chosen + 1)
        position = low[..., None] + keys.integers(
            where.key, (n,), (high - low)[..., None], where.lane
        )
        return _Picked(position, (high > low)[..., None].expand_as(position))
    count = (stop - start)[:, None, None]
    position = start[:, None, None] + keys.integers(where.key, (n,), count, where.lane)
    return _Picked(position, (count > 0).expand_as(position))


def _background(supply: Supply) -> Rows:
    """Return the rows of the background classes."""
    if supply.splits.background is None:
        raise SpecError(
            "This method is trained on background classes before the stream, and the stream has "
            "none; set stream.background to how many classes are kept out of the tasks for it."
        )
    return supply.splits.background


def _of_background(draw: Draw, supply: Supply, where: _Where) -> _Picked:
    """Pick rows of the background: any, or distinct ones of one random class."""
    rows, n = _background(supply), draw.batch * (draw.block or 1)
    if draw.of_one is None:
        position = keys.integers(where.key, (n,), rows.row.shape[1], where.lane)
        return _Picked(position, torch.ones_like(position, dtype=torch.bool))
    count = rows.offset[0].diff()
    if n > int(count.min()):
        raise SpecError(
            f"An update wants {n} distinct rows of a background class, and one has "
            f"{int(count.min())}; make the method's trajectory shorter."
        )
    chosen = keys.integers(where.key, (1,), len(count), where.lane)
    order = _shuffled(where.key, count[chosen], int(count.max()), _CHOICE + where.lane)[..., :n]
    position = rows.offset[0][chosen] + order
    return _Picked(position, torch.ones_like(position, dtype=torch.bool))


def _slots(draw: Draw, supply: Supply, where: _Where) -> tuple[Tensor, Tensor]:
    """Pick slots of a memory, and say whether a row is in them: (replicas, steps, n) each."""
    held, n, weighing = supply.held[draw.split], draw.batch * (draw.block or 1), supply.weighing
    if weighing is not None and weighing.on == "sampling":
        slot = torch.arange(held.position.shape[1], device=held.position.device)
        task = supply.splits.named(draw.split).task.gather(1, held.position)
        return _weighted(weighing.gamma[task] * (slot < held.filled[:, None]), where, n)
    if not draw.replace:
        return _in_passes(held.filled, supply, where, n)
    pair: tuple[Tensor, Tensor] = torch.func.vmap(
        lambda one, keys_of: torch.func.vmap(lambda k: memory.draw(one, k, n, where.lane))(keys_of)
    )(held, where.key)
    return pair


def _in_passes(count: Tensor, supply: Supply, where: _Where, n: int) -> tuple[Tensor, Tensor]:
    """Take ranks of `count` rows in a random order, n an update, pass after pass.

    Returns ranks and whether they are there, (replicas, steps, n) each. A replica's order depends
    on its own count alone.
    """
    seed, (task, phase) = supply.seed, where.place
    updates = ((count + n - 1) // n).clamp(min=1)[:, None]  # of a pass
    number, within = where.step // updates, where.step % updates
    item = within[..., None] * n + torch.arange(n, device=seed.device)
    present = item < count[:, None, None]
    seeds, counts = tuple(seed.tolist()), tuple(count.tolist())
    rank = torch.zeros_like(item)
    for each in range(int(number.min()), int(number.max()) + 1):
        order = _order(seeds, counts, (supply.first + task, phase, each), where.lane).to(
            seed.device
        )
        taken = order.gather(1, item.clamp(max=order.shape[1] - 1).flatten(1)).view_as(item)
        rank = torch.where((number == each)[..., None], taken, rank)
    return torch.where(present, rank, 0), present


@functools.lru_cache(maxsize=4)  # a pass is drawn from again and again, one update at a time
def _order(
    seeds: tuple[int, ...], counts: tuple[int, ...], place: tuple[int, int, int], lane: int
) -> Tensor:
    """Return each replica's ranks in the random order of a pass, (replicas, most); padded.

    place: numbers of the task, the phase and the pass.
    """
    task, phase, number = place
    key = keys.derive(torch.tensor(seeds), keys.Purpose.PASS, task, phase, step=number)
    return _shuffled(key, torch.tensor(counts)[:, None], max(*counts, 1), lane)


def _shuffled(key: Tensor, count: Tensor, width: int, lane: int) -> Tensor:
    """Return the numbers below each count in a random order, then those up to the width.

    key: (..., 2). count: (..., 1). Returns int64 (..., width).
    """
    absent = torch.arange(width, device=key.device) >= count
    score, last = keys.scores(key, width, lane), torch.iinfo(torch.int64).max
    return torch.argsort(torch.where(absent, last, score), dim=-1, stable=True)


def _weighted(chance: Tensor, where: _Where, n: int) -> tuple[Tensor, Tensor]:
    """Draw indices in proportion to their chances, and say whether any has one.

    chance: float64 (replicas, items). Returns (replicas, steps, n) twice. In whole numbers, so that
    every device draws the same; a chance below items / 2^31 of the largest is none.
    """
    most = chance.amax(1, keepdim=True)
    unit = _MOST // chance.shape[1]
    whole = (chance / torch.where(most > 0, most, 1) * unit).floor().to(torch.int64)
    edge = whole.cumsum(1)
    total = edge[:, -1]
    drawn = keys.integers(where.key, (n,), total[:, None, None], where.lane)
    index = torch.searchsorted(edge, drawn.flatten(1), right=True).view_as(drawn)
    present = (total > 0)[:, None, None].expand_as(drawn)
    return index.clamp(max=chance.shape[1] - 1), present
