"""Inputs from the columns of a table: numbers unchanged, categories one-hot."""

from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpmcl.data.field import Field
from dpmcl.data.readers.number_formats import is_plain
from dpmcl.data.readers.table_columns import FEW_NUMBERS, MOSTLY, Column
from dpmcl.exceptions import DataError, listed

CATEGORIES = 100
"""Largest number of categories of an input column, and of whole-number classes without `kind`."""


def field_of(column: Column, *, declared: bool = False) -> Field:
    """Return the field for a column, from its first rows.

    Args:
        column: First rows of the column.
        declared: Whether to include categories of a pandas Categorical that no row has, because
            later rows may have them.

    Raises:
        DataError: The column cannot be an input.
    """
    if column.kind == "text" or column.categorical:
        return Field(column.name, "categories", _categories(column, declared))
    return Field(column.name, "true/false" if column.kind == "true/false" else "numbers")


def inputs_of_column(field: Field, column: Column) -> NDArray[Any]:
    """Return the inputs that a column becomes, (rows, inputs).

    Args:
        field: Field of the column, from its first rows.
        column: First or later rows of the column.

    Raises:
        DataError: A value does not fit the field: another kind, or an unknown category.
    """
    if field.kind == "categories":
        return _one_hot(field, column)
    kind = "numbers" if column.kind in ("whole", "floats") else column.kind
    if kind != field.kind or column.categorical:
        got = "a pandas Categorical" if column.categorical else _misfit(field, column) or kind
        raise DataError(
            f"Column '{field.name}' must hold {field.kind}, as in the rows learned first, got "
            f"{got}; correct it."
        )
    return column.numbers()[:, None]


def _misfit(field: Field, column: Column) -> str:
    """Return the first text that is of another kind than a field, and its row; "" if none is."""
    for row, text in enumerate(() if column.written is None else column.written.to_pylist()):
        fits = is_plain(text) if field.kind == "numbers" else text.lower() in ("true", "false")
        if not fits:
            return f"{text!r:.60} in row {row}"
    return ""


def _one_hot(field: Field, column: Column) -> NDArray[Any]:
    """Return the categories of the rows one-hot, float32 (rows, categories)."""
    values = column.values if column.written is None else column.written
    distinct = pc.unique(values)
    number = {text: k for k, text in enumerate(field.categories)}
    known = np.array([number.get(str(value), -1) for value in distinct.to_pylist()])
    code = known[pc.index_in(values, value_set=distinct).to_numpy()]
    if (code < 0).any():
        row = int((code < 0).argmax())
        raise DataError(
            f"Column '{field.name}' has the categories of the rows learned first "
            f"({listed(field.categories, 10)}), got {str(values[row].as_py())!r:.60} in row {row}; "
            "correct the row, leave it out, or have the first rows declare all categories, in a "
            "pandas Categorical."
        )
    inputs: NDArray[Any] = np.eye(len(field.categories), dtype=np.float32)[code]
    return inputs


def _categories(column: Column, declared: bool) -> tuple[str, ...]:
    """Return the categories of a column. Raises DataError if they are numbers or too many."""
    column.check_no_numbers(
        f"{column.way_out}; if they are categories, begin each with a letter, or give a pandas "
        "Categorical"
    )
    values, code = column.categories(declared=declared)
    identifier = len(values) > FEW_NUMBERS and len(values) >= MOSTLY * len(code)
    if len(values) > CATEGORIES or (identifier and not column.categorical):
        sample = ", ".join(repr(value)[:30] for value in values[:3])
        raise DataError(
            f"{column.what} must have at most {CATEGORIES} categories, most of them in several "
            f"rows, and has {len(values)} in {len(code)} rows ({sample}, ...), as an identifier "
            f"has; {column.way_out}."
        )
    return tuple(map(str, values))
