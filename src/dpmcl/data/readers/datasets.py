"""Data sets of PyTorch and of Hugging Face as labelled data: all items read once, into one pool."""

import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
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
from dpmcl.data.pools import empty_pool, fill, pool_type
from dpmcl.data.readers.pil_images import open_image, plain
from dpmcl.data.readers.tables import read_table
from dpmcl.data.rounding import float_type
from dpmcl.exceptions import DataError, reason

_ROWS_AT_ONCE = 64
_SHOWN = 30  # names that an error lists


def read_dataset(
    dataset: Any,
    *,
    kind: Kind | None = None,
    name: str | None = None,
    x: str | None = None,
    y: str | None = None,
    task: str | None = None,
) -> Labelled:
    """A map-style data set of PyTorch, a list of items, or a Hugging Face `Dataset`.

    Items are (x, y) or (x, y, task), or dicts, whose keys x, y and task name. Inputs are tensors,
    arrays, numbers, lists of numbers, or PIL images, which become uint8 (channels, height, width)
    as image files do: upright, grey where all are, else RGB (`pil_images.plain`). All must have one
    shape. They keep their type as in `from_arrays`; Python's whole numbers count as floats. Labels
    are as for `from_arrays`; where the data set has `classes` (strings, as torchvision's) and
    labels are their numbers, those are the names, in that order, without those that no item has.

    Of a Hugging Face `Dataset`, x, y and task name columns: y is "label" if None; x an image, a
    number or a list of numbers, always of one length; None for the only image column or, where
    there is none, for all other columns, as a table (see `read_table`).

    What does not fit in memory goes to a temporary file. Raises DataError for what cannot be read
    or used, with the item.

    >>> data = read_dataset([([0.5, 1.0], "b"), ([0.1, 2.0], "a")])
    >>> data.x.shape, data.y.tolist(), data.classes
    (torch.Size([2, 2]), [1, 0], ('a', 'b'))
    """
    if isinstance(dataset, Mapping):
        keys = ", ".join(repr(key) for key in list(dataset)[:_SHOWN]) or "none"
        raise DataError(
            f"A dataset must be a single one, got a {type(dataset).__name__} with the keys {keys}; "
            "pick one of them."
        )
    rows = _length(dataset)
    if _is_hugging_face(dataset):
        columns = _Columns(dataset, rows, name or dataset.info.dataset_name or "dataset")
        return _of_columns(columns, kind, x, y, task)
    return _of_items(dataset, rows, kind, name or type(dataset).__name__, x, y, task)


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


class _Pool:
    """Rows gathered in one array, made when the first come. item, way: for errors."""

    def __init__(self, rows: int, title: str, item: str, way: str) -> None:
        self.rows, self.title, self.item, self.way = rows, title, item, way
        self.array: NDArray[Any] | None = None
        self.shape: tuple[int, ...] = ()
        self.dtype = np.dtype(np.float32)

    def put(self, at: int, values: NDArray[Any]) -> None:
        """Rows `at` and following; a row without a dimension gets one."""
        wanted = pool_type(values.dtype)
        if wanted is None:
            raise DataError(
                f"Inputs must be real numbers, {self.item} {at} of '{self.title}' has values of "
                f"type {values.dtype}; {self.way}."
            )
        if values.dtype.kind in "iu" and values.dtype.itemsize > 2:
            wanted = float_type(values, _start(f"{self.item} {at} of '{self.title}'"))
        if self.array is None:
            self.shape, self.dtype = values.shape[1:], values.dtype
            self.array = empty_pool((self.rows, *(self.shape or (1,))), wanted)
        elif wanted == np.float64 and self.array.dtype == np.float32 and values.dtype == self.dtype:
            narrow, self.array = self.array, empty_pool(self.array.shape, wanted)
            fill(self.array[:at], narrow[:at])
        if values.shape[1:] != self.shape:
            raise self._odd(at, "shape", self.shape, values.shape[1:])
        floats = wanted.kind == self.array.dtype.kind == "f"
        if values.dtype != self.dtype and not (floats and np.can_cast(wanted, self.array.dtype)):
            raise self._odd(at, "type", self.dtype, values.dtype)
        into = self.array[at : at + len(values)]
        fill(into, values.reshape(into.shape))

    def put_picture(self, at: int, pixels: NDArray[np.uint8]) -> None:
        """A picture (channels, height, width). Grey ones become RGB where others are."""
        if self.array is not None and {self.shape[0], len(pixels)} == {1, 3}:
            if len(pixels) == 1:
                pixels = np.repeat(pixels, 3, 0)
            elif self.shape[1:] == pixels.shape[1:]:
                grey = self.array
                self.shape = pixels.shape
                self.array = empty_pool((self.rows, *self.shape), grey.dtype)
                self.array[:at] = grey[:at]
        self.put(at, pixels[None])

    def _odd(self, at: int, what: str, first: Any, here: Any) -> DataError:
        return DataError(
            f"Inputs must all have one {what}; {self.item} 0 of '{self.title}' has {first} and "
            f"{self.item} {at} {here}; {self.way}."
        )


