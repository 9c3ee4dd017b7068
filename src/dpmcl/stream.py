"""A stream: tasks in their order over one pool of rows; and how a task's rows are split.

The pool holds every row once, on the device, in its compact type. Everything else holds row
numbers of shape (replicas, n), so replicas may share rows (MNIST) or own theirs (SINE).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, NamedTuple

import annotated_types as at
import torch
from torch import Tensor

from dpmcl import keys
from dpmcl.batch import Batch
from dpmcl.exceptions import DataError, SpecError
from dpmcl.model import Kind
from dpmcl.settings import Positive, Settings


@dataclass(frozen=True, eq=False)
class Stream:
    """Tasks over a pool.

    kind: "classification" or "regression".
    x: inputs (rows, ...) in their compact type; uint8 values mean x / 255.
    y: int64 (rows,) class numbers 0 .. outputs-1, or float (rows, outputs).
    row: int64 (1 or replicas, n), pool rows in task order; 1 where all replicas share rows.
    task: int64, same shape, the task of each, not decreasing.
    tasks: a name for each task. classes: the original name of each class number; empty for
    regression. outputs: width of the model's output.
    """

    name: str
    kind: Kind
    x: Tensor
    y: Tensor
    row: Tensor
    task: Tensor
    tasks: tuple[str, ...]
    classes: tuple[str, ...]
    outputs: int

    def batch(self, row: Tensor, present: Tensor, task: Tensor, dtype: torch.dtype) -> Batch:
        """The rows as a batch: x (*row.shape, ...) in [0, 1] for uint8 pools, w 0 where absent.

        row, task: int64 of any shape. present: bool, same shape.
        """
        x = self.x[row].to(dtype)
        if self.x.dtype == torch.uint8:
            x = x / 255
        y = self.y[row]
        return Batch(
            x, y if self.kind == "classification" else y.to(dtype), present.to(dtype), task
        )

    def to(self, device: torch.device) -> "Stream":
        """The same stream with its pool on a device."""
        return replace(
            self,
            x=self.x.to(device),
            y=self.y.to(device),
            row=self.row.to(device),
            task=self.task.to(device),
        )

    def example(self, dtype: torch.dtype) -> Tensor:
        """Two rows of inputs, to check a network with: (2, ...)."""
        row = self.row[0, torch.tensor([0, -1])]
        return self.batch(row, torch.ones_like(row, dtype=torch.bool), row * 0, dtype).x


class Rows(NamedTuple):
    """One split's rows for every replica, task after task.

    row: int64 (replicas, n) pool rows. task: int64 (replicas, n).
    offset: int64 (replicas, tasks + 1); task k's rows are at offset[k] .. offset[k+1]-1.
    """

    row: Tensor
    task: Tensor
    offset: Tensor


@dataclass(frozen=True)
class Splits:
    """The disjoint rows that train, validate and test."""

    train: Rows
    validation: Rows
    test: Rows

    def named(self, name: str) -> Rows:
        """The split of a name: "train", "validation" or "test"."""
        rows: Rows = getattr(self, name)
        return rows


def split(stream: Stream, seeds: Sequence[int], shares: tuple[float, float, float]) -> Splits:
    """Each task's rows in an order of the seed's own: first train, then validation, then test.

    shares: of a task's rows, adding up to 1 (60/20/20 in the paper, section 4). Train and test
    counts are rounded to the nearest row, validation takes the rest.
    Raises DataError for a task with too few rows for one in each split.
    """
    device = stream.row.device
    replicas, tasks = len(seeds), len(stream.tasks)
    seed = torch.tensor(seeds, dtype=torch.int64, device=device)
    n = stream.row.shape[1]
    task = stream.task.expand(replicas, n)
    count = torch.zeros(replicas, tasks, dtype=torch.int64, device=device)
    count.scatter_add_(1, task, torch.ones_like(task))
    train, test = ((count * share + 0.5).floor().long() for share in (shares[0], shares[2]))
    parts = (train, count - train - test, test)
    _check_counts(stream, count, parts)

    order = keys.permutation(keys.derive(seed, keys.Purpose.SPLIT), n)
    shuffled = task.gather(1, order)
    by_task = torch.argsort(shuffled, dim=1, stable=True)
    order, task = order.gather(1, by_task), shuffled.gather(1, by_task)
    row = stream.row.expand(replicas, n).gather(1, order)
    start = _offsets(count).gather(1, task)
    rank = torch.arange(n, device=device) - start
    out, low = [], torch.zeros_like(count)
    for part in parts:
        high = low + part
        inside = (rank >= low.gather(1, task)) & (rank < high.gather(1, task))
        out.append(_select(row, task, inside, part))
        low = high
    return Splits(*out)


def _select(row: Tensor, task: Tensor, inside: Tensor, count: Tensor) -> Rows:
    """The rows marked by `inside`, in order; padded at the end where replicas have fewer."""
    width = int(count.sum(1).max())
    first = torch.argsort((~inside).to(torch.int8), dim=1, stable=True)[:, :width]
    return Rows(row.gather(1, first), task.gather(1, first), _offsets(count))


def _offsets(count: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(count[:, :1]), count.cumsum(1)], dim=1)


def _check_counts(stream: Stream, count: Tensor, parts: Sequence[Tensor]) -> None:
    for name, part in zip(("training", "validation", "test"), parts, strict=True):
        short = (part < 1).any(0).nonzero()
        if len(short):
            k = int(short[0])
            raise DataError(
                f"Every task needs a row to train, to validate and to test; task {k} "
                f"('{stream.tasks[k]}') has {int(count[:, k].min())} rows, none for {name}. "
                "Give it more rows, or change stream.split."
            )


@dataclass(frozen=True, kw_only=True)
class StreamSettings(Settings):
    """What every stream can be asked for; a stream's own settings come on top.

    tasks: how many tasks from the start of the stream, None for all.
    split: shares of a task's rows that train, validate and test.
    """

    network: ClassVar[str] = "mlp"
    """The network that a spec without one gets."""

    places: ClassVar[tuple[str, ...]] = ()
    """Settings that say where files are: they move no numbers, so runs in a folder may differ."""

    tasks: Positive | None = None
    split: Annotated[tuple[float, float, float], at.Len(3, 3)] = (0.6, 0.2, 0.2)

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.split) <= 0 or abs(sum(self.split) - 1) > 1e-6:
            raise SpecError(
                f"split must be three shares above 0 that add up to 1, got {list(self.split)}."
            )

    def build(self, seeds: Sequence[int]) -> Stream:
        """Reads or draws the data. Raises DataError where that cannot be done."""
        raise NotImplementedError


def class_incremental(
    name: str,
    x: Tensor,
    y: Tensor,
    classes: Sequence[str],
    tasks: int | None,
) -> Stream:
    """One class a task, in the order of the class numbers (sections 4 and B.1 of the paper).

    x: (rows, ...). y: int64 (rows,) in 0 .. len(classes)-1. classes: original names.
    tasks: how many to keep, None for all. The model's output keeps a place for every class.
    Raises DataError for values that are not finite, a class without rows, or too few classes.
    """
    if tasks is not None and tasks > len(classes):
        raise SpecError(f"tasks must be at most {len(classes)} for stream '{name}', got {tasks}.")
    if x.is_floating_point():
        bad = (~x.isfinite()).nonzero()
        if len(bad):
            where = ", ".join(str(i) for i in bad[0, 1:].tolist())
            raise DataError(
                f"Inputs must be finite; row {int(bad[0, 0])} of stream '{name}' has "
                f"{x[tuple(bad[0])].item()} at ({where}), and {len(bad)} values are so in all. "
                "Clean or drop those rows."
            )
    counts = torch.bincount(y, minlength=len(classes))
    if int(counts.min()) == 0:
        lacking = classes[int(counts.argmin())]
        raise DataError(f"Every class needs rows; class '{lacking}' of '{name}' has none.")
    kept = tasks or len(classes)
    row = torch.argsort(y, stable=True)[: int(counts[:kept].sum())]
    return Stream(
        name=name,
        kind="classification",
        x=x,
        y=y,
        row=row[None],
        task=y[row][None],
        tasks=tuple(classes[:kept]),
        classes=tuple(classes),
        outputs=len(classes),
    )
