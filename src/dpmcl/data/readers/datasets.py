"""Data sets of PyTorch and of Hugging Face as labelled data: all items read once, into one pool."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import IterableDataset, Subset

from dpmcl.core.model import Kind
from dpmcl.data.damaged import whole
from dpmcl.data.labelled import Labelled, from_arrays
from dpmcl.data.labels import plain_array, unmasked
from dpmcl.data.readers.pil_images import open_image, plain
from dpmcl.data.readers.rows import Rows
from dpmcl.data.readers.tables import read_table
from dpmcl.exceptions import DataError, reason

_IMAGES_AT_ONCE = 64
_NUMBERS_AT_ONCE = 4096
_SHOWN = 30  # names that an error lists


@dataclass(frozen=True)
class _Fields:
    """The keys or columns of inputs, labels and tasks."""

    x: str | None
    y: str | None
    task: str | None

    def check(self, names: Sequence[str], what: str) -> None:
        """Refuse a name that is not among those of an item or a table. Raises DataError."""
        for role, name in (("x", self.x), ("y", self.y), ("task", self.task)):
            if name is not None and name not in names:
                raise DataError(
                    f"{_start(what)} has no {name!r} for {role}; it has {_some(names)}."
                )
        wanted = [name for name in (self.x, self.y, self.task) if name is not None]
        if len(set(wanted)) < len(wanted):
            raise DataError(f"x, y and task must be different, got {_some(wanted)}.")


def read_dataset(
    dataset: Any,
    *,
    kind: Kind | None = None,
    name: str | None = None,
    x: str | None = None,
    y: str | None = None,
    task: str | None = None,
) -> Labelled:
    """Return all items of a data set as labelled data.

    Items are (x, y) or (x, y, task), or dicts. Inputs are tensors, arrays, numbers, lists of
    numbers, or PIL images, which become uint8 (channels, height, width) as image files do: upright,
    grey where all are, else RGB (`pil_images.plain`). All must have one shape. They keep their type
    as in `from_arrays`; Python's whole numbers count as floats. Labels are as for `from_arrays`;
    where the data set has `classes` (strings, as torchvision's) and labels are their numbers, those
    are the names, in that order, without those that no item has.

    Args:
        dataset: A map-style data set of PyTorch, a list of items, or a Hugging Face `Dataset`.
        kind: "classification" or "regression", None to tell by the labels.
        name: For titles.
        x: The key of a dict's inputs. Of a Hugging Face `Dataset`, a column of images, numbers or
            lists of numbers of one length; None for the only image column or, where there is none,
            for all other columns, as a table (see `read_table`).
        y: The key or column of labels; None for "label" of a Hugging Face `Dataset`.
        task: The key or column of tasks.

    Raises:
        DataError: An item cannot be read or used. What does not fit in memory goes to a temporary
            file, and there is no room.

    >>> data = read_dataset([([0.5, 1.0], "b"), ([0.1, 2.0], "a")])
    >>> data.x.shape, data.y.tolist(), data.classes
    (torch.Size([2, 2]), [1, 0], ('a', 'b'))
    """
    if isinstance(dataset, Mapping):
        raise DataError(
            f"A dataset must be a single one, got a {type(dataset).__name__} with the keys "
            f"{_some(list(dataset))}; pick one of them."
        )
    rows, fields = _length(dataset), _Fields(x, y, task)
    if _is_hugging_face(dataset):
        title = name or dataset.info.dataset_name or "dataset"
        return _Columns(dataset, rows, title).labelled(fields, kind)
    title = name or type(dataset).__name__
    inputs, labels, tasks = _items(dataset, rows, title, fields)
    data = from_arrays(inputs, labels, tasks, name=title, kind=kind)
    names = _class_names(dataset)
    numbers = all(type(label) is int for label in labels)
    if data.kind == "regression" or not numbers or names is None:
        return data
    if min(labels) < 0 or max(labels) >= len(names):
        return data
    note = f"classes: named by the {type(dataset).__name__}'s `classes`, in its order"
    return replace(data, classes=_named(data.classes, names), notes=(note,))


def _length(dataset: Any) -> int:
    rows = None
    if hasattr(dataset, "__getitem__") and not isinstance(dataset, IterableDataset):
        with suppress(TypeError, RuntimeError, ValueError):
            rows = len(dataset)
    if rows is None:
        raise DataError(
            "A dataset must have a length and numbered items (map-style), got a "
            f"{type(dataset).__name__}; make a list of it."
        )
    if rows == 0:
        raise DataError(f"A dataset must have items, and this {type(dataset).__name__} has none.")
    return rows


# ---- items ---------------------------------------------------------------------------------------


def _items(dataset: Any, rows: int, title: str, fields: _Fields) -> tuple[Any, Any, Any]:
    """Return the inputs, labels and tasks of all items, None for tasks where there are none."""
    way_out = "resize or convert them in the dataset, as by a transform"
    gathered = Rows(rows, lambda row: f"item {row} of '{title}'", way_out)
    labels: list[Any] = []
    tasks: list[Any] = []
    for i in range(rows):
        what = f"item {i} of '{title}'"
        try:
            item = dataset[i]
        except Exception as error:  # a user's code, which may raise anything
            why = f"{type(error).__name__}: {reason(error)}"
            raise DataError(f"{_start(what)} cannot be read ({why}); correct or drop it.") from None
        inputs, label, task = _split(item, what, fields)
        if _is_picture(inputs):
            gathered.put_image(i, _pixels(inputs, what))
        else:
            gathered.put(i, _values(inputs, what)[None])
        labels.append(_label(label, what, "label"))
        if task is not None or fields.task is not None or tasks:
            tasks.append(_label(task, what, "task"))
        if tasks and len(tasks) != i + 1:
            raise DataError(
                f"Every item needs a task or none does; item 0 of '{title}' has none and item {i} "
                f"the task {task!r:.40}."
            )
    shapes = [np.shape(label) for label in labels]
    odd = next((i for i, shape in enumerate(shapes) if shape != shapes[0]), None)
    if odd is not None:
        raise DataError(
            f"Targets must all have one shape; item 0 of '{title}' has {shapes[0]} and item {odd} "
            f"{shapes[odd]}."
        )
    return gathered.full(), np.stack(labels) if shapes[0] else labels, tasks or None


def _split(item: Any, what: str, fields: _Fields) -> list[Any]:
    """Return the inputs, the label and the task of an item, None where it has none."""
    if isinstance(item, Mapping):
        if fields.x is None or fields.y is None:
            raise DataError(
                f"{_start(what)} is a dict, so x and y must name its inputs and label; it has "
                f"{_some(list(item))}."
            )
        fields.check(list(item), what)
        return [item[fields.x], item[fields.y], fields.task and item[fields.task]]
    if not isinstance(item, tuple | list) or len(item) not in (2, 3):
        size = f" of {len(item)}" if isinstance(item, tuple | list) else ""
        raise DataError(
            f"An item must be (x, y), (x, y, task) or a dict; {what} is a "
            f"{type(item).__name__}{size}; change what the dataset returns."
        )
    if fields != _Fields(None, None, None):
        raise DataError(
            f"x, y and task name the keys of dicts; {what} is a {type(item).__name__}; leave them "
            "out."
        )
    return [*item, None][:3]


def _is_picture(inputs: Any) -> bool:
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(inputs, pillow.Image)


def _values(inputs: Any, what: str) -> NDArray[Any]:
    """Return the inputs of an item as an array of numbers."""
    array = _array(inputs, what, "inputs")
    if array.dtype.kind not in "biufc":
        raise DataError(
            f"{_start(what)} must have numbers, an array or an image as inputs, got a "
            f"{type(inputs).__name__}; convert it, as by a transform."
        )
    if isinstance(inputs, int | list | tuple) and array.dtype.kind in "iu":
        return array.astype(np.float64)  # so that [0, 1] and [0.5, 1] are of one type
    return array


def _array(value: Any, what: str, role: str) -> NDArray[Any]:
    try:
        if isinstance(value, Tensor):
            return plain_array(value, "The values")
        return np.asarray(unmasked(value, "The values"))
    except Exception as error:  # NumPy asks any object what it is
        raise DataError(
            f"{_start(what)} must have numbers of one shape as {role} ({reason(error)}); convert "
            "them."
        ) from None


def _pixels(image: Any, what: str, mode: str | None = None) -> NDArray[np.uint8]:
    """Return a PIL image, converted to a mode first, as uint8 (channels, height, width)."""
    array = np.asarray(plain(image, what, mode=mode))
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def _label(value: Any, what: str, role: str) -> Any:
    """Return a label, task or target as a plain value, or an array of several numbers."""
    if isinstance(value, Tensor | np.ndarray | np.generic | list | tuple):
        array = _array(value, what, role)
        value = array.item() if array.size == 1 else array
    several = isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.ndim == 1
    if not (several and role == "label") and not isinstance(
        value, bool | int | float | str | bytes
    ):
        got = "none" if value is None else f"a {type(value).__name__}"
        raise DataError(
            f"{_start(what)} must have a {role}, a string or a number, got {got}; convert or "
            "drop it."
        )
    return value


def _class_names(dataset: Any) -> list[str] | None:
    """Return the data set's names of classes, also of a part of it; None where it has none."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    names = getattr(dataset, "classes", None)
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return None
    return list(names) if len(set(names)) == len(names) else None


def _named(numbers: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    return tuple(names[int(number)] for number in numbers)


# ---- columns of Hugging Face's -------------------------------------------------------------------


def _is_hugging_face(dataset: Any) -> bool:
    """Return True for a Dataset of theirs; one with a transform is read by its items instead."""
    parts = ("features", "column_names", "with_format", "format")
    return all(hasattr(dataset, part) for part in parts) and dataset.format["type"] != "custom"


class _Columns:
    """The columns of a Hugging Face data set, read by pyarrow."""

    def __init__(self, dataset: Any, rows: int, title: str) -> None:
        shown = dataset.format
        self.dataset, self.rows, self.title = dataset, rows, title
        self.names: list[str] = list(
            dataset.column_names if shown["output_all_columns"] else shown["columns"]
        )

    def labelled(self, fields: _Fields, kind: Kind | None) -> Labelled:
        """Return the rows as labelled data."""
        x, y, task = self._roles(fields)
        images, classes = self._of("Image"), self._of("ClassLabel")
        kind = kind or ("classification" if y in classes else None)
        if x is None:
            table = self._table_by_name({*classes} - {y, task})
            data = read_table(table, target=y, task=task, kind=kind, name=self.title)
        else:
            inputs = self._images(x) if x in images else self._numbers(x)
            tasks = None if task is None else self._labels(task)
            data = from_arrays(inputs, self._labels(y), tasks, name=self.title, kind=kind)
        notes = data.notes
        if y in classes and data.kind == "classification":
            data = replace(data, classes=self._declared(y, data.classes))
            notes = tuple(n for n in notes if not n.startswith(("target: ", "classes: ")))
            count = len(data.classes)
            notes += (f"target: {y}, {count} classes named as it declares, in its order",)
        passed = [c for c in self.names if x is not None and c not in (x, y, task)]
        notes += (f"columns passed over: {', '.join(passed)}",) if passed else ()
        if task in classes:
            data = replace(data, tasks=self._declared(task, data.tasks))
        return replace(data, notes=notes)

    def _roles(self, fields: _Fields) -> tuple[str | None, str, str | None]:
        """Return the columns of inputs, labels and tasks; None for all others as inputs."""
        if fields.y is None and "label" not in self.names:
            raise DataError(
                f"y must name the labels' column of '{self.title}'; it has {_some(self.names)}."
            )
        fields = replace(fields, y=fields.y or "label")
        fields.check(self.names, f"'{self.title}'")
        images = self._of("Image")
        for role, column in (("y", fields.y), ("task", fields.task)):
            if column in images:
                raise DataError(
                    f"{role} must name a column of labels, and {self._what(column)} has images."
                )
        if fields.x is None and len(images) > 1:
            raise DataError(
                f"'{self.title}' has several image columns: {_some(images)}; set x to one."
            )
        return fields.x or (images[0] if images else None), fields.y or "label", fields.task

    def _of(self, feature: str) -> list[str]:
        """Return the columns with a feature of that class."""
        return [c for c in self.names if type(self.dataset.features[c]).__name__ == feature]

    def _what(self, column: str) -> str:
        return f"column '{column}' of '{self.title}'"

    def _declared(self, column: str, numbers: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names that a ClassLabel column declares for the numbers in it."""
        names = self.dataset.features[column].names
        for number in numbers:
            if not 0 <= int(number) < len(names):
                missing = ", which stands for a missing label" if number == "-1" else ""
                raise DataError(
                    f"{_start(self._what(column))} names {len(names)} classes, and has the "
                    f"number {number}{missing}; drop those rows."
                )
        return _named(numbers, names)

    def _table(self, columns: list[str], start: int = 0, stop: int | None = None) -> Any:
        """Return rows as a pyarrow Table, in the data set's order, whose bytes make sense."""
        try:
            table = self.dataset.with_format("arrow", columns=columns)[start:stop]
            table.validate(full=True)
        except Exception as error:  # files of any origin, read by another library
            raise DataError(
                f"Rows {start} and following of '{self.title}' cannot be read "
                f"({reason(error)}); write or fetch them again."
            ) from None
        return table

    def _table_by_name(self, classes: set[str]) -> Any:
        """Return all columns, these of class numbers by name."""
        import pyarrow as pa
        import pyarrow.compute as pc

        table = self._table(self.names)
        for column in sorted(classes):
            names = self.dataset.features[column].names
            number = table.column(column).cast(pa.int64()).combine_chunks()
            known = pc.and_(pc.greater_equal(number, 0), pc.less(number, len(names)))
            number = pc.if_else(known, number, pa.scalar(None, pa.int64()))
            texts = pa.array(names, pa.string()).take(number).dictionary_encode()
            table = table.set_column(table.column_names.index(column), column, texts)
        return table

    def _pieces(self, column: str, step: int) -> Iterator[tuple[int, Any]]:
        """Return a column's arrays, with the number of the first row of each."""
        for start in range(0, self.rows, step):
            for chunk in self._table([column], start, start + step).column(column).chunks:
                if len(chunk):
                    yield start, chunk
                    start += len(chunk)

    def _labels(self, column: str) -> NDArray[Any]:
        """Return labels, tasks or targets."""
        pieces = list(self._pieces(column, self.rows))
        if _nested(pieces[0][1].type):
            return np.concatenate([self._dense(start, chunk, column) for start, chunk in pieces])
        return cast(NDArray[Any], self._table([column]).column(column).to_numpy())

    def _numbers(self, column: str) -> NDArray[Any]:
        rows = self._gathered(column, "make them so with map()")
        for start, chunk in self._pieces(column, _NUMBERS_AT_ONCE):
            rows.put(start, self._dense(start, chunk, column))
        return rows.full()

    def _images(self, column: str) -> NDArray[Any]:
        rows = self._gathered(column, "resize them with map()")
        for start, chunk in self._pieces(column, _IMAGES_AT_ONCE):
            for i, image in enumerate(chunk.to_pylist(), start):
                what = f"row {i} of {self._what(column)}"
                decoded = open_image(_content(image, what), what)
                # Turned upright before it is converted, as `datasets` itself does.
                rows.put_image(i, _pixels(decoded, what, self.dataset.features[column].mode))
        return rows.full()

    def _gathered(self, column: str, way_out: str) -> Rows:
        return Rows(self.rows, lambda row: f"row {row} of {self._what(column)}", way_out)

    def _dense(self, start: int, array: Any, column: str) -> NDArray[Any]:
        """Return numbers, or lists of numbers of one length at each depth, as (rows, ...).

        start: number of the array's first row.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        shape, what = [len(array)], _start(self._what(column))
        while _nested(array.type):
            if isinstance(array.type, pa.BaseExtensionType):
                array = array.storage
                continue
            _check_present(array, start, shape[0], what)
            lengths = pc.list_value_length(array).to_numpy(zero_copy_only=False)
            odd = np.flatnonzero(lengths != lengths[:1])
            if len(odd):
                row = start + int(odd[0]) // (len(array) // shape[0])
                raise DataError(
                    f"{what} must have lists of one length; row {start} has {lengths[0]} values "
                    f"and row {row} {lengths[odd[0]]}; make them so with map()."
                )
            array = array.flatten()
            shape.append(int(lengths[0]) if len(lengths) else 0)
        is_a = pa.types
        kind = array.type
        if not (is_a.is_integer(kind) or is_a.is_floating(kind) or is_a.is_boolean(kind)):
            raise DataError(
                f"{what} must be images, numbers or lists of numbers, got {str(kind)[:60]}; name "
                "another."
            )
        _check_present(array, start, shape[0], what)
        return cast(NDArray[Any], array.to_numpy(zero_copy_only=False)).reshape(shape)


def _nested(kind: Any) -> bool:
    import pyarrow as pa

    is_a = pa.types
    lists = is_a.is_list(kind) or is_a.is_large_list(kind) or is_a.is_fixed_size_list(kind)
    return lists or isinstance(kind, pa.BaseExtensionType)


def _check_present(array: Any, start: int, rows: int, what: str) -> None:
    """Refuse a missing value. Raises DataError."""
    if array.null_count:
        at = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        row = start + at // (len(array) // rows)
        raise DataError(f"{what} must have a value in every row, and row {row} lacks one; drop it.")


def _content(image: Any, what: str) -> bytes:
    """Return the bytes of a stored image, never from a network."""
    content = image and image.get("bytes")
    if content is not None:
        return cast(bytes, content)
    path = image and image.get("path")
    if not path:
        raise DataError(f"{_start(what)} has no image; drop it.")
    if "://" in path or not os.path.isfile(path):  # noqa: PTH113 (False for impossible names)
        raise DataError(
            f"{_start(what)} names {path!r:.80}, which is no file here; correct or drop it."
        )
    with whole(_start(what), "correct or drop it"):
        return Path(path).read_bytes()


def _some(names: Sequence[Any]) -> str:
    """Return the first names of a list, as an error shows them."""
    more = ", ..." if len(names) > _SHOWN else ""
    return (", ".join(repr(name) for name in names[:_SHOWN]) or "nothing") + more


def _start(text: str) -> str:
    """Return a text as the start of a sentence; capitalize() would change names in it."""
    return text[0].upper() + text[1:]
