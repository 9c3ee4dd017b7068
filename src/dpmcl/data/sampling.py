"""Draws of an update: which rows, from which source, and in how many batches.

Draws for many replicas and steps are made in one call. Each one depends only on its random key.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from dpmcl.core import keys
from dpmcl.core.batch import Batch
from dpmcl.core.memory import Memories
from dpmcl.core.tree import tree_map
from dpmcl.data.motion import Motion
from dpmcl.data.splits import Rows, Splits
from dpmcl.data.stream import Stream
from dpmcl.discounts._discount import Discount, gamma
from dpmcl.discounts.constant import Constant
from dpmcl.exceptions import SpecError, unknown

Source = Literal["new", "memory", "all", "earlier", "background"]
Moved = Literal["exact", "estimated"]

_LARGEST_BOUND = 2**31 - 1  # of the integers that keys.integers draws
_CHOICE_LANES = 1 << 20  # the first of the lanes that choose a task or order the rows of a class


@dataclass(frozen=True)
class Draw:
    """One named draw of an update: a batch, or a block of batches.

    Args:
        source: Rows to draw from: "new", the rows of the new task; "memory", the memory D_P (for
            validation rows, a separate reservoir of the same size); "all", all rows of the tasks
            seen so far; "earlier", all rows of the tasks before the new one; "background", rows of
            the classes that are in no task (`ScenarioSettings.background`).
        batch: Number of rows in a batch.
        block: None for one batch, of shape (batch, ...). An integer k for a block of k batches, of
            shape (k, batch, ...), with which one update can run an inner loop.
        split: "train", or "validation" for the outer loops of meta-learning methods
            (`Method.trains_on_validation`).
        like: Name of another draw, whose rows this draw repeats. None to draw new rows.
        moved: Move the rows to where they are at the next task: "exact", by the stream's dynamics;
            "estimated", by the change of the means since the last task. None to leave them.
        replace: True to draw with replacement. False to take all rows in a random order, with a new
            order in each pass; rows of weight 0 fill up the last update of a pass.
        once: True to end after one pass without replacement: a replica with fewer rows than others
            then draws rows of weight 0 while the others go on. False to begin another pass.
        of_one: "class", for source "background", to draw distinct rows of one random class;
            "task", for source "all", to draw rows of one random task, which all such draws of an
            update share; None to draw from all rows.
    """

    source: Source
    batch: int
    block: int | None = None
    split: Literal["train", "validation"] = "train"
    like: str | None = None
    moved: Moved | None = None
    replace: bool = True
    once: bool = False
    of_one: Literal["class", "task"] | None = None

    def __post_init__(self) -> None:
        sources, moves = get_args(Source), get_args(Moved)
        if self.source not in sources:
            raise unknown("source", self.source, sources, f"There are: {', '.join(sources)}.")
        if self.moved not in (None, *moves):
            raise unknown("kind of moved", self.moved, moves, f"There are: {', '.join(moves)}.")
        if min(self.batch, 1 if self.block is None else self.block) < 1:
            raise SpecError(
                f"A draw has at least one row, got batch = {self.batch} and block = {self.block}."
            )
        required = {"class": "background", "task": "all"}.get(self.of_one or "", self.source)
        if self.source != required or (self.of_one and not self.replace):
            raise SpecError(
                f"of_one = {self.of_one!r} is for draws with replacement of source = "
                f"{required!r}, got {self.source!r}."
            )
        if self.once and self.replace:
            raise SpecError("once = True ends after one pass, so it needs replace = False.")
        if self.split not in ("train", "validation"):
            raise SpecError(
                f"Updates draw training or validation rows, got split = {self.split!r}; no method "
                "may learn from test rows."
            )


class Weighing(NamedTuple):
    """Weights gamma of the tasks, and what they apply to.

    Args:
        gamma: Current weight of each task, float64 (tasks,).
        on: "weights" to weight the rows of a batch; "sampling" to weight the probability with which
            a row of the memory, or of all rows seen, is drawn.
    """

    gamma: Tensor
    on: Literal["weights", "sampling"]


def task_weights(discount: Discount, task: int, tasks: int) -> Tensor | None:
    """Return the weight gamma of each task while `task` is the newest, float64 (tasks,).

    Only the ratios of the weights matter. They are scaled so that the largest is 1 and no positive
    weight underflows in float32. A blurred stream brings some rows of the next task early; these
    get the weight of the newest task.

    Args:
        discount: Function gamma.
        task: Number of the newest task.
        tasks: Number of tasks in the stream.

    Returns:
        The weights, or None if all tasks weigh the same.
    """
    if isinstance(discount, Constant):
        return None
    weights = gamma(discount, task, torch.arange(tasks).clamp(max=task))
    if (largest := weights.max()) == 0:
        return weights
    return torch.where(weights > 0, (weights / largest).clamp(min=1e-30), 0.0)


class Supply(NamedTuple):
    """Rows, memories and seeds from which draws are made.

    Args:
        splits: Rows of each replica.
        held: Memories of all replicas, with a leading replica dimension.
        seed: Seed of each replica, int64 (replicas,).
        motion: Motion of the rows at this task, for draws that are moved.
        weighing: Weights of the tasks at this task; None if all tasks weigh the same.
        first: Number of the splits' first task. Random keys depend on `first` plus a task's number
            in the splits.
    """

    splits: Splits
    held: Memories
    seed: Tensor
    motion: Motion | None = None
    weighing: Weighing | None = None
    first: int = 0


class Drawn(NamedTuple):
    """Rows and keys drawn for consecutive updates of all replicas, which an engine consumes.

    All dicts map names of draws to tensors.

    Args:
        row: Row numbers in the pool, int64 (replicas, steps, [block], batch).
        present: Mask of the rows that exist, bool, or their weights, float; same shape.
        task: Task that each row belongs to, int64; same shape.
        key: Random keys for the update itself, int64 (replicas, steps, keys, 2).
        shift: What is added to the inputs and targets of draws that are moved, with a dimension of
            size 1 for each dimension of the rows: (replicas, steps, [1], 1, ...).
        notes: Notes that a memory keeps with its rows, by name, (*row.shape, ...); only for draws
            from a memory.
        position: Positions of the rows in their split, int64; only for the draw that enters the
            memory.
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
        """Number of updates."""
        return self.key.shape[1]

    def only(self, step: int) -> "Drawn":
        """Return what was drawn for one step.

        Args:
            step: Index of the step.
        """
        return tree_map(lambda leaf: leaf[:, step : step + 1], self)

    def first(self, steps: int) -> "Drawn":
        """Return views of what was drawn for the first steps.

        Args:
            steps: Number of steps.
        """
        return tree_map(lambda leaf: leaf[:, :steps], self)

    def batches(
        self, stream: Stream, dtype: torch.dtype, step: int, replica: int | slice
    ) -> dict[str, Batch]:
        """Return the batch of each draw at one step.

        Args:
            stream: Stream that holds the rows.
            dtype: Type of inputs and weights.
            step: Index of the step.
            replica: Index of one replica, or a slice to keep a leading replica dimension.
        """
        one_step = tree_map(lambda leaf: leaf[replica, step], self)
        return one_step.to_batches(stream, dtype, replica)

    def to_batches(
        self, stream: Stream, dtype: torch.dtype, replica: int | slice = slice(None)
    ) -> dict[str, Batch]:
        """Return the batch of each draw, of fields without the dimension of steps.

        Args:
            stream: Stream that holds the rows.
            dtype: Type of inputs and weights.
            replica: Index of the one replica, or a slice if fields have a leading one of
                replicas.
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
            out[name] = out[name]._replace(x=out[name].x + dx, y=out[name].y + dy)
        return out


def draw_rows(
    draws: Mapping[str, Draw],
    supply: Supply,
    task_phase: tuple[int, int],
    steps: range,
    *,
    update_keys: int = 1,
    remember: str | None = None,
    purpose: keys.Purpose = keys.Purpose.BATCH,
) -> Drawn:
    """Draw the rows of consecutive updates of a phase, for all replicas.

    Args:
        draws: Draws of each update, by name.
        supply: Rows, memories and seeds to draw from.
        task_phase: Number of the task in the splits, and number of the phase.
        steps: Numbers of the updates in the phase.
        update_keys: Number of random keys for each update.
        remember: Name of the draw whose rows will enter the memory, or None.
        purpose: Purpose of the random keys; other purposes than BATCH give independent draws.

    Returns:
        What was drawn for all steps.

    Raises:
        SpecError: A draw repeats the rows of a draw of another kind, or `discount_on = "sampling"`
            meets a draw without replacement or of one task.
    """
    task, phase = task_phase
    seed = supply.seed
    step = torch.arange(steps.start, steps.stop, device=seed.device)
    task_number = supply.first + task
    key = keys.derive(seed[:, None], purpose, task_number, phase, step=step)
    lanes = {name: lane for lane, name in enumerate(draws)}
    result = Drawn({}, {}, {}, key, {}, {}, {})
    for name, draw in draws.items():
        if draw.like is not None:
            _check_like(name, draw, draws)
        context = _Context(key, task_phase, step, lanes[draw.like or name])
        picked = _pick(draw, supply, context)
        if draw.source != "background":
            _check_seen(name, picked, supply.splits.named(draw.split).offset[:, task + 1])
        _add_draw(result, name, draw, picked, supply=supply)
        if name != remember:
            result.position.pop(name)
    key_step = step[:, None] * update_keys + torch.arange(update_keys, device=seed.device)
    probing = purpose == keys.Purpose.PROBE
    key_purpose = keys.Purpose.PROBE_DROPOUT if probing else keys.Purpose.DROPOUT
    return result._replace(
        key=keys.derive(seed[:, None, None], key_purpose, task_number, phase, step=key_step)
    )


class _Context(NamedTuple):
    """Keys (replicas, steps, 2), (task, phase), update numbers (steps,) and lane of a draw."""

    key: Tensor
    task_phase: tuple[int, int]
    step: Tensor
    lane: int


class _Picked(NamedTuple):
    """Positions in the rows of a split, mask of existing rows, and memory slots, if any.

    All are (replicas, steps, n).
    """

    position: Tensor
    present: Tensor
    slot: Tensor | None = None


def _add_draw(result: Drawn, name: str, draw: Draw, picked: _Picked, *, supply: Supply) -> None:
    """Add the rows that a draw picked to the unfinished `result`."""
    pool = (
        _background_rows(supply) if draw.source == "background" else supply.splits.named(draw.split)
    )
    shape = (draw.batch,) if draw.block is None else (draw.block, draw.batch)
    position, index = picked.position, picked.position.flatten(1)

    def shaped(leaf: Tensor) -> Tensor:
        out: Tensor = leaf.view_as(position).unflatten(-1, shape)
        return out

    result.position[name] = shaped(position)
    result.row[name] = shaped(pool.row.gather(1, index))
    result.task[name] = shaped(pool.task.gather(1, index))
    result.present[name] = shaped(picked.present)
    if supply.weighing is not None and supply.weighing.on == "weights":
        result.present[name] = result.present[name] * supply.weighing.gamma[result.task[name]]
    if picked.slot is not None and (notes := supply.held[draw.split].notes):
        replica, slot = torch.arange(len(index), device=index.device)[:, None], picked.slot
        result.notes[name] = {
            key: note[replica, slot.flatten(1)].unflatten(1, (slot.shape[1], *shape))
            for key, note in notes.items()
        }
    if draw.moved is not None:
        motion = supply.motion
        assert motion is not None
        if draw.moved == "estimated":
            row = result.row[name]
            result.shift[name] = (_beside(motion.x, row), _beside(motion.y, row))
        elif motion.following is not None:
            result.row[name] = motion.following[result.row[name]]


def _beside(leaf: Tensor, row: Tensor) -> Tensor:
    """Return (replicas, ...) as (replicas, steps, 1, ...), for rows (replicas, steps, ...)."""
    ones = [1] * (row.dim() - 2)
    out = leaf.view(len(leaf), 1, *ones, *leaf.shape[1:])
    return out.expand(-1, row.shape[1], *out.shape[2:])


def _check_seen(name: str, picked: _Picked, seen: Tensor) -> None:
    """Raise SpecError if rows of later tasks are drawn, which a faulty memory policy can cause."""
    if ((picked.position >= seen[:, None, None]) & picked.present.bool()).any():
        raise SpecError(
            f"Draw '{name}' has rows of tasks that are still to come; a memory's policy may keep "
            "only rows that it was offered."
        )


def _check_like(name: str, draw: Draw, draws: Mapping[str, Draw]) -> None:
    """Raise SpecError if a draw repeats the rows of a draw of another kind."""
    original = draws.get(draw.like or name)
    if original is None or draw != replace(original, like=draw.like, moved=draw.moved):
        raise SpecError(
            f"Draw '{name}' must be like another of the same source, batch, block and split, got "
            f"like = '{draw.like}'."
        )


def _pick(draw: Draw, supply: Supply, context: _Context) -> _Picked:
    """Pick the rows of a draw."""
    if draw.source == "background":
        return _pick_background(draw, supply, context)
    weighing = supply.weighing
    by_chance = weighing is not None and weighing.on == "sampling" and draw.source != "new"
    if by_chance and (draw.of_one or not draw.replace):
        raise SpecError(
            "discount_on = 'sampling' draws rows by chance; a pass without replacement takes each "
            "once, and FTML rows of one task. Use discount_on = 'weights'."
        )
    pool, task = supply.splits.named(draw.split), context.task_phase[0]
    offset, n = pool.offset, draw.batch * (draw.block or 1)
    held = supply.held[draw.split] if draw.source == "memory" else None
    if held is not None:
        start, stop = torch.zeros_like(held.filled), held.filled
    else:
        start = offset[:, task] if draw.source == "new" else torch.zeros_like(offset[:, 0])
        stop = offset[:, task] if draw.source == "earlier" else offset[:, task + 1]
    if by_chance:
        assert weighing is not None
        task_of = pool.task if held is None else pool.task.gather(1, held.position)
        number = torch.arange(task_of.shape[1], device=offset.device)
        chance = weighing.gamma[task_of] * (number < stop[:, None])
        item, present = _pick_weighted(chance, context, n)
    elif not draw.replace:
        rank, present = _pick_in_passes(stop - start, supply, context, n)
        if draw.once:
            present &= context.step[:, None] * n < (stop - start)[:, None, None]
        item = start[:, None, None] + rank
    else:
        low, high = start[:, None, None], stop[:, None, None]
        if draw.of_one == "task":
            chosen = keys.integers(context.key, (1,), task + 1, _CHOICE_LANES)
            low, high = (offset.gather(1, edge[..., 0])[..., None] for edge in (chosen, chosen + 1))
        item = low + keys.integers(context.key, (n,), high - low, context.lane)
        present = (high > low).expand_as(item)
    if held is None:
        return _Picked(item, present)
    return _Picked(held.position.gather(1, item.flatten(1)).view_as(item), present, item)


def _background_rows(supply: Supply) -> Rows:
    """Return the rows of the background classes. Raises SpecError if the stream has none."""
    if supply.splits.background is None:
        raise SpecError(
            "This method is trained on background classes before the stream, and the stream has "
            "none; set stream.background to how many classes are kept out of the tasks for it."
        )
    return supply.splits.background


def _pick_background(draw: Draw, supply: Supply, context: _Context) -> _Picked:
    """Pick rows of all background classes, or distinct rows of one random class."""
    rows, n = _background_rows(supply), draw.batch * (draw.block or 1)
    if draw.of_one is None:
        position = keys.integers(context.key, (n,), rows.row.shape[1], context.lane)
        return _Picked(position, torch.ones_like(position, dtype=torch.bool))
    counts = rows.offset[0].diff()
    if n > int(counts.min()):
        raise SpecError(
            f"An update wants {n} distinct rows of a background class, and one has "
            f"{int(counts.min())}; make the method's trajectory shorter."
        )
    chosen = keys.integers(context.key, (1,), len(counts), context.lane)
    lane = _CHOICE_LANES + context.lane
    order = _shuffled(context.key, counts[chosen], int(counts.max()), lane)[..., :n]
    position = rows.offset[0][chosen] + order
    return _Picked(position, torch.ones_like(position, dtype=torch.bool))


def _pick_in_passes(
    count: Tensor, supply: Supply, context: _Context, n: int
) -> tuple[Tensor, Tensor]:
    """Take all of `count` rows in a random order, n in each update, in one pass after another.

    Returns the ranks of the rows and a mask of those that exist, (replicas, steps, n) each. The
    order of a replica does not depend on the counts of the others.
    """
    seed, (task, phase) = supply.seed, context.task_phase
    updates = ((count + n - 1) // n).clamp(min=1)[:, None]  # in a pass
    pass_number, step_in_pass = context.step // updates, context.step % updates
    item = step_in_pass[..., None] * n + torch.arange(n, device=seed.device)
    present = item < count[:, None, None]
    seeds, counts = tuple(seed.tolist()), tuple(count.tolist())
    rank = torch.zeros_like(item)
    for current in range(int(pass_number.min()), int(pass_number.max()) + 1):
        order = _pass_order(seeds, counts, (supply.first + task, phase, current), context.lane).to(
            seed.device
        )
        taken = order.gather(1, item.clamp(max=order.shape[1] - 1).flatten(1)).view_as(item)
        rank = torch.where((pass_number == current)[..., None], taken, rank)
    return torch.where(present, rank, 0), present


@functools.lru_cache(maxsize=4)  # the segments of a pass need the same order
def _pass_order(
    seeds: tuple[int, ...],
    counts: tuple[int, ...],
    task_phase_pass: tuple[int, int, int],
    lane: int,
) -> Tensor:
    """Return the ranks of each replica's rows in the random order of a pass, padded.

    task_phase_pass: Numbers of the task, the phase and the pass. Returns int64 (replicas, largest
    count).
    """
    task, phase, pass_number = task_phase_pass
    key = keys.derive(torch.tensor(seeds), keys.Purpose.PASS, task, phase, step=pass_number)
    return _shuffled(key, torch.tensor(counts)[:, None], max(*counts, 1), lane)


def _shuffled(key: Tensor, count: Tensor, width: int, lane: int) -> Tensor:
    """Return the integers below each count in a random order, then the rest of those below `width`.

    key: (..., 2). count: (..., 1). Returns int64 (..., width).
    """
    absent = torch.arange(width, device=key.device) >= count
    score, last = keys.scores(key, width, lane), torch.iinfo(torch.int64).max
    return torch.argsort(torch.where(absent, last, score), dim=-1, stable=True)


def _pick_weighted(chance: Tensor, context: _Context, n: int) -> tuple[Tensor, Tensor]:
    """Return random indices and a mask, which is False for replicas whose probabilities are all 0.

    chance: Relative probabilities, float64 (replicas, items). Returns indices and a mask,
    (replicas, steps, n) each. Integer arithmetic makes the draws equal on all devices. It rounds
    probabilities below items / 2^31 of the largest to 0.
    """
    largest = chance.amax(1, keepdim=True)
    unit = _LARGEST_BOUND // chance.shape[1]
    scaled = (chance / torch.where(largest > 0, largest, 1) * unit).floor().to(torch.int64)
    edge = scaled.cumsum(1)
    total = edge[:, -1]
    drawn = keys.integers(context.key, (n,), total[:, None, None], context.lane)
    index = torch.searchsorted(edge, drawn.flatten(1), right=True).view_as(drawn)
    present = (total > 0)[:, None, None].expand_as(drawn)
    return index.clamp(max=chance.shape[1] - 1), present
