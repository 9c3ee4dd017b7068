"""Columns of a table as inputs: numbers as they are, and a 1 for the category of a row."""

from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpmcl.data.field import Field
from dpmcl.data.readers.dressed import is_plain
from dpmcl.data.readers.table_columns import FEW_NUMBERS, MOSTLY, Column
from dpmcl.exceptions import DataError, listed

CATEGORIES = 100
"""Most categories of an input column, and most classes of whole numbers not declared as such."""


def field_of(column: Column, out: str, *, declared: bool = False) -> Field:
    """Return the field that the first rows of a column make.

    Args:
        column: The column.
        out: What may be done with a column that cannot be used.
        declared: Whether categories count that a pandas Categorical names and no row has, since
            later rows may have them.

    Raises:
        DataError: It cannot be an input.
    """
    column.check_present(out)
    if column.kind == "text" or column.categorical:
        return Field(column.name, "categories", _categories(column, out, declared))
    return Field(column.name, "true/false" if column.kind == "true/false" else "numbers")


def inputs_of_column(field: Field, column: Column, out: str) -> NDArray[Any]:
    """Return the inputs that a column becomes, (rows, inputs).

    Args:
        field: What the first rows made of it.
        column: The column, of these rows or of later ones.
        out: What may be done with a column that cannot be used.

    Raises:
        DataError: It holds something else than in the first rows.
    """
    column.check_present(out)
    if field.kind == "categories":
        return _coded(field, column)
    kind = "numbers" if column.kind in ("whole", "floats") else column.kind
    if kind != field.kind or column.categorical:
        came = "a pandas Categorical" if column.categorical else _odd(field, column) or kind
        raise DataError(
            f"Column '{field.name}' must hold {field.kind}, as in the rows learned first, got "
            f"{came}; correct it."
        )
    return column.numbers(out)[:, None]


def _odd(field: Field, column: Column) -> str:
    """Return the first text that is of another kind, and its row; empty if there is no text."""
    for row, text in enumerate(() if column.written is None else column.written.to_pylist()):
        fits = is_plain(text) if field.kind == "numbers" else text.lower() in ("true", "false")
        if not fits:
            return f"{text!r:.60} in row {row}"
    return ""


def _coded(field: Field, column: Column) -> NDArray[Any]:
    """Return a 1 for the category of each row, and 0 for the others."""
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


def _categories(column: Column, out: str, declared: bool) -> tuple[str, ...]:
    """Return the categories of an input; refuse numbers, and too many."""
    column.check_no_numbers(
        f"{out}; if they are categories, begin each with a letter, or give a pandas Categorical"
    )
    values, code = column.categories(declared=declared)
    each_its_own = len(values) > FEW_NUMBERS and len(values) >= MOSTLY * len(code)
    if len(values) > CATEGORIES or (each_its_own and not column.categorical):
        some = ", ".join(repr(value)[:30] for value in values[:3])
        raise DataError(
            f"{column.what} must have at most {CATEGORIES} categories, most of them in several "
            f"rows, and has {len(values)} in {len(code)} rows ({some}, ...), as an identifier has; "
            f"{out}."
        )
    return tuple(map(str, values))
