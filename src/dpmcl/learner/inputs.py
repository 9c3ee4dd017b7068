"""Inputs of a learner, arrays or tables, in the form that its first chunk had."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from dpmcl.core.settings import Positive
from dpmcl.data.field import Field, names_of
from dpmcl.data.labelled import inputs_of, warn_if_flags
from dpmcl.data.read_errors import reading
from dpmcl.data.readers.datasets import is_hugging_face, table_of_hugging_face
from dpmcl.data.readers.table_columns import Column
from dpmcl.data.readers.table_fields import field_of, inputs_of_column
from dpmcl.data.readers.table_sources import file_source, is_table, memory_source
from dpmcl.exceptions import DataError, listed

_WHAT = "the rows"
_LATER = "begin a new learner, without the column"


@dataclass(frozen=True)
class Inputs:
    """Form of a learner's inputs, the same for every chunk.

    Attributes:
        shape: Shape of one input.
        images: Whether inputs are uint8, from 0 to 255, which the network takes as [0, 1]. Inputs
            that are true/false are 0 and 1 either way.
        fields: Columns of a table; () for arrays.
    """

    shape: tuple[Positive, ...]
    images: bool = False
    fields: tuple[Field, ...] = ()

    @classmethod
    def of(cls, x: Any) -> "Inputs":
        """Return the form of the first chunk's inputs.

        Args:
            x: A table, or numbers (rows, ...).

        Raises:
            DataError: `x` cannot be used as inputs.
        """
        if isinstance(x, pa.Table):
            columns = _columns(x, "leave the column out")
            fields = tuple(field_of(column, declared=True) for column in columns)
            return cls((sum(len(field.names) for field in fields),), fields=fields)
        values = inputs_of(x, "Inputs", images=False)
        warn_if_flags(values)
        return cls(tuple(values.shape[1:]), values.dtype == torch.uint8)

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the name of each input of a table; () for arrays."""
        return names_of(self.fields)

    @property
    def numeric(self) -> Tensor:
        """Return the mask of inputs that are numbers rather than categories, bool (*shape,)."""
        if not self.fields:
            return torch.ones(self.shape, dtype=torch.bool)
        return torch.tensor([f.kind == "numbers" for f in self.fields for _ in f.names])

    def read(self, x: Any) -> Tensor:
        """Return inputs as a tensor (rows, *shape).

        Args:
            x: A table, or numbers (rows, ...), of the same form as the first chunk's. Grey images
                may come where RGB images did.

        Raises:
            DataError: The form differs, or a cell is missing.
        """
        if self.fields and isinstance(x, pa.Table):
            return self._of_table(x)
        if isinstance(x, pa.Table):
            raise DataError(
                "Inputs must be an array, as those learned first, got a table; give its values, as "
                "by frame.to_numpy()."
            )
        if self.fields:
            raise DataError(
                "Inputs must be a table with the columns of the rows learned first "
                f"({listed(field.name for field in self.fields)}), got a {type(x).__name__}."
            )
        values = inputs_of(x, "Inputs", images=self.images)
        if self.images and self.shape[0] == 3 and values.shape[1:] == (1, *self.shape[1:]):
            values = values.expand(-1, *self.shape)  # grey images among those of colour
        if tuple(values.shape[1:]) != self.shape:
            raise DataError(
                f"Inputs must have the shape (rows, {', '.join(map(str, self.shape))}), as those "
                f"learned first, got {tuple(values.shape)}."
            )
        if (values.dtype == torch.uint8) != self.images:
            images = "uint8 (0 to 255 for 0 to 1)"
            expected, actual = (images, "numbers") if self.images else ("numbers", images)
            raise DataError(f"Inputs must be {expected}, as those learned first, got {actual}.")
        return values

    def _of_table(self, x: Any) -> Tensor:
        """Return the inputs of a table, whose columns may be in any order."""
        columns = {column.name: column for column in _columns(x, _LATER)}
        names = [field.name for field in self.fields]
        for name in (*names, *columns):
            if name not in names or name not in columns:
                state = "new; leave it out"
                if name in names:
                    state = f"missing; they have {listed(columns)}"
                raise DataError(
                    f"Rows must have the columns of those learned first, and '{name}' is {state}."
                )
        blocks = [inputs_of_column(field, columns[field.name]) for field in self.fields]
        return torch.from_numpy(np.concatenate(blocks, axis=1))


def as_table(x: Any) -> Any:
    """Return a table of any kind as a pyarrow Table without index; other inputs unchanged.

    Args:
        x: The path of a table, whose cells are not converted; a pyarrow Table, a pandas DataFrame,
            a mapping of columns, a table with Arrow's interface (polars, DuckDB), or a Hugging Face
            data set without images; or any other inputs.

    Raises:
        DataError: The table cannot be read, has no columns, or has a column without a name or two
            of the same name.
    """
    if is_hugging_face(x):
        table = table_of_hugging_face(x, _WHAT)
        return x if table is None else table
    file = isinstance(x, str | Path)
    if not file and not is_table(x):
        return x
    where = str(x) if file else _WHAT
    with reading(where, "correct it, or write it again", anything=True):
        source = file_source(Path(x), where) if file else memory_source(x, where)
        columns = [name for name in source.names if name not in source.indexes]
        if not columns or "" in columns or len({*columns}) < len(columns):
            raise DataError(
                f"A table must have columns of different names, and {where} has "
                f"{listed(columns)}; rename or add some, or leave out an index without a name."
            )
        return source.read(columns)


def split_target(table: pa.Table, target: str, *, text: bool) -> tuple[pa.Table, list[Any]]:
    """Split a table into its inputs and the values of its target column.

    Args:
        table: The table.
        target: Name of the target column.
        text: Whether text such as "7" or "true" remains text rather than a number or a boolean.

    Returns:
        The table without the column, and the values of the column.

    Raises:
        DataError: There is no such column, or one of its cells is missing.
    """
    if target not in table.column_names:
        has = listed(table.column_names)
        raise DataError(f"No column {target!r:.60} in the rows; they have {has}.")
    values = table.column(target)
    column = Column(target, _WHAT, values, "name another target")
    if not (text and column.written is not None and column.kind in ("whole", "true/false")):
        values = column.values
    return table.drop_columns([target]), values.to_pylist()


def _columns(table: pa.Table, way_out: str) -> list[Column]:
    """Return the columns of a table; raise DataError if it has no rows or no columns."""
    if not table.num_rows or not table.num_columns:
        raise DataError(
            f"A table must have rows and columns, got {table.num_rows} rows and "
            f"{table.num_columns} columns; give it some."
        )
    return [Column(name, _WHAT, table.column(name), way_out) for name in table.column_names]
