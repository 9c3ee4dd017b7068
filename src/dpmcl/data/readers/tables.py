"""Tables, in CSV or Parquet files or in memory, as labelled data: each column an input, or more."""

import csv
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from copy import copy
from io import TextIOWrapper
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpmcl.core.model import Kind
from dpmcl.data.labelled import Labelled, check_kind
from dpmcl.data.labels import Labels, is_unicode, number_labels, plain_array, unmasked
from dpmcl.data.readers.dressed import CODE, PLAIN, decoration, dressed
from dpmcl.data.rounding import keeps
from dpmcl.data.sources import SUFFIXES, at_home
from dpmcl.exceptions import DataError, SpecError, reason, shown, unknown

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

    source: path of a .csv, .tsv (either gzipped, as .csv.gz) or .parquet file, a pyarrow Table, a
    pandas DataFrame (without its index), or a mapping of column names to values. Text files are
    UTF-8 with a header; a .csv whose header has no comma is split at semicolons or tabs; `MISSING`
    cells are missing.

    A column of text, from any source, is read as numbers or as true/false where every text is
    written so, and else as text; whole numbers with a zero before them (007) are text. Classes and
    tasks keep their text whatever it is.

    Inputs are (rows, inputs) in the table's order of columns, float32 where it keeps their digits,
    else float64. A column of numbers is one input, true/false one of 0 and 1, and text or pandas'
    Categorical one of 0 and 1 for each category, in alphabetical order (numbers by value), named
    "colour=red" in `columns`.

    target: classes, or for regression numbers (rows, 1), float32 or float64 as inputs. kind: None
    for classification where they are text, true/false or whole numbers, and for regression where
    they are others.
    task: column that says which task a row belongs to. ignore: columns to leave out.
    scale: mark the columns of numbers (and regression targets) to be scaled. name: for titles.

    Raises DataError for a table that cannot be read or used, missing cells among the rest; and
    SpecError for column names that contradict each other.

    >>> data = read_table({"size": [1, 2], "hue": ["b", "a"], "kind": ["x", "y"]}, target="kind")
    >>> data.columns, data.x.tolist(), data.classes
    (('size', 'hue=a', 'hue=b'), [[1.0, 0.0, 1.0], [2.0, 1.0, 0.0]], ('x', 'y'))
    """
    if isinstance(ignore, np.ndarray) or hasattr(ignore, "to_list"):  # frame.columns[:2]
        ignore = np.asarray(ignore).ravel().tolist()
    check_roles(target, task, ignore, kind)
    path = Path(source) if isinstance(source, str | os.PathLike) else None
    where = str(path) if path else name or "the table"
    left_out: list[str] = []

    def choose(names: Sequence[str], index: Sequence[str] = ()) -> list[str]:
        """The columns to read, of a table with these; those of a pandas index only if named."""
        _check_columns(names, where, target, task, ignore)
        outside = {*ignore, *(set(index) - {target, task})}
        left_out.extend(column for column in names if column in outside)
        return [column for column in names if column not in left_out]

    table = _of_file(path, where, choose) if path else _in_memory(source, where, choose)
    if table.num_rows == 0:
        raise DataError(f"A table must have rows, and {where} has only columns; give it some.")
    textual = path is not None and path.suffix.lower() != ".parquet"
    columns = {c: _Column(c, where, table.column(c), textual) for c in table.column_names}
    inputs = [column for c, column in columns.items() if c not in (target, task)]
    if not inputs:
        raise DataError(
            f"A table must have an input column beside the target, and {where} has none left; "
            "ignore fewer, or give it some (frame.reset_index() makes columns of an index)."
        )
    kind, y, classes = _targets(columns[target], kind)
    number, tasks = (None, ()) if task is None else _labels(columns[task], "task")
    x, names, numeric, notes = _inputs(inputs, scale)
    scaled = scale and (kind == "regression" or any(numeric))
    became = f"{len(classes)} {'class' if len(classes) == 1 else 'classes'} named by its values"
    if kind == "regression":
        became = "a number, scaled" if scaled else "a number"
    notes += (f"target: {target}, {became}",)
    notes += () if task is None else (f"tasks: {task}, {len(tasks)} named by its values",)
    left_out += [f"index {n}" for n in getattr(getattr(source, "index", None), "names", ()) if n]
    notes += (f"ignored: {_listed(left_out)}",) if left_out else ()
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
        notes=notes,
    )


# ---- names of columns ----------------------------------------------------------------------------


def check_roles(
    target: str, task: str | None, ignore: Sequence[str], kind: Kind | None = None
) -> None:
    """Raises SpecError for a column that is to be two things, and for an unknown kind."""
    if isinstance(ignore, str):
        raise SpecError(f"ignore must be a list of columns, got {ignore!r}; write [{ignore!r}].")
    if not isinstance(ignore, list | tuple | Set):
        raise SpecError(f"ignore must be a list of columns, got {shown(ignore)}.")
    roles: list[tuple[str, Any]] = [("target", target), ("task", task)]
    for role, column in [*roles[: 1 + (task is not None)], *(("ignore", c) for c in ignore)]:
        if not isinstance(column, str):
            out = f"; write {str(column)!r}" if isinstance(column, int | np.integer) else ""
            raise SpecError(f"{role} must be the name of a column, got {shown(column)}{out}.")
    check_kind(kind)
    if target == task:
        raise SpecError(f"target and task must be two columns, got {target!r} twice; change one.")
    for role, column in roles:
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
            more = ", ..." if len(names) > _SHOWN else ""
            hint = f"Columns of {where}: {', '.join(map(_visible, names[:_SHOWN]))}{more}."
            if len(names) == 1 and column in names[0]:
                hint += " Separate its cells with commas."
            raise DataError(str(unknown(f"{role} column", column, names, hint)))
    if "" in names and "" not in ignore:
        raise DataError(
            f"Columns must have names, and column {list(names).index('')} of {where} has none (the "
            "index of a DataFrame?); name it, or put '' in ignore."
        )


def _visible(name: str) -> str:
    """A column's name, in quotes where it is empty, has tabs, or white space at an end."""
    return name if name and name == name.strip() and name.isprintable() else repr(name)


