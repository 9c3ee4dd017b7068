"""Tables in CSV and Parquet files or in memory, whose columns are read as a pyarrow Table."""

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow
from pyarrow import parquet
from torch import Tensor

from dpmcl.data.plain_arrays import is_pandas, unwrapped
from dpmcl.data.read_errors import reading
from dpmcl.data.sources import expand_home
from dpmcl.exceptions import DataError, shown

SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
"""Suffixes of table files."""

MISSING = ("", "NA", "N/A", "#N/A", "<NA>", "NaN", "nan", "NULL", "null")
"""Texts that mark a missing value in a text file."""


class Source(NamedTuple):
    """A table whose columns are known but not yet read.

    Attributes:
        names: Names of the columns.
        read: Function that returns the named columns as a pyarrow Table.
        indexes: Names of the columns that were the index of a DataFrame.
    """

    names: list[str]
    read: Callable[[list[str]], Any]
    indexes: Sequence[str] = ()


def file_source(path: Path, where: str) -> Source:
    """Open a table in a file.

    Args:
        path: Path of a .csv, .tsv (either may be gzipped) or .parquet file.
        where: Name of the table in errors.

    Returns:
        The table, not yet read.

    Raises:
        DataError: The file does not exist or is of another kind, or its header cannot be used.
    """
    *others, last = SUFFIXES
    if not path.name.lower().endswith((*others, last)):
        raise DataError(
            f"A table must be a {', '.join(others)} or {last} file, got {where}; convert it."
        )
    path = Path(expand_home(str(path)))
    if not path.is_file():
        raise DataError(f"A table must be a file that exists, got {where}; correct the path.")
    if path.suffix.lower() != ".parquet":
        return _text_source(path, where)
    schema = parquet.read_schema(path)
    # Not `parquet.read_table`, which makes columns of folders named a=1 above the file.
    return Source(
        schema.names,
        lambda chosen: parquet.ParquetFile(path).read(columns=chosen).select(chosen),
        _index_columns(schema),
    )


def is_table(source: Any) -> bool:
    """Return True for a mapping, an object of pandas, and a table with Arrow's interface.

    Args:
        source: Anything.
    """
    has_arrow = hasattr(source, "__arrow_c_stream__") and hasattr(source, "columns")
    return has_arrow or is_pandas(source) or isinstance(source, Mapping)


def memory_source(source: Any, where: str) -> Source:
    """Open a table in memory.

    Args:
        source: A pandas DataFrame, a mapping of column names to values, or a table with Arrow's
            interface (pyarrow, polars, DuckDB).
        where: Name of the table in errors.

    Returns:
        The table, not yet read.

    Raises:
        DataError: The source is none of these.
    """
    if not is_table(source) or (is_pandas(source) and not hasattr(source, "columns")):
        raise DataError(
            "A table must be a path, a pyarrow Table, a pandas DataFrame or a mapping of column "
            f"names to values, got a {type(source).__name__}; convert it."
        )
    if not is_pandas(source) and not isinstance(source, Mapping):
        table = pa.table(source)
        return Source(table.column_names, table.select, _index_columns(table.schema))
    columns = [(str(name), values) for name, values in source.items()]

    def read(chosen: list[str]) -> Any:
        return pa.table(
            {c: _array(v, f"Column {c!r} of {where}") for c, v in columns if c in chosen}
        )

    return Source([name for name, _ in columns], read)


def is_packed(path: Path) -> bool:
    """Return True if a file is gzipped, by its suffix.

    Args:
        path: Path of the file.
    """
    return path.suffix.lower() == ".gz"


def _index_columns(schema: Any) -> list[str]:
    """Return the names of the columns that were the index of a DataFrame."""
    try:
        metadata = schema.pandas_metadata or {}
        return [column for column in metadata["index_columns"] if isinstance(column, str)]
    except (ValueError, KeyError, TypeError):
        return []


