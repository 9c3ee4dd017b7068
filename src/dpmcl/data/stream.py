"""A stream: a sequence of tasks over one pool of rows.

The pool holds every row once, on the device, in a compact type. Tasks and splits hold row numbers
of shape (replicas, n), so replicas may share rows (MNIST) or have different ones (SINE).
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from dpmcl.core import fingerprint
from dpmcl.core.atomic import path_of
from dpmcl.core.batch import Batch
from dpmcl.core.model import Kind
from dpmcl.core.threads import threads
from dpmcl.core.tree import tree_map
from dpmcl.data.field import Field, names_of
from dpmcl.data.labelled import Labelled, from_arrays
from dpmcl.data.scenario import ScenarioSettings, check_task_column, plan
from dpmcl.data.view import View
from dpmcl.exceptions import DataError, SpecError, shown

LIMIT = 10.0
"""Bound in standard deviations from the first task's mean, to which scaled inputs are clipped."""


class Scale(NamedTuple):
    """Means and standard deviations of the first task's training rows, for each replica.

    Attributes:
        x_mean: Means of inputs, (replicas, ...).
        x_deviation: Standard deviations of inputs, (replicas, ...).
        y_mean: Means of targets, (replicas, outputs).
        y_deviation: Standard deviations of targets, (replicas, outputs).
    """

    x_mean: Tensor
    x_deviation: Tensor
    y_mean: Tensor
    y_deviation: Tensor