# ---- PyTorch's -----------------------------------------------------------------------------------


def _of_items(
    dataset: Any,
    rows: int,
    kind: Kind | None,
    title: str,
    x: str | None,
    y: str | None,
    task: str | None,
) -> Labelled:
    pool = _Pool(rows, title, "item", "resize or convert them in the dataset, as by a transform")
    labels: list[Any] = []
    tasks: list[Any] = []
    for i in range(rows):
        what = f"item {i} of '{title}'"
        try:
            item = dataset[i]
        except Exception as error:  # a user's code, which may raise anything
            why = f"{type(error).__name__}: {reason(error)}"
            raise DataError(f"{_start(what)} cannot be read ({why}); correct or drop it.") from None
        inputs, label, own = _fields(item, what, x, y, task)
        if _is_picture(inputs):
            pool.put_picture(i, _pixels(inputs, what))
        else:
            pool.put(i, _values(inputs, what)[None])
        labels.append(_label(label, what, "label"))
        if own is not None or task is not None or tasks:
            tasks.append(_label(own, what, "task"))
        if tasks and len(tasks) != i + 1:
            raise DataError(
                f"Every item needs a task or none does; item 0 of '{title}' has none and item {i} "
                f"the task {own!r:.40}."
            )
    data = from_arrays(pool.array, _stacked(labels, title), tasks or None, name=title, kind=kind)
    names = _class_names(dataset)
    numbers = all(type(label) is int for label in labels)
    if data.kind == "regression" or not numbers or names is None:
        return data
    if min(labels) < 0 or max(labels) >= len(names):
        return data
    note = f"classes: named by the {type(dataset).__name__}'s `classes`, in its order"
    return replace(data, classes=_named(data.classes, names), notes=(note,))


def _fields(item: Any, what: str, x: str | None, y: str | None, task: str | None) -> list[Any]:
    """The inputs, the label and the task of an item, None where it has none."""
    if not isinstance(item, Mapping):
        if not isinstance(item, tuple | list) or len(item) not in (2, 3):
            size = f" of {len(item)}" if isinstance(item, tuple | list) else ""
            raise DataError(
                f"An item must be (x, y), (x, y, task) or a dict; {what} is a "
                f"{type(item).__name__}{size}; change what the dataset returns."
            )
        if (x, y, task) != (None, None, None):
            raise DataError(
                f"x, y and task name the keys of dicts; {what} is a "
                f"{type(item).__name__}; leave them out."
            )
        return [*item, None][:3]
    shown = ", ".join(repr(key) for key in list(item)[:_SHOWN]) or "none"
    if x is None or y is None:
        raise DataError(
            f"{_start(what)} is a dict, so x and y must name its inputs and label; its keys "
            f"are: {shown}."
        )
    for role, key in (("x", x), ("y", y), ("task", task)):
        if key is not None and key not in item:
            raise DataError(f"{_start(what)} has no key {key!r} for {role}; its keys are: {shown}.")
    return [item[x], item[y], None if task is None else item[task]]