def _array(values: Any, what: str) -> Any:
    """Return a column in memory as a pyarrow array."""
    values = unwrapped(values, what)
    is_single = (
        isinstance(values, str | bytes | Mapping | Set) or getattr(values, "shape", None) == ()
    )
    if is_single or not hasattr(values, "__len__"):
        raise DataError(f"{what} must be a list of values, got {shown(values)}; give one a row.")
    # pyarrow calls methods of the user's objects, which may raise anything.
    with reading(f"{what} must be values of one type, and", "convert them", anything=True):
        if isinstance(values, list | tuple):
            values = [v.item() if isinstance(v, Tensor | np.ndarray) else v for v in values]
        return pa.array(values, from_pandas=True)


# ---- text files ----------------------------------------------------------------------------------


def _text_source(path: Path, where: str) -> Source:
    """Open a CSV or TSV file and read its header."""
    delimiter, header = _header(path, where)

    def read(chosen: list[str]) -> Any:
        types = dict.fromkeys(header, pa.binary()) | dict.fromkeys(chosen, pa.string())
        rule = f"text is UTF-8, and a cell with {delimiter!r} in it needs quotes"
        with reading(where, f"correct it: {rule}"):
            table = arrow.read_csv(
                _open_bytes(path),
                # With several threads, pyarrow's errors lack the row, and it is no faster.
                arrow.ReadOptions(use_threads=False, block_size=1 << 22),
                arrow.ParseOptions(delimiter=delimiter, newlines_in_values=True),
                arrow.ConvertOptions(
                    include_columns=header,
                    column_types=types,
                    null_values=MISSING,
                    strings_can_be_null=True,
                ),
            )
        _check_quotes(table, delimiter, where)
        return table.select(chosen)

    return Source(header, read)


def _check_quotes(table: Any, delimiter: str, where: str) -> None:
    """Raise DataError for a cell that holds rows, as after a quote that is not closed.

    Such a cell has, for each of its further lines, as many delimiters as a row has. Without this
    check the rows of a cell that is not used, of an ignored column, would be lost unnoticed.
    """
    for name, column in zip(table.column_names, table.columns, strict=True):
        if not pc.any(pc.match_substring(column, "\n")).as_py():
            continue
        lines = pc.count_substring_regex(column, r"[\r\n]+[^\r\n]")
        delimiters = pc.count_substring(column, delimiter)
        in_rows = pc.equal(delimiters, pc.multiply(lines, table.num_columns - 1))
        row = pc.index(pc.and_(in_rows, pc.greater(lines, 0)), True).as_py()
        if row >= 0:
            raise DataError(
                f"Column {name!r} of {where} must have its text in one line, or lines unlike rows, "
                f"got {column[row].as_py()!r:.60} in row {row}, as if a quote were not closed; "
                "close the quotes, or correct the cell."
            )


def _open_bytes(path: Path) -> Any:
    """Open a file to read its uncompressed bytes."""
    return pa.input_stream(str(path), compression="gzip" if is_packed(path) else None)


def _header(path: Path, where: str) -> tuple[str, list[str]]:
    """Return the delimiter and the names of the columns."""
    with TextIOWrapper(_open_bytes(path), "utf-8-sig", "surrogateescape", newline="") as text:
        lines: Iterator[str] = iter(text)
        first = next((line for line in lines if line.strip("\r\n")), None)
        if first is None:
            raise DataError(f"A table must have a header and rows, and {where} is empty.")
        if "\0" in first:
            raise DataError(
                f"A text table must be UTF-8, and {where} has NUL, as UTF-16; convert it."
            )
        delimiter = "\t"
        if not path.name.lower().removesuffix(".gz").endswith(".tsv"):
            plain = re.sub(r'"[^"]*"', "", first)
            delimiter = next((mark for mark in ",;\t" if mark in plain), ",")
        with reading(where, "correct it", anything=True):  # csv.Error is none of those of files
            return delimiter, next(csv.reader(chain([first], lines), delimiter=delimiter))