@dataclass(frozen=True, eq=False)
class Stream:
    """Sequence of tasks over a pool of rows.

    Attributes:
        name: Name for titles.
        kind: "classification" or "regression".
        x: Inputs of the pool, (rows, ...), in a compact type; uint8 values stand for x / 255.
        y: Class numbers 0 .. outputs-1, int64 (rows,), or targets, float (rows, outputs).
        row: Pool rows in order of task, int64 (1 or replicas, n); 1 if all replicas share rows.
        task: Task of each entry of `row`, not decreasing, int64 (1 or replicas, n).
        tasks: Name of each task.
        classes: Original name of each class number; empty for regression.
        outputs: Width of the model's output.
        scenario: Description of how rows became tasks, in one line.
        view: Transformation of the inputs in each task; None to leave them as they are.
        within: Classes among which a prediction is chosen at test time if the task is known, bool
            (tasks, classes); None for all classes.
        repeats: Whether a row belongs to several tasks. It is in the same split in all of them.
        blur: Share of a task's training and validation rows that arrives in the neighbouring tasks.
        scaled: Mask of the inputs that are standardised by the first task's mean and standard
            deviation, bool, the shape of one input; None if none is.
        scale: These means and standard deviations; None until `scaling.fit_scale` has been called.
        fields: Columns of a table that are inputs; empty for other sources.
        following: Pool row to which each row moves at the next task, int64 (rows,), if the stream
            knows its dynamics; this makes dx exact. A row that stays has its own number. None
            otherwise.
        trajectory: Number of the moving point to which each row belongs, int64 (rows,); all rows
            of a point are in the same split. None if rows are independent.
        background: Pool rows of the classes that are in no task, sorted by class, int64 (m,); None
            if there are none.
        notes: Lines about how the source was read (`Labelled.notes`).

    Raises:
        SpecError: Boundaries are blurred, and there is one task.
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
    scenario: str = ""
    view: View | None = None
    within: Tensor | None = None
    repeats: bool = False
    blur: float = 0.0
    scaled: Tensor | None = None
    scale: Scale | None = None
    fields: tuple[Field, ...] = ()
    following: Tensor | None = None
    trajectory: Tensor | None = None
    background: Tensor | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.blur and len(self.tasks) < 2:
            raise SpecError(
                "blur needs neighbours, got one task; leave it out, or take more tasks."
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """Name of each input if the source is a table, else ()."""
        return names_of(self.fields)

    @classmethod
    def of(cls, data: Labelled, settings: ScenarioSettings | None = None) -> "Stream":
        """Make a stream of tasks from labelled data.

        Args:
            data: Labelled rows.
            settings: Settings of the scenario. None for the tasks of the data, or one class per
                task if the data have no tasks.

        Returns:
            The stream.

        Raises:
            SpecError: The scenario does not suit the data.
            DataError: There are too few rows.
        """
        settings = settings or ScenarioSettings()
        if not isinstance(data.name, str):
            raise SpecError(f"A stream's name must be text, got {shown(data.name)}.")
        return cls(
            name=data.name,
            kind=data.kind,
            x=data.x,
            y=data.y,
            classes=data.classes,
            outputs=len(data.classes) if data.kind == "classification" else data.y.shape[1],
            blur=settings.blur,
            scaled=data.scaled,
            fields=data.fields,
            notes=data.notes,
            **plan(data, settings)._asdict(),
        )

    @classmethod
    @threads(1)
    def from_arrays(
        cls,
        x: Any,
        y: Any,
        task: Any = None,
        *,
        name: str = "arrays",
        kind: Kind | None = None,
        **scenario: Any,
    ) -> "Stream":
        """Make a stream from arrays, tensors or lists.

        Args:
            x: Inputs (rows, ...); uint8 values stand for x / 255.
            y: Labels (strings, whole numbers or true/false), or floats for regression.
            task: Task label of each row; None if the scenario makes the tasks.
            name: Name for titles.
            kind: "classification" or "regression"; None to infer it from y.
            **scenario: Settings of `ScenarioSettings`, such as classes_per_task=2.

        Returns:
            The stream.

        Raises:
            DataError: The data cannot be used.
            SpecError: The settings are invalid.

        >>> stream = Stream.from_arrays([[0.0], [1.0], [0.1]], ["b", "a", "b"])
        >>> stream.tasks, stream.row.tolist()
        (('a', 'b'), [[1, 0, 2]])
        """
        return cls.of(from_arrays(x, y, task, name=name, kind=kind), _settings(scenario))

    @classmethod
    @threads(1)
    def from_images(
        cls,
        path: str | Path,
        *,
        size: tuple[int, int] | None = None,
        channels: Literal[1, 3] | None = None,
        crop: bool = False,
        invert: bool = False,
        levels: int = 1,
        name: str | None = None,
        **scenario: Any,
    ) -> "Stream":
        """Make a stream from images in a folder, zip or tar that has one folder per class.

        Args:
            path: Path of the folder or archive.
            size: (height, width) of the inputs; None if all images have the same size.
            channels: 1 for grey, 3 for RGB; None for grey if all images are grey, else RGB.
            crop: Whether to crop the centre instead of resizing.
            invert: Whether to replace each value by 255 - value.
            levels: Number of nested folders whose names make a class name.
            name: Name for titles; None for the name of the folder or archive.
            **scenario: Settings of `ScenarioSettings`.

        Returns:
            The stream.

        Raises:
            DataError: The images cannot be used.
            SpecError: The settings are invalid.
        """
        from dpmcl.data.readers.images import Decoding, labelled_images

        decoding = Decoding(size=size, channels=channels, crop=crop, invert=invert, levels=levels)
        settings = _settings(scenario)  # checked before the images are read, which takes a while
        return cls.of(labelled_images(path_of(path), decoding, name), settings)

    @classmethod
    @threads(1)
    def from_table(
        cls,
        table: Any,
        *,
        target: str,
        task: str | None = None,
        kind: Kind | None = None,
        ignore: Sequence[str] = (),
        scale: bool = True,
        name: str | None = None,
        **scenario: Any,
    ) -> "Stream":
        """Make a stream from a table.

        Args:
            table: Path of a CSV or Parquet file, a pandas DataFrame, a table of pyarrow, polars or
                DuckDB, or a dict of columns.
            target: Column to predict.
            task: Column with the task of each row; None if the scenario makes the tasks.
            kind: "classification" or "regression"; None to infer it from the target.
            ignore: Columns to leave out.
            scale: Whether to scale numeric inputs (and targets of regression) to mean 0 and
                standard deviation 1, fitted on the first task's training rows only.
            name: Name for titles; None for the name of the file.
            **scenario: Settings of `ScenarioSettings`.

        Returns:
            The stream.

        Raises:
            DataError: The table cannot be used.
            SpecError: The settings are invalid.
        """
        from dpmcl.data.readers.tables import TableSettings, read_table

        settings = _settings(scenario, task)
        ignored = cast("tuple[str, ...]", ignore)  # checked by `TableSettings`
        columns = TableSettings(target=target, task=task, ignore=ignored, kind=kind, scale=scale)
        return cls.of(read_table(table, columns, name), settings)

    @classmethod
    @threads(1)
    def from_dataset(
        cls,
        dataset: Any,
        *,
        x: str | None = None,
        y: str | None = None,
        task: str | None = None,
        kind: Kind | None = None,
        name: str | None = None,
        **scenario: Any,
    ) -> "Stream":
        """Make a stream from a data set of PyTorch or Hugging Face.

        Args:
            dataset: Map-style `torch.utils.data.Dataset` or Hugging Face `Dataset`. Its items are
                (x, y), (x, y, task), or dicts.
            x: Key or column of the inputs. None if items are tuples; for a Hugging Face `Dataset`,
                None for its image column or, without one, all other columns.
            y: Key or column of the labels. None if items are tuples; for a Hugging Face `Dataset`,
                None for "label".
            task: Key or column of the tasks; None if there is none.
            kind: "classification" or "regression"; None to infer it from the labels.
            name: Name for titles; None for that of the data set or its class.
            **scenario: Settings of `ScenarioSettings`.

        Returns:
            The stream.

        Raises:
            DataError: The data cannot be used.
            SpecError: The settings are invalid.
        """
        from dpmcl.data.readers.datasets import DatasetSettings, read_dataset

        settings, parts = _settings(scenario, task), DatasetSettings(x=x, y=y, task=task, kind=kind)
        return cls.of(read_dataset(dataset, parts, name), settings)

    def batch(
        self,
        row: Tensor,
        present: Tensor,
        task: Tensor,
        dtype: torch.dtype,
        *,
        replica: int | slice = slice(None),
    ) -> Batch:
        """Return rows of the pool as a batch, scaled and as their tasks see them.

        Inputs stored as uint8 are divided by 255.

        Args:
            row: Rows of the pool, int64 of any shape.
            present: Mask of the rows that exist, bool, or their weights; same shape.
            task: Task in which each row is seen, int64, same shape.
            dtype: Type of inputs, weights and targets of regression.
            replica: Replica whose scale is used; a slice if the first dimension of `row` counts
                replicas.
        """
        work_type = dtype if self.scale is None else torch.float64  # rounded only after scaling
        x, y = self.x[row].to(work_type), self.y[row]
        if self.kind == "regression":
            y = y.to(work_type)
        if self.x.dtype == torch.uint8:
            x = x / 255
        if self.scale is not None:
            scale = Scale(*(leaf[replica] for leaf in self.scale))
            if isinstance(replica, slice):  # `row` is (replicas, ...)
                ones = [1] * (row.dim() - 1)
                scale = Scale(*(leaf.view(len(leaf), *ones, *leaf.shape[1:]) for leaf in scale))
            scaled = ((x - scale.x_mean) / scale.x_deviation).clamp(-LIMIT, LIMIT)
            assert self.scaled is not None
            x = torch.where(self.scaled, scaled, x).to(dtype)
            if self.kind == "regression":
                y = ((y - scale.y_mean) / scale.y_deviation).to(dtype)
        if self.view is not None:
            x = self.view.apply(x, task)
        return Batch(x, y, present.to(dtype), task, row)

    def to(self, device: torch.device) -> "Stream":
        """Return the stream with all its tensors on a device.

        Args:
            device: Target device.
        """
        tensors: dict[str, Any] = {
            f.name: tree_map(lambda leaf: leaf.to(device), value)
            for f in dataclasses.fields(self)
            if isinstance(value := getattr(self, f.name), Tensor | View | Scale)
        }
        return replace(self, **tensors)

    def example(self, dtype: torch.dtype) -> Tensor:
        """Return one to six distinct inputs from all over the stream, to check a network with.

        Args:
            dtype: Type of the inputs.

        Returns:
            Inputs (n, ...).
        """
        spread = torch.linspace(0, self.row.shape[1] - 1, 36).long().unique()
        row = self.row[0, spread.to(self.row.device)]
        x = self.batch(row, torch.ones_like(row, dtype=torch.bool), row * 0, dtype, replica=0).x
        _, number = x.flatten(1).unique(dim=0, return_inverse=True)
        same = number[:, None] == number
        first = same.to(torch.uint8).argmax(1) == torch.arange(len(x), device=x.device)
        distinct = x[first]
        return distinct[:: -(-len(distinct) // 6)]

    def first(self, tasks: int) -> "Stream":
        """Return a stream of the first tasks, with the same classes and outputs.

        Args:
            tasks: Number of tasks to keep.

        Raises:
            DataError: Replicas have different numbers of rows.
        """
        last = int((self.task < tasks).sum(1).max())
        if not bool((self.task[:, :last] < tasks).all()):
            raise DataError(
                "A stream cut to its first tasks must have as many rows there in every replica, "
                f"and '{self.name}' has not; leave tasks out."
            )
        return replace(
            self, row=self.row[:, :last], task=self.task[:, :last], tasks=self.tasks[:tasks]
        )

    def same_rows(self, replica: int, alone: "Stream") -> bool:
        """Return True if a replica has the same rows here and in a stream built for it alone.

        Args:
            replica: Index of the replica.
            alone: Stream built for that replica alone.
        """
        row, task = (rows[min(replica, len(rows) - 1)] for rows in (self.row, self.task))
        return torch.equal(task, alone.task[0]) and all(
            torch.equal(ours[row], theirs[alone.row[0]])
            for ours, theirs in ((self.x, alone.x), (self.y, alone.y))
        )

    def digest(self) -> str:
        """Return a fingerprint of all data in the stream: SHA-256, in hexadecimal digits."""
        out = hashlib.sha256()
        for f in dataclasses.fields(self):
            name = "columns" if f.name == "fields" else f.name  # its original name
            value = getattr(self, name)
            # Fields added later do not change the fingerprint of streams without them.
            absent = value is None and f.name in ("following", "trajectory", "background")
            if absent or f.name in ("name", "scenario", "notes"):
                continue
            out.update(name.encode())
            if isinstance(value, Tensor | View | Scale):
                for leaf in (value,) if isinstance(value, Tensor) else value:
                    fingerprint.add(out, leaf)
            else:
                out.update(repr(value).encode())
        return out.hexdigest()


def _settings(scenario: dict[str, Any], task: str | None = None) -> ScenarioSettings:
    """Return scenario settings from keyword arguments. task: Column of the tasks, or None."""
    settings = ScenarioSettings.from_table(scenario, "a stream's scenario:")
    check_task_column(task, settings.scenario)
    return settings