def _is_picture(inputs: Any) -> bool:
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(inputs, pillow.Image)


def _values(inputs: Any, what: str) -> NDArray[Any]:
    """The inputs of an item as an array of numbers."""
    try:
        array = _array(inputs)
    except Exception as error:
        raise DataError(
            f"{_start(what)} must have numbers of one shape as inputs ({reason(error)}); "
            "convert them."
        ) from None
    if array.dtype.kind not in "biufc":
        raise DataError(
            f"{_start(what)} must have numbers, an array or an image as inputs, got a "
            f"{type(inputs).__name__}; convert it, as by a transform."
        )
    if isinstance(inputs, int | list | tuple) and array.dtype.kind in "iu":
        return array.astype(np.float64)  # so that [0, 1] and [0.5, 1] are of one type
    return array


def _array(value: Any) -> NDArray[Any]:
    if isinstance(value, Tensor):
        return plain_array(value, "The values")
    return np.asarray(unmasked(value, "The values"))


def _pixels(image: Any, what: str, mode: str | None = None) -> NDArray[np.uint8]:
    """A PIL image as (channels, height, width). mode: what it is converted to first."""
    array = np.asarray(plain(image, what, mode=mode))
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def _label(value: Any, what: str, role: str) -> Any:
    """A label, task or target as a plain value, or an array of several numbers."""
    if isinstance(value, Tensor | np.ndarray | np.generic | list | tuple):
        try:
            array = _array(value)
        except Exception as error:
            raise DataError(f"{_start(what)} has no usable {role} ({reason(error)}).") from None
        value = array.item() if array.size == 1 else array
    several = isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.ndim == 1
    if several and role == "label":
        return value
    if not isinstance(value, bool | int | float | str | bytes):
        got = "none" if value is None else f"a {type(value).__name__}"
        raise DataError(
            f"{_start(what)} must have a {role}, a string or a number, got {got}; convert or "
            "drop it."
        )
    return value


def _stacked(labels: list[Any], title: str) -> Any:
    """Labels as they are; targets of several numbers as one array."""
    shapes = [np.shape(label) for label in labels]
    odd = next((i for i, shape in enumerate(shapes) if shape != shapes[0]), None)
    if odd is not None:
        raise DataError(
            f"Targets must all have one shape; item 0 of '{title}' has {shapes[0]} and item {odd} "
            f"{shapes[odd]}."
        )
    return np.stack(labels) if shapes[0] else labels


def _class_names(dataset: Any) -> list[str] | None:
    """The data set's own names, also of a part of it; None where they do not name classes."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    names = getattr(dataset, "classes", None)
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return None
    return list(names) if len(set(names)) == len(names) else None


def _named(numbers: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    return tuple(names[int(number)] for number in numbers)


# ---- Hugging Face's ------------------------------------------------------------------------------


def _is_hugging_face(dataset: Any) -> bool:
    """Whether it is a Dataset of theirs; one with a transform is used through its items instead."""
    parts = ("features", "column_names", "with_format", "format")
    return all(hasattr(dataset, part) for part in parts) and dataset.format["type"] != "custom"


class _Columns:
    """A Hugging Face data set's columns, read as pyarrow's."""

    def __init__(self, dataset: Any, rows: int, title: str) -> None:
        shown = dataset.format
        self.dataset, self.rows, self.title = dataset, rows, title
        self.names: list[str] = list(
            dataset.column_names if shown["output_all_columns"] else shown["columns"]
        )

    def feature(self, column: str) -> Any:
        return self.dataset.features[column]

    def of(self, feature: str) -> list[str]:
        """The columns with a feature of that class."""
        return [c for c in self.names if type(self.feature(c)).__name__ == feature]

    def check(self, column: str, role: str) -> None:
        if column not in self.names:
            raise DataError(f"'{self.title}' has no column {column!r} for {role}; {self.shown()}.")

    def shown(self) -> str:
        more = ", ..." if len(self.names) > _SHOWN else ""
        return f"it has: {', '.join(self.names[:_SHOWN])}{more}"

    def what(self, column: str) -> str:
        return f"column '{column}' of '{self.title}'"

    def pieces(self, column: str, step: int = 1 << 16) -> Iterator[tuple[int, Any]]:
        """A column's arrays, with the number of the first row of each."""
        for start in range(0, self.rows, step):
            chunks = self.table([column], start, start + step).column(column).chunks
            for chunk in chunks:
                if len(chunk):
                    yield start, chunk
                    start += len(chunk)

    def table(self, columns: list[str], start: int = 0, stop: int | None = None) -> Any:
        """Rows as a pyarrow Table, in the data set's order, whose bytes make sense."""
        try:
            table = self.dataset.with_format("arrow", columns=columns)[start:stop]
            table.validate(full=True)
        except Exception as error:  # files of any origin, read by another library
            raise DataError(
                f"Rows {start} and following of '{self.title}' cannot be read "
                f"({reason(error)}); write or fetch them again."
            ) from None
        return table


