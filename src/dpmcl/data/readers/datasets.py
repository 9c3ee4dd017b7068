"""Reader of data sets of PyTorch and Hugging Face, which reads all items once into one pool."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset

from dpmcl.core.model import Kind
from dpmcl.core.settings import Settings
from dpmcl.data.labelled import Labelled, from_arrays, numbers_of
from dpmcl.data.labels import family_of
from dpmcl.data.plain_arrays import unwrapped
from dpmcl.data.read_errors import reading
from dpmcl.data.readers.gathering import Gathering
from dpmcl.data.readers.images import Decoding, pixels
from dpmcl.data.readers.pil_images import open_image
from dpmcl.data.readers.table_sources import is_table, memory_source
from dpmcl.data.readers.tables import TableSettings, read_table
from dpmcl.exceptions import DataError, listed

_ROWS_AT_ONCE = 64


_Fields = Mapping[str, str]
"""Names of keys or columns by their roles "x", "y" and "task", in this order."""


@dataclass(frozen=True, kw_only=True)
class DatasetSettings(Settings):
    """Settings that decide how a data set is read.

    Attributes:
        x: Key of the inputs if items are dicts. For a Hugging Face `Dataset`, a column of images,
            numbers or lists of numbers of one length; None for the only image column or, if there
            is none, for all other columns, read as a table (see `read_table`).
        y: Key or column of the labels; None for "label" of a Hugging Face `Dataset`.
        task: Key or column of the tasks; None if there is none.
        kind: "classification" or "regression"; None to infer it from the labels.
    """

    x: str | None = None
    y: str | None = None
    task: str | None = None
    kind: Kind | None = None

    @property
    def fields(self) -> _Fields:
        """Return the names that are set, by their roles."""
        names = {"x": self.x, "y": self.y, "task": self.task}
        return {role: name for role, name in names.items() if name is not None}


def read_dataset(
    dataset: Any, settings: DatasetSettings | None = None, name: str | None = None
) -> Labelled:
    """Return all items of a data set as labelled data.

    Items are (x, y), (x, y, task), or dicts. Inputs are tensors, arrays, numbers, lists of numbers,
    or PIL images, all of one shape. Images become uint8 (channels, height, width) as image files
    do: upright, grey if all are grey, else RGB (`pil_images.plain_image`). Other inputs keep their
    type as in `from_arrays`; Python integers count as floats. Labels are those of `from_arrays`. If
    the data set has `classes` (strings, as torchvision's have), no `target_transform`, and labels
    that are indices of them, they name the classes, in their order; classes without items are left
    out.

    Data that do not fit in memory go to a temporary file.

    Args:
        dataset: Map-style data set of PyTorch, a list of items, or a Hugging Face `Dataset`.
        settings: Names of the parts of an item, and the kind; None for the defaults.
        name: Name for titles; None for that of the data set or its class.

    Raises:
        DataError: An item cannot be read or used, or there is no room for the data.

    >>> data = read_dataset([([0.5, 1.0], "b"), ([0.1, 2.0], "a")])
    >>> data.x.shape, data.y.tolist(), data.classes
    (torch.Size([2, 2]), [1, 0], ('a', 'b'))
    """
    if is_table(dataset):  # or a mapping of several data sets
        keys = memory_source(dataset, "the dataset").names
        raise DataError(
            f"A dataset must be a single one, got a {type(dataset).__name__} with the keys "
            f"{listed(keys)}; pick one of them, or read a table by Stream.from_table."
        )
    rows, settings = _length(dataset), settings or DatasetSettings()
    if is_hugging_face(dataset):
        title = name or dataset.info.dataset_name or "dataset"
        return _read_hugging_face(dataset, title, settings)
    title = name or type(dataset).__name__
    items = (_item_parts(item, what, settings.fields) for item, what in _items(dataset, title))
    inputs, labels, tasks = _gather(items, rows, title)
    data = from_arrays(inputs, labels, tasks, name=title, kind=settings.kind)
    if family_of(labels) == "strings":
        return replace(data, text=True)
    names = _class_names(dataset) if data.kind == "classification" else ()
    if not all(type(label) is int and 0 <= label < len(names) for label in labels):
        return data
    note = f"classes: named by the {type(dataset).__name__}'s `classes`, in its order"
    classes = tuple(names[int(c)] for c in data.classes)
    return replace(data, classes=classes, text=True, notes=(note,))


def _length(dataset: Any) -> int:
    """Return the number of items of a data set. Raises DataError if it has none or no length."""
    rows = 0
    if hasattr(dataset, "__getitem__") and not isinstance(dataset, IterableDataset):
        with suppress(TypeError, RuntimeError, ValueError):
            rows = len(dataset)
    if rows == 0:  # of a loader, a list would have batches for items
        way_out = "give its `dataset`" if isinstance(dataset, DataLoader) else "make a list of it"
        raise DataError(
            "A dataset must have a length and numbered items (map-style), and one at least, got a "
            f"{type(dataset).__name__} without; {way_out}."
        )
    return rows


# ---- items ---------------------------------------------------------------------------------------


def _gather(
    items: Iterable[Sequence[Any]], rows: int, title: str, mode: str | None = None
) -> tuple[Any, Any, Any]:
    """Return the inputs, labels and tasks of all items; None for tasks if there are none.

    items: (x, y) or (x, y, task). mode: Pillow's mode to which images are converted first, or None.
    """
    way_out = "resize or convert them in the dataset, as by a transform"
    inputs = Gathering(rows, lambda row: f"item {row} of '{title}'", way_out)
    labels: list[Any] = []
    tasks: list[Any] = []
    for i, (x, y, *task) in enumerate(items):
        what = f"item {i} of '{title}'"
        if _is_picture(x):
            inputs.put_image(i, pixels(x, what, Decoding(), mode))
        else:
            inputs.put(i, _values(x, what))
        labels.append(_label(y, what))
        tasks += [_label(task_label, what) for task_label in task]
        if len(tasks) not in (0, i + 1):
            raise DataError(f"Every item needs a task or none does; {what} is unlike the others.")
    shapes = list(dict.fromkeys(np.shape(label) for label in labels))
    if len(shapes) > 1:
        raise DataError(
            f"Targets of '{title}' must all have one shape, got {shapes[0]} and {shapes[1]}."
        )
    return inputs.array, np.stack(labels) if shapes[0] else labels, tasks or None


def _items(dataset: Any, title: str) -> Iterator[tuple[Any, str]]:
    """Yield each item of a data set of PyTorch, and its name in errors."""
    for i in range(len(dataset)):
        what = f"item {i} of '{title}'"
        with reading(_capitalised(what), "correct or drop it", anything=True):
            item = dataset[i]
        yield item, what


def _item_parts(item: Any, what: str, fields: _Fields) -> Sequence[Any]:
    """Return the inputs, label and perhaps task of an item."""
    if isinstance(item, Mapping) and "x" in fields and "y" in fields:
        _check_fields(fields, list(item), what)
        return [item[name] for name in fields.values()]
    if isinstance(item, tuple | list) and len(item) in (2, 3) and not fields:
        return item
    parts = len(item) if isinstance(item, list | tuple) else "no"
    got = listed(item) if isinstance(item, Mapping) else f"{parts} parts"
    raise DataError(
        "An item must be (x, y) or (x, y, task), or else a dict whose keys the arguments x, y and "
        f"task name; {what} is a {type(item).__name__} with {got}, and named are "
        f"{listed(fields.values())}."
    )


def _check_fields(fields: _Fields, names: Sequence[str], what: str) -> None:
    """Raise DataError if a key or column of `fields` is missing, or used twice.

    names: The keys of an item or the columns of a table.
    """
    for role, name in fields.items():
        if name not in names:
            raise DataError(
                f"{_capitalised(what)} has no {name!r} for {role}; it has {listed(names)}."
            )
    if len(set(fields.values())) < len(fields):
        raise DataError(f"x, y and task must be different, got {listed(fields.values())}.")


def _is_picture(inputs: Any) -> bool:
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(inputs, pillow.Image)


def _values(inputs: Any, what: str) -> NDArray[Any]:
    """Return the inputs of an item as an array of numbers."""
    array = numbers_of(inputs, _capitalised(what), "an image, or numbers of one shape")
    if isinstance(inputs, int | list | tuple) and array.dtype.kind in "iu":
        return array.astype(np.float64)  # so that [0, 1] and [0.5, 1] have the same type
    return array


def _label(value: Any, what: str) -> Any:
    """Return a label, task or target as a plain value, or as an array if it has several numbers."""
    if not isinstance(value, Tensor | np.ndarray | np.generic | list | tuple):
        return value
    rule = f"The label of {what} must be one value, or numbers of one shape, and"
    with reading(rule, "convert it", anything=True):  # NumPy calls methods of the user's objects
        array = np.asarray(unwrapped(value, f"The label of {what}"))
    return array.item() if array.size == 1 else array


def _class_names(dataset: Any) -> Sequence[str]:
    """Return the class names of a data set or of the set behind a `Subset`; () if it has none.

    A torchvision set with a `target_transform` has none: its labels are no longer indices of them.
    Raises DataError for a `ConcatDataset` in which a label is not the same class in all parts.
    """
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    if isinstance(dataset, ConcatDataset):
        first, *others = map(_class_names, dataset.datasets)
        for other in others:
            if list(other) != list(first):
                raise DataError(
                    "The parts of a ConcatDataset must have the same `classes`, of which labels "
                    f"are the numbers, got {listed(first, 5)} and {listed(other, 5)}; use one part "
                    "at a time, or set their target_transform."
                )
        return first
    if getattr(dataset, "target_transform", None) is not None:
        return ()
    names = getattr(dataset, "classes", None)
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return ()
    return names if len(set(names)) == len(names) else ()


# ---- Hugging Face --------------------------------------------------------------------------------


def is_hugging_face(dataset: Any) -> bool:
    """Return True for a Hugging Face `Dataset` without a transform; with one, items are read.

    Args:
        dataset: Anything.
    """
    parts = ("features", "column_names", "with_format", "format")
    return all(hasattr(dataset, part) for part in parts) and dataset.format["type"] != "custom"


def table_of_hugging_face(dataset: Any, title: str) -> Any:
    """Return a Hugging Face data set without images as a pyarrow Table, else None.

    Class numbers become the names that their columns declare.

    Args:
        dataset: A Hugging Face `Dataset`.
        title: Name of the data set in errors.

    Raises:
        DataError: The data set is damaged.
    """
    names, images, classes = _columns(dataset)
    return None if images else _with_class_names(_in_arrow(dataset, names, title)[:], classes)


def inputs_of_dataset(dataset: Any, title: str) -> NDArray[Any]:
    """Return the inputs of a data set, as `read_dataset` does, without its labels.

    Args:
        dataset: A Hugging Face `Dataset` with an image column, or a map-style data set of PyTorch,
            whose items are (x, y) or x alone.
        title: Name of the data set in errors.

    Raises:
        DataError: It has several image columns, or an item cannot be read.
    """
    rows, mode = _length(dataset), None
    if is_hugging_face(dataset):
        images = _columns(dataset)[1]
        _check_one_image(images, title)
        fields = {"x": images[0], "y": images[0]}
        inputs = (x for x, _ in _arrow_rows(_in_arrow(dataset, images, title), fields, title))
        mode = dataset.features[images[0]].mode
    else:
        inputs = (
            item[0] if isinstance(item, tuple | list) and len(item) in (1, 2) else item
            for item, _ in _items(dataset, title)
        )
    array: NDArray[Any]
    array, _, _ = _gather(((x, 0) for x in inputs), rows, title, mode)
    return array


def _check_one_image(images: Sequence[str], title: str) -> None:
    """Raise DataError if a data set has several columns of images."""
    if len(images) > 1:
        raise DataError(f"'{title}' has several image columns: {listed(images)}; set x to one.")


def _columns(dataset: Any) -> tuple[list[str], list[str], dict[str, list[str]]]:
    """Return a data set's columns, those of images, and the class names of those that have some."""
    dataset_format, features = dataset.format, dataset.features
    names = list(
        dataset.column_names if dataset_format["output_all_columns"] else dataset_format["columns"]
    )
    images = [column for column in names if _is_feature(features[column], "Image")]
    classes = {c: features[c].names for c in names if _is_feature(features[c], "ClassLabel")}
    return names, images, classes


def _in_arrow(dataset: Any, columns: list[str], title: str) -> Any:
    """Return a data set whose rows are read as Arrow; raise DataError if it is damaged."""
    dataset = dataset.with_format("arrow", columns=columns)
    with reading(f"'{title}'", "write or fetch it again", anything=True):
        dataset.data.validate(full=True)
    return dataset


def _read_hugging_face(dataset: Any, title: str, settings: DatasetSettings) -> Labelled:
    """Return the rows of a Hugging Face data set as labelled data.

    Read as Arrow, so that `datasets` itself decodes and downloads nothing.
    """
    features, (names, images, classes) = dataset.features, _columns(dataset)
    if settings.x is None:
        _check_one_image(images, title)
    fields = {**({"x": images[0]} if images else {}), "y": "label", **settings.fields}
    _check_fields(fields, names, f"'{title}'")
    x, y, task = fields.get("x"), fields["y"], fields.get("task")
    kind = settings.kind or ("classification" if y in classes else None)
    dataset = _in_arrow(dataset, names if x is None else list(fields.values()), title)
    if x is None:
        input_classes = {column: classes[column] for column in {*classes} - {y, task}}
        table = _with_class_names(dataset[:], input_classes)
        data = read_table(table, TableSettings(target=y, task=task, kind=kind), title)
    else:
        mode = features[x].mode if x in images else None
        parts = _gather(_arrow_rows(dataset, fields, title), len(dataset), title, mode)
        data = from_arrays(*parts, name=title, kind=kind)
    notes, text = data.notes, _is_feature(features[y], "Value") and "string" in features[y].dtype
    if y in classes and data.kind == "classification":
        data = replace(data, classes=_declared_names(y, data.classes, classes[y]))
        text = True
        notes = tuple(n for n in notes if not n.startswith(("target: ", "classes: ")))
        notes += (f"target: {y}, {len(data.classes)} classes named as it declares, in its order",)
    left_out = [column for column in names if x is not None and column not in fields.values()]
    notes += (f"columns passed over: {', '.join(left_out)}",) if left_out else ()
    if task is not None and task in classes:
        data = replace(data, tasks=_declared_names(task, data.tasks, classes[task]))
    return replace(data, text=text, notes=notes)


def _is_feature(feature: Any, name: str) -> bool:
    """Return True if a column's feature has this class name; needs no import of `datasets`."""
    return type(feature).__name__ == name


def _arrow_rows(dataset: Any, fields: _Fields, title: str) -> Iterator[Sequence[Any]]:
    """Yield the inputs, label and perhaps task of each row of a data set in Arrow format.

    Images are opened, and numbers become arrays of the type that the column declares.
    """
    x = fields["x"]
    feature = leaf = dataset.features[x]
    while hasattr(leaf, "feature"):
        leaf = leaf.feature
    for start in range(0, len(dataset), _ROWS_AT_ONCE):
        rows = dataset[start : start + _ROWS_AT_ONCE].to_pylist()
        for number, row in enumerate(rows, start):
            what = f"item {number} of '{title}'"
            if _is_feature(feature, "Image"):
                row[x] = open_image(_image_bytes(row[x], what), what)
            else:
                row[x] = _values(row[x], what).astype(leaf.dtype)
            yield [row[fields[role]] for role in ("x", "y", "task") if role in fields]


def _with_class_names(table: Any, classes: Mapping[str, list[str]]) -> Any:
    """Return a table with the class names in columns of class numbers; None for invalid numbers.

    classes: Names of the classes, by column.
    """
    import pyarrow as pa

    for column, names in classes.items():
        cells = [
            number if number is not None and 0 <= number < len(names) else None
            for number in table.column(column).to_pylist()
        ]
        position = table.column_names.index(column)
        named = pa.DictionaryArray.from_arrays(pa.array(cells, pa.int32()), names)
        table = table.set_column(position, column, named)
    return table


def _declared_names(column: str, numbers: tuple[str, ...], names: list[str]) -> tuple[str, ...]:
    """Return the names that a ClassLabel column declares for class numbers."""
    for number in numbers:
        if not 0 <= int(number) < len(names):
            missing = ", which stands for a missing label" if number == "-1" else ""
            raise DataError(
                f"Column '{column}' names {len(names)} classes, and has the number {number}"
                f"{missing}; drop those rows."
            )
    return tuple(names[int(number)] for number in numbers)


def _image_bytes(image: Any, what: str) -> bytes:
    """Return the bytes of a stored image, from the data set or a local file."""
    content = image and image.get("bytes")
    if content is not None:
        return cast(bytes, content)
    path = image and image.get("path")
    if not path:
        raise DataError(f"{_capitalised(what)} has no image; drop it.")
    if "://" in path or not os.path.isfile(path):  # noqa: PTH113 (False for impossible names)
        raise DataError(
            f"{_capitalised(what)} names {path!r:.80}, which is no file here; correct or drop it."
        )
    with reading(_capitalised(what), "correct or drop it"):
        return Path(path).read_bytes()


def _capitalised(text: str) -> str:
    """Return a text with an upper-case first letter; capitalize() would change other letters."""
    return text[0].upper() + text[1:]
