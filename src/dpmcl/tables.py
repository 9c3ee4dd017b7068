"""Tables, in CSV or Parquet files or in memory, as labelled data: each column an input, or more."""

import csv
import gzip
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpmcl.exceptions import DataError, SpecError, reason, unknown
from dpmcl.labelled import Labelled
from dpmcl.labels import Labels, number_labels
from dpmcl.model import Kind
from dpmcl.sources import at_home

SUFFIXES = (".csv", ".csv.gz", ".tsv", ".parquet")
"""Suffixes of files that hold tables."""
CATEGORIES = 100
"""Most categories of an input column, and most classes of whole numbers not declared as such."""
MISSING = ("", "NA", "N/A", "#N/A", "<NA>", "NaN", "nan", "NULL", "null")
"""Cells of a CSV file that are missing values."""

_FEW_NUMBERS = 10  # so many different numbers beside text may well be names, as in 0, 1, 2, 3+
_MOSTLY = 0.9
_SHOWN = 30  # columns that an error lists
_Choose = Callable[..., list[str]]


def read_table(
    source: Any,
    *,
    target: str,
    task: str | None = None,
    kind: Kind | None = None,
    ignore: Sequence[str] = (),
    scale: bool = True,
    name: str | None = None,
) -> Labelled:
    """A table as labelled data: every column but target, task and ignored ones is an input.

    source: path of a .csv, .csv.gz, .tsv or .parquet file, a pyarrow Table, a pandas DataFrame
    (without its index), or a mapping of column names to values. Text files are UTF-8 with a header;
    a .csv whose header has semicolons and no comma is split at those; `MISSING` cells are missing.

    Inputs are float32 (rows, inputs) in the table's order of columns. A column of numbers is one
    input, true/false one of 0 and 1, and text or pandas' Categorical one of 0 and 1 for each
    category, in alphabetical order (numbers by value), named "colour=red" in `columns`.

    target: classes, or for regression numbers, as float32 (rows, 1). kind: None for classification
    where they are text, true/false or whole numbers, and for regression where they are others.
    task: column that says which task a row belongs to. ignore: columns to leave out.
    scale: mark the columns of numbers (and regression targets) to be scaled. name: for titles.

    Raises DataError for a table that cannot be read or used, missing cells among the rest; and
    SpecError for column names that contradict each other.

    >>> data = read_table({"size": [1, 2], "hue": ["b", "a"], "kind": ["x", "y"]}, target="kind")
    >>> data.columns, data.x.tolist(), data.classes
    (('size', 'hue=a', 'hue=b'), [[1.0, 0.0, 1.0], [2.0, 1.0, 0.0]], ('x', 'y'))
    """
    check_roles(target, task, ignore, kind)
    path = Path(source) if isinstance(source, str | os.PathLike) else None
    where = str(path) if path else name or "the table"

    def choose(names: Sequence[str], index: Sequence[str] = ()) -> list[str]:
        """The columns to read, of a table with these; those of a pandas index only if named."""
        _check_columns(names, where, target, task, ignore)
        left_out = {*ignore, *(set(index) - {target, task})}
        return [column for column in names if column not in left_out]

    table = _of_file(path, where, choose) if path else _in_memory(source, where, choose)
    if table.num_rows == 0:
        raise DataError(f"A table must have rows, and {where} has only columns; give it some.")
    columns = {c: _Column(c, where, table.column(c)) for c in table.column_names}
    inputs = [column for c, column in columns.items() if c not in (target, task)]
    if not inputs:
        raise DataError(
            f"A table must have an input column beside the target, and {where} has none left; "
            "ignore fewer."
        )
    kind, y, classes = _targets(columns[target], kind)
    number, tasks = (None, ()) if task is None else _labels(columns[task], "task")
    x, names, numeric = _inputs(inputs)
    scaled = scale and (kind == "regression" or any(numeric))
    return Labelled(
        name=name or (_stem(path) if path else "table"),
        kind=kind,
        x=x,
        y=y,
        classes=classes,
        task=number,
        tasks=tasks,
        columns=names,
        scaled=torch.tensor(numeric) if scaled else None,
    )


