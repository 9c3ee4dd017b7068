"""A stream: tasks in their order over one pool of rows.

The pool holds every row once, on the device, in its compact type. Everything else holds row
numbers of shape (replicas, n), so replicas may share rows (MNIST) or own theirs (SINE).
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

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
from dpmcl.exceptions import SpecError, shown

LIMIT = 10.0
"""Deviations that a scaled input may be away from the first task's mean; beyond, it is cut off."""


class Scale(NamedTuple):
    """Mean and deviation of each replica's first task.

    Attributes:
        x_mean: (replicas, ...), as all of these; for inputs.
        x_deviation: For inputs.
        y_mean: (replicas, outputs), for targets.
        y_deviation: For targets.
    """

    x_mean: Tensor
    x_deviation: Tensor
    y_mean: Tensor
    y_deviation: Tensor


@dataclass(frozen=True, eq=False)
class Stream:
    """Tasks over a pool.

    Attributes:
        name: For titles.
        kind: "classification" or "regression".
        x: Inputs (rows, ...) in a compact type; uint8 values mean x / 255.
        y: int64 (rows,) class numbers 0 .. outputs-1, or float (rows, outputs).
        row: int64 (1 or replicas, n), pool rows in task order; 1 if all replicas share rows.
        task: int64, same shape, the task of each, not decreasing.
        tasks: A name for each task.
        classes: The original name of each class number; empty for regression.
        outputs: Width of the model's output.
        scenario: A line that says how rows became tasks.
        view: How each task sees the inputs; None for all as they are.
        within: bool (tasks, classes), the classes among which the answer is looked for at test
            time, if the task is known then; None for all classes.
        repeats: Whether a row belongs to several tasks; it is in the same split in all of them.
        blur: Share of a task's training rows that arrives in the neighbouring tasks.
        scaled: bool, the shape of an input; which are brought to the first task's mean and
            deviation; None for none.
        scale: Those means and deviations, once they are fitted (`scaling.fitted`).
        fields: The columns of a table that are inputs; empty elsewhere.
        following: int64 (rows,), for a stream that knows its dynamics: the pool row to which each
            row moves when the next task comes, so dx is exact; a row that moves no further names
            itself.
        trajectory: int64 (rows,), rows of one number are one moving point, and are split alike.
        background: int64 (m,), pool rows of classes that are in no task, class after class; None
            where there are none.
        notes: Lines that say what became of the source (`Labelled`).
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

    @property
    def columns(self) -> tuple[str, ...]:
        """Return a name for each input of a table; () elsewhere."""
        return names_of(self.fields)

    @classmethod
    def of(cls, data: Labelled, settings: ScenarioSettings | None = None) -> "Stream":
        """Make tasks of labelled data.

        Args:
            data: The rows.
            settings: Of the scenario; one class a task if None.

        Returns:
            The stream.

        Raises:
            SpecError: The scenario does not suit the data.
            DataError: There are too few rows.
        """
        settings = settings or ScenarioSettings()
        if not isinstance(data.name, str):
            raise SpecError(f"A stream's name must be text, got {shown(data.name)}.")
        made = plan(data, settings)
        return cls(
            name=data.name,
            kind=data.kind,
            x=data.x,
            y=data.y,
            row=made.row[None],
            task=made.task[None],
            tasks=made.names,
            classes=data.classes,
            outputs=len(data.classes) if data.kind == "classification" else data.y.shape[1],
            scenario=made.scenario,
            view=made.view,
            within=made.within,
            repeats=made.repeats,
            blur=settings.blur,
            scaled=data.scaled,
            fields=data.fields,
            background=made.background,
            notes=data.notes,
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
        """Make a stream of arrays, tensors or lists.

        Args:
            x: Inputs (rows, ...); uint8 values mean x / 255.
            y: Labels (strings, whole numbers, true/false), or floats for regression.
            task: A label a row, if the data bring tasks.
            name: For titles.
            kind: "classification" or "regression"; None to tell by y.
            **scenario: Settings of `ScenarioSettings`, as in classes_per_task=2.

        Returns:
            The stream.

        Raises:
            DataError: The data cannot be used.
            SpecError: The settings cannot.

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
        """Make a stream of images in a folder, zip or tar, one folder a class.

        Args:
            path: Of the folder or archive.
            size: (height, width), None if all images have one.
            channels: 1 grey, 3 RGB, None to tell by the images.
            crop: Whether to cut the centre out instead of resizing.
            invert: Whether values become 255 - value.
            levels: How many folders below the path make a class name.
            name: For titles; None for the name of the path.
            **scenario: As for `from_arrays`.

        Returns:
            The stream.

        Raises:
            DataError: The images cannot be used.
            SpecError: The settings cannot.
        """
        from dpmcl.data.readers.images import Decoding, labelled_images

        decoding = Decoding(size=size, channels=channels, crop=crop, invert=invert, levels=levels)
        settings = _settings(scenario)  # before the images are read, which takes a while
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
        """Make a stream of a table.

        Args:
            table: A CSV or Parquet file, a pyarrow or pandas table, a dict of columns.
            target: The column to predict.
            task: The column that says the tasks, if there is one.
            kind: "classification" or "regression"; None to tell by the target.
            ignore: Columns to leave out.
            scale: Whether numeric inputs (and targets of regression) are brought to mean 0,
                deviation 1, fitted on the first task's training rows alone.
            name: For titles; None for the name of the file.
            **scenario: As for `from_arrays`.

        Returns:
            The stream.

        Raises:
            DataError: The table cannot be used.
            SpecError: The settings cannot.
        """
        from dpmcl.data.readers.tables import read_table

        settings = _settings(scenario)
        check_task_column(task, settings.scenario)
        data = read_table(
            table, target=target, task=task, kind=kind, ignore=ignore, scale=scale, name=name
        )
        return cls.of(data, settings)

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
        """Make a stream of a data set of PyTorch or Hugging Face.

        Args:
            dataset: A map-style `torch.utils.data.Dataset` or a Hugging Face `Dataset`. Items are
                (x, y), (x, y, task), or dicts.
            x: Key or column of the inputs.
            y: Key or column of the labels.
            task: Key or column of the tasks, if there is one.
            kind: "classification" or "regression"; None to tell by the labels.
            name: For titles.
            **scenario: As for `from_arrays`.

        Returns:
            The stream.

        Raises:
            DataError: The data cannot be used.
            SpecError: The settings cannot.
        """
        from dpmcl.data.readers.datasets import read_dataset

        settings = _settings(scenario)
        data = read_dataset(dataset, x=x, y=y, task=task, kind=kind, name=name)
        return cls.of(data, settings)

    def batch(
        self,
        row: Tensor,
        present: Tensor,
        task: Tensor,
        dtype: torch.dtype,
        *,
        replica: int | slice = slice(None),
    ) -> Batch:
        """Return rows as a batch; x is in [0, 1] for uint8 pools.

        Args:
            row: int64 of any shape, rows of the pool.
            present: bool, same shape; weights are 0 where it is False.
            task: int64, same shape, the task that sees each row.
            dtype: Of x, of the weights, and of targets of regression.
            replica: Whose rows they are; a slice if row's first dimension is replicas.
        """
        wide = dtype if self.scale is None else torch.float64  # rounded after the scaling alone
        x, y = self.x[row].to(wide), self.y[row]
        if self.kind == "regression":
            y = y.to(wide)
        if self.x.dtype == torch.uint8:
            x = x / 255
        if self.scale is not None:
            scale = Scale(*(leaf[replica] for leaf in self.scale))
            if isinstance(replica, slice):  # replicas first, then the rest of the row numbers
                ones = [1] * (row.dim() - 1)
                scale = Scale(*(leaf.view(len(leaf), *ones, *leaf.shape[1:]) for leaf in scale))
            near = ((x - scale.x_mean) / scale.x_deviation).clamp(-LIMIT, LIMIT)
            assert self.scaled is not None
            x = torch.where(self.scaled, near, x).to(dtype)
            if self.kind == "regression":
                y = ((y - scale.y_mean) / scale.y_deviation).to(dtype)
        if self.view is not None:
            x = self.view.apply(x, task)
        return Batch(x, y, present.to(dtype), task, row)

    def to(self, device: torch.device) -> "Stream":
        """Return the stream with its tensors on a device.

        Args:
            device: The device.
        """
        tensors = {
            f.name: tree_map(lambda leaf: leaf.to(device), value)
            for f in dataclasses.fields(self)
            if isinstance(value := getattr(self, f.name), Tensor | View | Scale)
        }
        return replace(self, **tensors)

    def example(self, dtype: torch.dtype) -> Tensor:
        """Return rows of inputs to check a network with, from all over the stream: (n, ...).

        They are distinct, and six if there are as many among 36.

        Args:
            dtype: Of the inputs.
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
        """Return the stream's first tasks; classes and outputs stay.

        Args:
            tasks: How many.
        """
        last = int((self.task < tasks).sum(1).max())
        if not bool((self.task[:, :last] < tasks).all()):
            raise NotImplementedError("replicas with unlike numbers of rows cannot be cut")
        return replace(
            self, row=self.row[:, :last], task=self.task[:, :last], tasks=self.tasks[:tasks]
        )

    def same_rows(self, replica: int, alone: "Stream") -> bool:
        """Return whether a replica has the rows that it has where it is alone.

        Args:
            replica: Which one.
            alone: The stream of that replica alone.
        """
        row, task = (rows[min(replica, len(rows) - 1)] for rows in (self.row, self.task))
        return torch.equal(task, alone.task[0]) and all(
            torch.equal(ours[row], theirs[alone.row[0]])
            for ours, theirs in ((self.x, alone.x), (self.y, alone.y))
        )

    def digest(self) -> str:
        """Return a fingerprint of all that the stream delivers: SHA-256, in hex."""
        out = hashlib.sha256()
        for f in dataclasses.fields(self):
            name = "columns" if f.name == "fields" else f.name  # as it was called at first
            value = getattr(self, name)
            # Streams without dynamics or background keep the fingerprint that they always had.
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


def _settings(scenario: dict[str, Any]) -> ScenarioSettings:
    """Return the settings of a scenario from keyword arguments."""
    return ScenarioSettings.from_table(scenario, "a stream's scenario:")