def _of_columns(
    columns: _Columns, kind: Kind | None, x: str | None, y: str | None, task: str | None
) -> Labelled:
    title = columns.title
    if y is None:
        if "label" not in columns.names:
            raise DataError(f"y must name the labels' column of '{title}'; {columns.shown()}.")
        y = "label"
    for role, column in (("x", x), ("y", y), ("task", task)):
        if column is not None:
            columns.check(column, role)
    if len({c for c in (x, y, task) if c is not None}) < sum(c is not None for c in (x, y, task)):
        raise DataError(f"x, y and task must be different columns, got {x!r}, {y!r} and {task!r}.")
    images = columns.of("Image")
    for role, column in (("y", y), ("task", task)):
        if column in images:
            raise DataError(
                f"{role} must name a column of labels, and {columns.what(column)} has images."
            )
    if x is None and len(images) > 1:
        raise DataError(f"'{title}' has several image columns: {', '.join(images)}; set x to one.")
    x = x or (images[0] if images else None)
    classes = columns.of("ClassLabel")
    kind = kind or ("classification" if y in classes else None)
    if x is None:
        data = _of_table(columns, classes, kind, y, task)
    else:
        pool = _images(columns, x) if x in images else _numbers(columns, x)
        tasks = None if task is None else _column(columns, task)
        data = from_arrays(pool, _column(columns, y), tasks, name=title, kind=kind)
    notes = data.notes
    if y in classes and data.kind == "classification":
        data = replace(data, classes=_declared(columns, y, data.classes))
        notes = tuple(n for n in notes if not n.startswith(("target: ", "classes: ")))
        notes += (f"target: {y}, {len(data.classes)} classes named as it declares, in its order",)
    passed = [c for c in columns.names if x is not None and c not in (x, y, task)]
    notes += (f"columns passed over: {', '.join(passed)}",) if passed else ()
    if task in classes:
        data = replace(data, tasks=_declared(columns, task, data.tasks))
    return replace(data, notes=notes)


def _declared(columns: _Columns, column: str, numbers: tuple[str, ...]) -> tuple[str, ...]:
    """The names that a ClassLabel column declares for the numbers in it."""
    names = columns.feature(column).names
    for number in numbers:
        if not 0 <= int(number) < len(names):
            missing = ", which stands for a missing label" if number == "-1" else ""
            raise DataError(
                f"{_start(columns.what(column))} names {len(names)} classes, and has the "
                f"number {number}{missing}; drop those rows."
            )
    return _named(numbers, names)


def _of_table(
    columns: _Columns, classes: list[str], kind: Kind | None, y: str, task: str | None
) -> Labelled:
    """All columns but y and task are inputs; classes among them are categories, by name."""
    import pyarrow as pa

    table = columns.table(columns.names)
    for column in classes:
        if column not in (y, task):
            names = columns.feature(column).names
            numbers = table.column(column).to_pylist()
            inside = (n is not None and 0 <= n < len(names) for n in numbers)
            values = [names[n] if i else None for n, i in zip(numbers, inside, strict=True)]
            place = table.column_names.index(column)
            table = table.set_column(place, column, pa.array(values).dictionary_encode())
    return read_table(table, target=y, task=task, kind=kind, name=columns.title)