# ---- names of columns ----------------------------------------------------------------------------


def check_roles(
    target: str, task: str | None, ignore: Sequence[str], kind: Kind | None = None
) -> None:
    """Raises SpecError for a column that is to be two things, and for an unknown kind."""
    if isinstance(ignore, str):
        raise SpecError(f"ignore must be a list of columns, got {ignore!r}; write [{ignore!r}].")
    if kind is not None and kind not in get_args(Kind):
        raise SpecError(f"kind must be {' or '.join(get_args(Kind))}, got {kind!r}.")
    if target == task:
        raise SpecError(f"target and task must be two columns, got {target!r} twice; change one.")
    for role, column in (("target", target), ("task", task)):
        if column in ignore:
            raise SpecError(f"{role} must not be in ignore, got {column!r} in both; leave one out.")


def _check_columns(
    names: Sequence[str], where: str, target: str, task: str | None, ignore: Sequence[str]
) -> None:
    twice = [column for column, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(
            f"Columns must have different names, and {where} has {twice[0]!r} twice; rename one."
        )
    roles = [("target", target), *([("task", task)] if task is not None else [])]
    for role, column in [*roles, *(("ignored", c) for c in ignore)]:
        if column not in names:
            lines = [" ".join(known.split()) for known in names]
            more = ", ..." if len(lines) > _SHOWN else ""
            hint = f"Columns of {where}: {', '.join(lines[:_SHOWN])}{more}."
            raise DataError(str(unknown(f"{role} column", column, lines, hint)))
    if "" in names and "" not in ignore:
        raise DataError(
            f"Columns must have names, and column {list(names).index('')} of {where} has none (the "
            "index of a DataFrame?); name it, or put '' in ignore."
        )


def _stem(path: Path) -> str:
    return Path(path.stem).stem if path.suffix.lower() == ".gz" else path.stem


# ---- files ---------------------------------------------------------------------------------------


def _of_file(path: Path, where: str, choose: _Choose) -> Any:
    """The chosen columns of a file, a pyarrow Table."""
    suffix = next((s for s in SUFFIXES if path.name.lower().endswith(s)), None)
    if suffix is None:
        raise DataError(
            f"A table must be a {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} file, got {where}; "
            "convert it."
        )
    try:
        path = Path(at_home(str(path)))
        if not path.is_file():
            raise DataError(f"A table must be a file that exists, got {where}; correct the path.")
        read = _of_parquet if suffix == ".parquet" else _of_csv
        return read(path, where, choose)
    except (OSError, EOFError, RuntimeError, zlib.error) as error:
        raise _unreadable(where, error) from None


def _unreadable(where: str, error: Exception) -> DataError:
    return DataError(f"{where} cannot be read ({reason(error)}); correct it, or write it again.")


def _of_parquet(path: Path, where: str, choose: _Choose) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        # Not `read_table`, which takes folders named a=1 above the file for columns.
        with parquet.ParquetFile(path) as file:
            wanted = choose(file.schema_arrow.names, _index(file.schema_arrow))
            return file.read(columns=wanted).select(wanted)
    except pa.ArrowException as error:
        raise _unreadable(where, error) from None


def _index(schema: Any) -> list[str]:
    """The columns that were the index of a DataFrame."""
    try:
        about = schema.pandas_metadata or {}
        return [column for column in about["index_columns"] if isinstance(column, str)]
    except (ValueError, KeyError, TypeError):
        return []


def _of_csv(path: Path, where: str, choose: _Choose) -> Any:
    import pyarrow as pa

    delimiter, header = _header(path, where)
    wanted = choose(header)
    try:
        table = _parsed(path, delimiter, wanted)
    except pa.ArrowInvalid as error:
        if "Empty CSV" in str(error):
            raise DataError(
                f"A table must have rows, and {where} has only a header; give it some."
            ) from None
        raise _misread(path, where, delimiter, wanted, error) from None
    except (KeyError, pa.ArrowException) as error:
        raise _unreadable(where, error) from None
    for column in wanted:
        if pa.types.is_binary(table.column(column).type):
            raise _not_utf8(where, f"column {column!r}", table.column(column).to_pylist())
    return table


def _parsed(path: Path, delimiter: str, wanted: list[str], threads: bool = True) -> Any:
    import pyarrow as pa
    from pyarrow import csv as arrow

    compression = "gzip" if path.suffix.lower() == ".gz" else None
    with pa.input_stream(str(path), compression=compression) as file:
        return arrow.read_csv(
            file,
            arrow.ReadOptions(use_threads=threads, block_size=1 << 22),
            arrow.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            arrow.ConvertOptions(
                include_columns=wanted, null_values=MISSING, strings_can_be_null=True
            ),
        )


def _misread(path: Path, where: str, delimiter: str, wanted: list[str], error: Any) -> DataError:
    """Reads once more, in one thread: only then pyarrow tells the row."""
    import pyarrow as pa

    try:
        _parsed(path, delimiter, wanted, threads=False)
    except pa.ArrowInvalid as told:
        error = told
    # pyarrow's handler of such rows would be the better source, but prints for rows that are not
    # UTF-8. Its rows count from 1, the header among them.
    odd = re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", str(error))
    if odd is None:
        return _unreadable(where, error)
    row, header, cells = map(int, odd.groups())
    return DataError(
        f"Every row must have as many cells as the header, which has {header} in {where}; row "
        f"{row - 2} has {cells}. Correct the file (a cell with {delimiter!r} in it needs quotes)."
    )


def _header(path: Path, where: str) -> tuple[str, list[str]]:
    """The delimiter, and the names of the columns."""
    packed = path.suffix.lower() == ".gz"
    kind: Any = gzip.open if packed else open
    with kind(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
        first = ""
        while not first.strip("\r\n"):
            first = text.readline()
            if not first:
                raise DataError(f"A table must have a header and rows, and {where} is empty.")
        delimiter = "\t" if path.suffix.lower() == ".tsv" else _delimiter(first)
        try:
            header = next(csv.reader(chain([first], text), delimiter=delimiter))
        except csv.Error as error:
            raise _unreadable(where, error) from None
    whole = "".join(header)
    if "\0" in whole or any("\udc80" <= character <= "\udcff" for character in whole):
        raise _not_utf8(where, "its header", [])
    return delimiter, header


def _delimiter(line: str) -> str:
    plain = re.sub(r'"[^"]*"', "", line)
    return ";" if ";" in plain and "," not in plain else ","


def _not_utf8(where: str, part: str, cells: list[Any]) -> DataError:
    for row, cell in enumerate(cells):
        try:
            str(cell or b"", "utf-8")
        except UnicodeDecodeError:
            part = f"row {row} of {part}"
            break
    return DataError(f"A text file must be UTF-8, and {part} in {where} is not; save it as UTF-8.")


# ---- tables in memory ----------------------------------------------------------------------------


def _in_memory(source: Any, where: str, choose: _Choose) -> Any:
    """The chosen columns, a pyarrow Table."""
    import pyarrow as pa

    if isinstance(source, pa.Table):
        return source.select(choose(source.column_names, _index(source.schema)))
    pandas = type(source).__module__.partition(".")[0] == "pandas" and hasattr(source, "columns")
    if pandas:
        names = [str(column) for column in source.columns]
    elif isinstance(source, Mapping):
        names, source = [str(column) for column in source], list(source.values())
    else:
        raise DataError(
            "A table must be a path, a pyarrow Table, a pandas DataFrame or a mapping of column "
            f"names to values, got a {type(source).__name__}; convert it."
        )
    out: dict[str, Any] = {}
    for column in choose(names):
        place = names.index(column)
        values = source.iloc[:, place] if pandas else source[place]
        out[column] = _array(values, f"Column {column!r} of {where}")
    lengths = {column: len(values) for column, values in out.items()}
    if len(set(lengths.values())) > 1:
        short, long = min(lengths, key=lengths.__getitem__), max(lengths, key=lengths.__getitem__)
        raise DataError(
            f"Columns of {where} must be of one length, {short!r} has {lengths[short]} rows and "
            f"{long!r} {lengths[long]}; correct them."
        )
    return pa.table(out)


def _array(values: Any, what: str) -> Any:
    import pyarrow as pa

    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__len__"):
        raise DataError(f"{what} must be a list of values, got {values!r:.60}; give one a row.")
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        reason = str(error).split("\n")[0].rstrip(".")
        raise DataError(
            f"{what} must be values of one type, one a row ({reason}); convert them."
        ) from None


# ---- columns -------------------------------------------------------------------------------------


class _Column:
    """A column's values, out of pandas' Categorical, and what they are."""

    def __init__(self, name: str, where: str, values: Any) -> None:
        import pyarrow as pa

        self.name, self.what = name, f"Column {name!r} of {where}"
        is_a = pa.types
        self.categorical = is_a.is_dictionary(values.type)
        if self.categorical:
            values = values.cast(values.type.value_type)
        if str(values.type) == "string_view":
            values = values.cast(pa.large_string())
        if is_a.is_decimal(values.type):
            values = values.cast(pa.float64())
        self.values = values
        self.whole = is_a.is_integer(values.type)
        self.boolean = is_a.is_boolean(values.type)
        self.text = is_a.is_string(values.type) or is_a.is_large_string(values.type)
        self.floats = is_a.is_floating(values.type)
        empty = is_a.is_null(values.type)
        if not (self.whole or self.boolean or self.text or self.floats or empty):
            out = "turn it into numbers" if is_a.is_temporal(values.type) else "convert it"
            raise DataError(
                f"{self.what} must be numbers, text or true/false, got {values.type}; {out}, or "
                "put it in ignore."
            )

    def check_present(self, out: str) -> None:
        """Raises DataError where cells are missing. out: what may be done beside filling them."""
        import pyarrow.compute as pc

        missing = pc.is_null(self.values, nan_is_null=True)
        count = pc.sum(missing).as_py()
        if count == len(self.values):
            raise DataError(f"{self.what} must have values, and all its cells are missing; {out}.")
        if count:
            row = pc.index(missing, True).as_py()
            raise DataError(
                f"{self.what} must have a value in every row, and {_cells(count)} missing (empty, "
                f"NA or NaN), the first in row {row}. Fill or drop these rows, or {out}."
            )

    def numbers(self, out: str) -> NDArray[np.float32]:
        """The values as float32 (rows,), all of them finite."""
        import pyarrow as pa

        values = self.values.cast(pa.uint8()) if self.boolean else self.values
        given = values.to_numpy()
        with np.errstate(over="ignore"):
            array: NDArray[np.float32] = given.astype(np.float32)
        odd = np.flatnonzero(~np.isfinite(array))
        if len(odd):
            raise DataError(
                f"{self.what} must be finite numbers that float32 can hold, and {_cells(len(odd))} "
                f"not, the first in row {odd[0]} ({given[odd[0]]}). Correct or drop these rows, or "
                f"{out}."
            )
        return array

    def categories(self) -> list[Any]:
        """The different values, in order."""
        import pyarrow.compute as pc

        found: list[Any] = sorted(pc.unique(self.values).to_pylist())
        broken = [value for value in found if self.text and "\n" in value]
        if broken:
            raise DataError(
                f"{self.what} must have its text in one line, got {broken[0]!r:.60} in row "
                f"{self.row(broken[0])}; close the quotes, or remove the line breaks."
            )
        return found

    def row(self, value: Any) -> int:
        """The first row with this value."""
        import pyarrow.compute as pc

        return int(pc.index(self.values, value).as_py())

    def codes(self, values: Sequence[Any]) -> NDArray[np.int64]:
        """Where in `values` each row's value is, (rows,)."""
        import pyarrow as pa
        import pyarrow.compute as pc

        known = pa.array(values, type=self.values.type)
        return cast(
            "NDArray[np.int64]",
            pc.index_in(self.values, value_set=known).to_numpy().astype(np.int64),
        )

    def check_no_numbers(self, out: str) -> None:
        """Raises DataError for text that seems to be numbers but for a few cells, as with "?"."""
        if not self.text:
            return
        found = self.categories()
        numbers = np.array([_is_number(value.replace(",", ".")) for value in found])
        odd = ~np.array([_is_number(value) for value in found])
        if odd.any() and numbers.sum() > _FEW_NUMBERS:
            codes = self.codes(found)
            if numbers[codes].mean() >= _MOSTLY:
                row = int(odd[codes].argmax())
                raise DataError(
                    f"{self.what} is text and most of it numbers, but for cells such as "
                    f"{self.values[row].as_py()!r} in row {row}; write them as plain numbers "
                    f"(1234.5), or {out}."
                )


def _cells(count: int) -> str:
    return "1 cell is" if count == 1 else f"{count} cells are"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# ---- inputs --------------------------------------------------------------------------------------


class _Part(NamedTuple):
    """What a column becomes: its inputs' names; each row's category, or None for one number."""

    column: _Column
    names: tuple[str, ...]
    codes: NDArray[np.int64] | None


def _inputs(columns: Sequence[_Column]) -> tuple[Tensor, tuple[str, ...], list[bool]]:
    """float32 (rows, inputs); a name for each input; whether it is a number."""
    parts = [_part(column) for column in columns]
    names = tuple(name for part in parts for name in part.names)
    x = np.zeros((len(columns[0].values), len(names)), np.float32)
    rows, at, numeric = np.arange(len(x)), 0, []
    for column, named, codes in parts:
        if codes is None:
            x[:, at] = column.numbers("put the column in ignore")
        else:
            x[rows, at + codes] = 1
        numeric += [codes is None and not column.boolean] * len(named)
        at += len(named)
    return torch.from_numpy(x), names, numeric


def _part(column: _Column) -> _Part:
    out = "put the column in ignore"
    column.check_present(out)
    if not (column.text or column.categorical):
        return _Part(column, (column.name,), None)
    column.check_no_numbers(out)
    found = column.categories()
    if len(found) > CATEGORIES:
        shown = ", ".join(repr(value)[:30] for value in found[:3])
        raise DataError(
            f"{column.what} must have at most {CATEGORIES} categories, and has {len(found)} "
            f"({shown}, ...), as an identifier has; {out}."
        )
    return _Part(column, tuple(f"{column.name}={v}" for v in found), column.codes(found))


# ---- targets and tasks ---------------------------------------------------------------------------


def _targets(column: _Column, kind: Kind | None) -> tuple[Kind, Tensor, tuple[str, ...]]:
    """The kind; int64 (rows,) and names of classes, or float32 (rows, 1) and none."""
    out = "name another target"
    column.check_present(out)
    if kind != "classification":
        column.check_no_numbers("set kind = 'classification'")
    if kind is None:
        kind = "regression" if column.floats and not column.categorical else "classification"
        if column.whole and not column.categorical and len(column.categories()) > CATEGORIES:
            raise DataError(
                f"{column.what} has {len(column.categories())} different whole numbers, which may "
                "be classes or amounts; set kind = 'classification' or kind = 'regression'."
            )
    if kind == "classification":
        return kind, *_labels(column, "target")
    if column.text:
        raise DataError(
            f"{column.what} must be numbers for regression, got text such as "
            f"{column.values[0].as_py()!r:.60}; convert it, or set kind = 'classification'."
        )
    return kind, torch.from_numpy(column.numbers(out))[:, None], ()


def _labels(column: _Column, role: str) -> Labels:
    column.check_present(f"name another {role}")
    if not column.text:
        return number_labels(column.values.to_numpy(), column.what)
    found = column.categories()
    number, classes = number_labels(found, column.what)
    return Labels(number[torch.from_numpy(column.codes(found))], classes)