def _listed(names: Sequence[str]) -> str:
    """All names in one line: "a, p0 to p783, b"."""
    parts: list[str] = []
    for _, numbered in groupby(enumerate(names), _run):
        run = [_visible(name) for _, name in numbered]
        parts += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else run
    return ", ".join(parts)


def _run(placed: tuple[int, str]) -> tuple[str, int | None]:
    """Return what consecutively numbered names have in common. placed: place and name."""
    place, name = placed
    found = re.fullmatch(r"(.*?)(0|[1-9][0-9]{0,8})", name, re.DOTALL)
    return (found[1], int(found[2]) - place) if found else (name, None)


def _stem(path: Path) -> str:
    return Path(path.stem).stem if _is_packed(path) else path.stem


# ---- files ---------------------------------------------------------------------------------------


def _of_file(path: Path, where: str, choose: _Choose) -> Any:
    """The chosen columns of a file, a pyarrow Table."""
    import pyarrow as pa

    *others, last = SUFFIXES["table"]
    if not path.name.lower().endswith((*others, last)):
        raise DataError(
            f"A table must be a {', '.join(others)} or {last} file, got {where}; convert it."
        )
    try:
        path = Path(at_home(str(path)))
        if not path.is_file():
            raise DataError(f"A table must be a file that exists, got {where}; correct the path.")
        read = _of_parquet if path.suffix.lower() == ".parquet" else _of_csv
        return read(path, where, choose)
    except (OSError, RuntimeError, pa.ArrowException) as error:
        raise _unreadable(where, error) from None


def _unreadable(where: str, error: Exception) -> DataError:
    return DataError(f"{where} cannot be read ({reason(error)}); correct it, or write it again.")


def _of_parquet(path: Path, where: str, choose: _Choose) -> Any:
    from pyarrow import parquet

    # Not `read_table`, which takes folders named a=1 above the file for columns.
    with parquet.ParquetFile(path) as file:
        wanted = choose(file.schema_arrow.names, _index(file.schema_arrow))
        return file.read(columns=wanted).select(wanted)


def _index(schema: Any) -> list[str]:
    """The columns that were the index of a DataFrame."""
    try:
        about = schema.pandas_metadata or {}
        return [column for column in about["index_columns"] if isinstance(column, str)]
    except (ValueError, KeyError, TypeError):
        return []


