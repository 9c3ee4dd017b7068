"""Reader of tables in CSV or Parquet files or in memory."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpmcl.core.model import Kind
from dpmcl.core.settings import Settings
from dpmcl.data.field import Field
from dpmcl.data.labelled import Labelled, warn_if_classes
from dpmcl.data.read_errors import reading
from dpmcl.data.readers.table_columns import FEW_NUMBERS, Column
from dpmcl.data.readers.table_fields import CATEGORIES, field_of, inputs_of_column
from dpmcl.data.readers.table_sources import file_source, is_packed, memory_source
from dpmcl.exceptions import DataError, SpecError, listed, unknown

_SHOWN = 100  # largest number of names in a line


@dataclass(frozen=True, kw_only=True)
class TableSettings(Settings):
    """Settings that decide how a table is read.

    Attributes:
        target: Column to predict: classes, or for regression numbers, which become (rows, 1),
            float32 or float64 like inputs.
        task: Column with the task of each row, or None.
        ignore: Columns to leave out.
        kind: "classification" or "regression". None for classification if the target is text,
            true/false or whole numbers, and for regression if it is other numbers.
        scale: Whether to mark the columns of numbers (and regression targets) for scaling.

    Raises:
        SpecError: A setting is invalid, or a column is named twice.
    """

    target: str
    task: str | None = None
    ignore: tuple[str, ...] = ()
    kind: Kind | None = None
    scale: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        column, count = Counter([self.target, self.task, *{*self.ignore}]).most_common(1)[0]
        if count > 1:
            raise SpecError(
                f"target, task and ignore must name different columns, got {column!r} twice; leave "
                "one out."
            )

    def check(self, names: Sequence[str], where: str) -> None:
        """Check that a table has these columns, and that all its columns have different names.

        Args:
            names: Names of the table's columns.
            where: Name of the table in errors.

        Raises:
            DataError: A column is missing, or a name is empty or occurs twice.
        """
        twice = [column for column, count in Counter(names).items() if count > 1]
        if twice:
            raise DataError(
                f"Columns must have different names, and {where} has {twice[0]!r} twice; rename "
                "one."
            )
        task = [] if self.task is None else [("task", self.task)]
        named = [("target", self.target), *task, *(("ignored", c) for c in self.ignore)]
        for role, column in named:
            if column not in names:
                hint = f"Columns of {where}: {listed(names)}."
                raise DataError(str(unknown(f"{role} column", column, names, hint)))
        if "" in names and "" not in self.ignore:
            raise DataError(
                f"Columns must have names, and column {list(names).index('')} of {where} has none "
                "(the index of a DataFrame?); name it, or put '' in ignore."
            )


def read_table(source: Any, settings: TableSettings, name: str | None = None) -> Labelled:
    """Read a table, with all columns but the target, the task and ignored ones as inputs.

    A text column, from any source, is read as numbers or true/false if all its texts are written
    so, else as text. Whole numbers with a leading zero (007) are text. Classes and tasks always
    keep their text.

    Inputs are (rows, inputs) in the table's order of columns, float32 if it keeps their digits,
    else float64. A column of numbers becomes one input, true/false one input of 0 and 1, and text
    or a pandas Categorical one input of 0 and 1 for each category, in alphabetical order (numbers
    by value). `columns` names the latter "colour=red".

    Args:
        source: Path of a .csv, .tsv (either may be gzipped, as .csv.gz) or .parquet file, a pandas
            DataFrame (whose index is ignored), a table with Arrow's interface (pyarrow, polars,
            DuckDB), or a mapping of column names to values. Text files are UTF-8 with a header. A
            .csv whose header has no comma is split at semicolons or tabs. Cells in `MISSING` are
            missing.
        settings: Columns that are not inputs, the kind, and whether to scale.
        name: Name for titles; None for the name of the file.

    Returns:
        The labelled data.

    Raises:
        DataError: The table cannot be read or used, for instance because cells are missing.

    >>> table = {"size": [1, 2], "hue": ["b", "a"], "kind": ["x", "y"]}
    >>> data = read_table(table, TableSettings(target="kind"))
    >>> data.columns, data.x.tolist(), data.classes
    (('size', 'hue=a', 'hue=b'), [[1.0, 0.0, 1.0], [2.0, 1.0, 0.0]], ('x', 'y'))
    """
    target, task = settings.target, settings.task
    path = Path(source) if isinstance(source, str | os.PathLike) else None
    where = str(path) if path else name or "the table"
    columns, left_out = _read_columns(path or source, settings, where)
    inputs = [column for column in columns.values() if column.name not in (target, task)]
    if not inputs:
        raise DataError(
            f"A table must have an input column beside the target, and {where} has none left; "
            "ignore fewer, or give it some (frame.reset_index() makes columns of an index)."
        )
    kind, y, classes = _targets(columns[target], settings.kind)
    number, tasks = (None, ()) if task is None else columns[task].labels()
    x, fields, numeric, notes = _inputs(inputs, "numbers, scaled" if settings.scale else "numbers")
    scaled = settings.scale and (kind == "regression" or any(numeric))
    target_text = (
        f"{len(classes)} {'class' if len(classes) == 1 else 'classes'} named by its values"
    )
    if kind == "regression":
        target_text = "a number, scaled" if scaled else "a number"
    notes += [f"target: {target}, {target_text}"]
    notes += [] if task is None else [f"tasks: {task}, {len(tasks)} named by its values"]
    notes += [f"ignored: {_joined(left_out)}"] if left_out else []
    if path and name is None:
        name = Path(path.stem).stem if is_packed(path) else path.stem
    return Labelled(
        name=name or "table",
        kind=kind,
        x=x,
        y=y,
        classes=classes,
        task=number,
        tasks=tasks,
        fields=fields,
        scaled=torch.tensor(numeric) if scaled else None,
        notes=tuple(notes),
    )


def _read_columns(
    source: Any, settings: TableSettings, where: str
) -> tuple[dict[str, Column], list[str]]:
    """Return the columns that are read, by name, and the names of those that are left out."""
    with reading(where, "correct it, or write it again", anything=True):
        table = (
            file_source(source, where) if isinstance(source, Path) else memory_source(source, where)
        )
        settings.check(table.names, where)
        not_read = {*settings.ignore, *(set(table.indexes) - {settings.target, settings.task})}
        read = table.read([column for column in table.names if column not in not_read])
    if read.num_rows == 0:
        raise DataError(f"A table must have rows, and {where} has only columns; give it some.")
    left_out = [column for column in table.names if column in not_read]
    left_out += [f"index {n}" for n in getattr(getattr(source, "index", None), "names", ()) if n]
    way_out = {settings.target: "name another target", settings.task: "name another task"}
    columns = {
        c: Column(c, where, read.column(c), way_out.get(c, "put the column in ignore"))
        for c in read.column_names
    }
    return columns, left_out


def _inputs(
    columns: Sequence[Column], numbers: str
) -> tuple[Tensor, tuple[Field, ...], list[bool], list[str]]:
    """Return the inputs, their fields, which inputs are numbers, and notes about the columns.

    numbers: Description of a column of numbers in the notes.
    """
    fields = tuple(field_of(column) for column in columns)
    names_by_description: dict[str, list[str]] = {}
    for field in fields:
        count = len(field.categories)
        categories = f"{count} {'category' if count == 1 else 'categories'}"
        description = {"numbers": numbers, "categories": categories}.get(field.kind, field.kind)
        names_by_description.setdefault(description, []).append(field.name)
    notes = [
        f"{description}: {_joined(names)}" for description, names in names_by_description.items()
    ]
    blocks = [
        inputs_of_column(field, column) for field, column in zip(fields, columns, strict=True)
    ]
    numeric = [field.kind == "numbers" for field in fields for _ in field.names]
    return torch.from_numpy(np.concatenate(blocks, axis=1)), fields, numeric, notes


def _targets(column: Column, kind: Kind | None) -> tuple[Kind, Tensor, tuple[str, ...]]:
    """Return the kind, the targets and the names of classes.

    Targets are int64 (rows,), or for regression floats (rows, 1), without names of classes.
    """
    requested = kind
    if kind != "classification":
        column.check_no_numbers("set kind = 'classification'", FEW_NUMBERS)
    if kind is None:
        kind = "classification"
        if column.kind == "floats" and not column.categorical:
            kind = "regression"
        elif column.kind == "whole" and not column.categorical:
            distinct = len(column.categories()[0])
            if distinct > CATEGORIES:
                raise DataError(
                    f"{column.what} has {distinct} different whole numbers, which may be classes "
                    "or amounts; set kind = 'classification' or kind = 'regression'."
                )
    if kind == "classification":
        return kind, *column.labels()
    if column.kind == "text":
        raise DataError(
            f"{column.what} must be numbers for regression, got text such as "
            f"{column.values[0].as_py()!r:.60}; convert it, or set kind = 'classification'."
        )
    targets = torch.from_numpy(column.numbers())[:, None]
    if requested is None:
        warn_if_classes(targets)
    return kind, targets, ()


def _joined(names: Sequence[str]) -> str:
    """Return names of columns in one line, at most a hundred of them."""
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(_visible, names[:_SHOWN])) + rest


def _visible(name: str) -> str:
    """Return a column's name, quoted if it is empty, unprintable, or has white space at an end."""
    return name if name and name == name.strip() and name.isprintable() else repr(name)