def _column(columns: _Columns, column: str) -> Any:
    """Labels, tasks or targets: an array of numbers, or a list."""
    import pyarrow as pa

    arrays: list[NDArray[Any]] = []
    values: list[Any] = []
    for start, chunk in columns.pieces(column):
        is_a = pa.types
        if is_a.is_struct(chunk.type) or is_a.is_map(chunk.type) or is_a.is_null(chunk.type):
            raise DataError(
                f"{_start(columns.what(column))} must be labels or numbers, got "
                f"{str(chunk.type)[:60]}; name another."
            )
        number = is_a.is_integer(chunk.type) or is_a.is_floating(chunk.type)
        if (number and chunk.null_count == 0) or _nested(chunk.type):
            arrays.append(_dense(chunk, start, columns, column))
        else:
            values += chunk.to_pylist()
    if not values:
        return np.concatenate(arrays)
    return [v for array in arrays for v in array.tolist()] + values


def _nested(kind: Any) -> bool:
    import pyarrow as pa

    is_a = pa.types
    lists = is_a.is_list(kind) or is_a.is_large_list(kind) or is_a.is_fixed_size_list(kind)
    return lists or isinstance(kind, pa.BaseExtensionType)


def _numbers(columns: _Columns, column: str) -> NDArray[Any]:
    pool = _Pool(columns.rows, columns.title, "row", "make them so with map()")
    for start, chunk in columns.pieces(column, 4096):
        pool.put(start, _dense(chunk, start, columns, column))
    assert pool.array is not None
    return pool.array


def _dense(array: Any, start: int, columns: _Columns, column: str) -> NDArray[Any]:
    """Numbers, or lists of numbers of one length at each depth, of a pyarrow array: (rows, ...)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    shape = [len(array)]
    what = _start(columns.what(column))
    while _nested(array.type):
        if isinstance(array.type, pa.BaseExtensionType):
            array = array.storage
            continue
        _check_present(array, start, shape, what)
        lengths = pc.list_value_length(array).to_numpy(zero_copy_only=False)
        first = int(lengths[0]) if len(lengths) else 0
        odd = np.flatnonzero(lengths != first)
        if len(odd):
            row = start + int(odd[0]) // (len(array) // shape[0])
            raise DataError(
                f"{what} must have lists of one length; row {start} has {first} values and row "
                f"{row} {int(lengths[odd[0]])}; make them so with map()."
            )
        array = array.flatten()
        shape.append(first)
    kind = array.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise DataError(
            f"{what} must be images, numbers or lists of numbers, got {str(kind)[:60]}; name "
            "another."
        )
    _check_present(array, start, shape, what)
    return cast(NDArray[Any], array.to_numpy(zero_copy_only=False)).reshape(shape)


def _check_present(array: Any, start: int, shape: list[int], what: str) -> None:
    if array.null_count:
        at = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        row = start + at // (len(array) // shape[0])
        raise DataError(f"{what} must have a value in every row, and row {row} lacks one; drop it.")


def _images(columns: _Columns, column: str) -> NDArray[Any]:
    if importlib.util.find_spec("PIL") is None:
        raise DataError("Reading images needs Pillow: pip install 'dpmcl[vision]'.")
    way = "resize them with map()"
    pool = _Pool(columns.rows, columns.title, "row", way)
    for start, chunk in columns.pieces(column, _ROWS_AT_ONCE):
        for i, image in enumerate(chunk.to_pylist(), start):
            what = f"row {i} of {columns.what(column)}"
            decoded = open_image(_content(image, what), what)
            # Turned upright before it is converted, as `datasets` itself does.
            pool.put_picture(i, _pixels(decoded, what, columns.feature(column).mode))
    assert pool.array is not None
    return pool.array


def _content(image: Any, what: str) -> bytes:
    """The bytes of a stored image, never from a network."""
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


def _start(text: str) -> str:
    """As the start of a sentence; capitalize() would change names in it."""
    return text[0].upper() + text[1:]