def _of_csv(path: Path, where: str, choose: _Choose) -> Any:
    import pyarrow as pa
    from pyarrow import csv as arrow

    delimiter, header = _header(path, where)
    wanted = choose(header)
    try:
        with _opened(path) as file:
            table = arrow.read_csv(
                file,
                # In one thread, or pyarrow does not tell the row of an error; it is as fast.
                arrow.ReadOptions(use_threads=False, block_size=1 << 22),
                arrow.ParseOptions(delimiter=delimiter, newlines_in_values=True),
                arrow.ConvertOptions(
                    include_columns=wanted,
                    column_types=dict.fromkeys(wanted, pa.binary()),
                    null_values=MISSING,
                    strings_can_be_null=True,
                ),
            )
    except (pa.ArrowInvalid, KeyError) as error:
        raise _misread(where, delimiter, error) from None
    columns = {}
    for column in wanted:
        cells = table.column(column)
        try:
            columns[column] = cells.cast(pa.string())
        except pa.ArrowInvalid:
            raise _not_utf8(where, f"column {column!r}", cells.to_pylist()) from None
    return pa.table(columns)


def _opened(path: Path) -> Any:
    import pyarrow as pa

    return pa.input_stream(str(path), compression="gzip" if _is_packed(path) else None)


def _is_packed(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def _misread(where: str, delimiter: str, error: Exception) -> DataError:
    if "Empty CSV" in str(error):
        return DataError(f"A table must have rows, and {where} has only a header; give it some.")
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
    with TextIOWrapper(_opened(path), "utf-8-sig", "surrogateescape", newline="") as text:
        first = ""
        while not first.strip("\r\n"):
            first = text.readline()
            if not first:
                raise DataError(f"A table must have a header and rows, and {where} is empty.")
        tabs = path.name.lower().removesuffix(".gz").endswith(".tsv")
        delimiter = "\t" if tabs else _delimiter(first)
        try:
            header = next(csv.reader(chain([first], text), delimiter=delimiter))
        except csv.Error as error:
            raise _unreadable(where, error) from None
    whole = "".join(header)
    if "\0" in whole or not is_unicode(whole):
        raise _not_utf8(where, "its header", [])
    return delimiter, header


def _delimiter(line: str) -> str:
    plain = re.sub(r'"[^"]*"', "", line)
    return next((mark for mark in ",;\t" if mark in plain), ",")


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
        if getattr(source.columns, "nlevels", 1) > 1:
            raise DataError(
                f"Columns of {where} must have one name each, got {source.columns.nlevels} levels "
                "of names; join them, as in frame.columns = ['_'.join(c) for c in frame.columns]."
            )
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
    lengths = ", ".join(f"{column!r} {len(values)}" for column, values in out.items())
    if len({len(values) for values in out.values()}) > 1:
        raise DataError(f"Columns of {where} must be of one length, got {lengths:.200}; mend them.")
    return pa.table(out)


def _array(values: Any, what: str) -> Any:
    import pyarrow as pa

    if isinstance(values, Tensor):
        values = plain_array(values, what)
    values = unmasked(values, what)
    one = isinstance(values, str | bytes | Mapping | Set) or getattr(values, "shape", None) == ()
    if one or not hasattr(values, "__len__"):
        raise DataError(f"{what} must be a list of values, got {shown(values)}; give one a row.")
    if isinstance(values, list | tuple):
        values = [value.item() if _is_scalar(value) else value for value in values]
    try:
        return pa.array(values, from_pandas=True)
    except Exception as error:  # pyarrow asks any object for its values
        raise DataError(
            f"{what} must be values of one type, one a row ({reason(error)}); convert them."
        ) from None


def _is_scalar(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray) and value.ndim == 0


# ---- columns -------------------------------------------------------------------------------------


class _Column:
    """A column's values, out of pandas' Categorical, and what they are.

    values: text that is written as numbers or true/false is read as those. written: the text as it
    came, None where it is no text.
    """

    def __init__(self, name: str, where: str, values: Any, textual: bool) -> None:
        import pyarrow as pa

        self.name, self.what, self.textual = name, f"Column {name!r} of {where}", textual
        is_a = pa.types
        self.categorical = is_a.is_dictionary(values.type)
        if self.categorical:
            with suppress(pa.ArrowNotImplementedError):  # pandas' intervals, refused below
                values = values.cast(values.type.value_type)
        if str(values.type) == "string_view":
            values = values.cast(pa.large_string())
        if is_a.is_decimal(values.type):
            values = self._of_decimals(values)
        self.written = values if _is_text(values) else None
        if self.written is not None and not self.categorical:
            values = _read(values)
        self.values = values
        self.whole = is_a.is_integer(values.type)
        self.boolean = is_a.is_boolean(values.type)
        self.text = _is_text(values)
        self.floats = is_a.is_floating(values.type)
        empty = is_a.is_null(values.type)
        if not (self.whole or self.boolean or self.text or self.floats or empty):
            out = "turn it into numbers" if is_a.is_temporal(values.type) else "convert it"
            raise DataError(
                f"{self.what} must be numbers, text or true/false, got {values.type}; {out}, or "
                "put it in ignore."
            )

    def _of_decimals(self, values: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        floats = values.cast(pa.float64())
        if pc.count_distinct(floats).as_py() < pc.count_distinct(values).as_py():
            raise DataError(
                f"{self.what} has decimals ({values.type}) that float64 cannot tell apart; "
                "subtract an offset, or turn it into text where it is a label."
            )
        return floats

    def check_present(self, out: str) -> None:
        """Raises DataError where cells are missing. out: what may be done beside filling them."""
        import pyarrow.compute as pc

        missing = pc.is_null(self.values, nan_is_null=True)
        count = pc.sum(missing).as_py()
        if count == len(self.values):
            raise DataError(f"{self.what} must have values, and all its cells are missing; {out}.")
        if count:
            row = pc.index(missing, True).as_py()
            name = (  # as the code of Namibia is
                " A text file's NA is a missing cell even where it is meant as a name: write "
                "another, or give the DataFrame of pandas.read_csv(path, keep_default_na=False)."
            ) * (self.textual and self.text)
            raise DataError(
                f"{self.what} must have a value in every row, and {_cells(count)} missing (empty, "
                f"NA or NaN), the first in row {row}. Fill or drop these rows, or {out}.{name}"
            )

    def numbers(self, out: str) -> NDArray[np.floating[Any]]:
        """The values (rows,), all of them finite; float32 where it keeps their digits."""
        import pyarrow as pa

        values = self.values.cast(pa.uint8()) if self.boolean else self.values
        given = values.to_numpy()
        with np.errstate(over="ignore"):
            odd = np.flatnonzero(~np.isfinite(given.astype(np.float32)))
        if len(odd):
            raise DataError(
                f"{self.what} must be finite numbers that float32 can hold, and {_cells(len(odd))} "
                f"not, the first in row {odd[0]} ({given[odd[0]]}). Correct or drop these rows, or "
                f"{out}."
            )
        for dtype in (np.float32, np.float64):
            if keeps(given, dtype):
                return cast("NDArray[np.floating[Any]]", given.astype(dtype))
        row = int(np.abs(given).argmax())
        raise DataError(
            f"{self.what} must be numbers that float64 can tell apart, got {given[row]} in row "
            f"{row}; subtract an offset from them, or {out}."
        )

    def categories(self) -> list[Any]:
        """The different values, in order."""
        import pyarrow.compute as pc

        found: list[Any] = sorted(pc.unique(self.values).to_pylist())
        for value in found if self.text else ():
            if "\n" in value or "\0" in value:
                raise DataError(
                    f"{self.what} must have its text in one line, without NUL, got {value!r:.60} "
                    f"in row {self.row(value)}; close the quotes, or correct the cell."
                )
        return found

    def as_written(self) -> "_Column":
        """The column as text, where it came so."""
        column = copy(self)
        if self.written is not None:
            column.values, column.text = self.written, True
        return column

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

    def check_no_numbers(self, out: str, few: int = 0) -> None:
        """Raise DataError for text that is numbers in another dress, or but for a few cells ("?").

        few: so many different texts may be names, whatever dress they are in.
        """
        if not self.text or self.categorical:
            return
        found = self.categories()
        cell = dressed(found) if len(found) > few else None
        row = self.row(cell) if cell is not None else None
        marks = [decoration(value) for value in found]
        odd = np.array([mark != "" for mark in marks])
        numbers = np.array([mark in ("", ",") for mark in marks])
        numbers &= [not re.match(CODE, value) for value in found]
        if row is None and numbers.sum() > _FEW_NUMBERS:
            codes = self.codes(found)
            if odd.any() and numbers[codes].mean() >= _MOSTLY:
                row = int(odd[codes].argmax())
        if row is not None:
            raise DataError(
                f"{self.what} is mostly numbers, dates or times, but not written as plain numbers, "
                f"such as {self.values[row].as_py()!r} in row {row}; write them so (1234.5), or "
                f"{out}."
            )


def _is_text(values: Any) -> bool:
    return str(values.type) in ("string", "large_string")


def _cells(count: int) -> str:
    return "1 cell is" if count == 1 else f"{count} cells are"


def _read(values: Any) -> Any:
    """Text as whole numbers, numbers or true/false where all of it is written so, else as it is."""
    import pyarrow as pa
    import pyarrow.compute as pc

    first = pc.index(pc.is_valid(values), True).as_py()
    word = "" if first < 0 else values[first].as_py()
    for words in (("true", "false"), ("True", "False"), ("TRUE", "FALSE")):
        if word in words and set(pc.unique(values).drop_null().to_pylist()) <= set(words):
            return pc.equal(values, words[0])
    if not re.fullmatch(PLAIN, word.strip(), re.ASCII):
        return values
    # What pyarrow takes for numbers too: codes, 0x1F, nan; and whole ones that float64 would round.
    for kind, odd in (
        (pa.int64(), rf"{CODE}\s*$|0x"),
        (pa.float64(), rf"{CODE}\s*$|nan|\d{{19,}}\s*$"),
    ):
        for text in (values, pc.utf8_trim_whitespace(values)):
            try:  # pyarrow's whole numbers have no +
                numbers = pc.replace_substring_regex(text, r"^\+(\d)", r"\1").cast(kind)
            except pa.ArrowInvalid:
                continue
            some = pc.match_substring_regex(values, rf"^\s*[+-]?({odd})", ignore_case=True)
            return values if pc.any(some).as_py() else numbers
    return values


# ---- inputs --------------------------------------------------------------------------------------


class _Part(NamedTuple):
    """Inputs that a column becomes. values: of one input, or each row's number among `names`."""

    kind: str
    names: tuple[str, ...]
    values: NDArray[Any]


def _inputs(
    columns: Sequence[_Column], scale: bool
) -> tuple[Tensor, tuple[str, ...], list[bool], tuple[str, ...]]:
    """The inputs (rows, inputs); a name for each; whether it is a number; lines that tell which."""
    parts = [_part(column, "numbers, scaled" if scale else "numbers") for column in columns]
    names = tuple(name for part in parts for name in part.names)
    kinds = [part.values.dtype for part in parts if part.values.dtype.kind == "f"]
    x = np.zeros((len(columns[0].values), len(names)), np.result_type(np.float32, *kinds))
    rows, at, numeric = np.arange(len(x)), 0, []
    told: dict[str, list[str]] = {}
    for column, (kind, named, values) in zip(columns, parts, strict=True):
        if values.dtype.kind == "f":
            x[:, at] = values
        else:
            x[rows, at + values] = 1
        numeric += [kind.startswith("numbers")] * len(named)
        at += len(named)
        told.setdefault(kind, []).append(column.name)
    notes = tuple(f"{kind}: {_listed(columns)}" for kind, columns in told.items())
    return torch.from_numpy(x), names, numeric, notes


def _part(column: _Column, numbers: str) -> _Part:
    """numbers: what a column of them is said to be."""
    out = "put the column in ignore"
    column.check_present(out)
    if not (column.text or column.categorical):
        kind = "true/false" if column.boolean else numbers
        return _Part(kind, (column.name,), column.numbers(out))
    column.check_no_numbers(
        f"{out}; if they are categories, begin each with a letter, or give a pandas Categorical"
    )
    found = column.categories()
    rows = len(column.values)
    each_its_own = len(found) > _FEW_NUMBERS and len(found) >= _MOSTLY * rows
    if len(found) > CATEGORIES or (each_its_own and not column.categorical):
        some = ", ".join(repr(value)[:30] for value in found[:3])
        raise DataError(
            f"{column.what} must have at most {CATEGORIES} categories, most of them in several "
            f"rows, and has {len(found)} in {rows} rows ({some}, ...), as an identifier has; {out}."
        )
    names = tuple(f"{column.name}={v}" for v in found)
    count = f"{len(names)} {'category' if len(names) == 1 else 'categories'}"
    return _Part(count, names, column.codes(found))


# ---- targets and tasks ---------------------------------------------------------------------------


def _targets(column: _Column, kind: Kind | None) -> tuple[Kind, Tensor, tuple[str, ...]]:
    """The kind; int64 (rows,) and names of classes, or float32 (rows, 1) and none."""
    out = "name another target"
    column.check_present(out)
    if kind != "classification":
        column.check_no_numbers("set kind = 'classification'", _FEW_NUMBERS)
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
    column = column.as_written()
    if not column.text:
        return number_labels(column.values.to_numpy(), column.what)
    found = column.categories()
    number, classes = number_labels(found, column.what)
    return Labels(number[torch.from_numpy(column.codes(found))], classes)
