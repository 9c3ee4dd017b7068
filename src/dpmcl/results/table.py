"""Tables as text: columns of a study's rows, in five formats."""

import csv
import io
import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from rich.cells import cell_len

from dpmcl.core.choices import TableFormat
from dpmcl.exceptions import SpecError, listed, printable, shown, unknown
from dpmcl.results.comparison import setting_text
from dpmcl.results.names import displayed
from dpmcl.results.statistics import Interval
from dpmcl.results.summary import Row

Columns = Mapping[str, Callable[[Row], str]]
"""Functions that return the text of a row's cell, by the title of the column."""

COSTS = {
    "gradient_evaluations": "gradients",
    "rows_backpropagated": "rows",
    "rows_head": "rows, head alone",
    "rows_forward": "rows forward",
    "flops": "FLOPs",
    "memory_bytes": "bytes of memory",
    "notes_bytes": "of notes",
    "copies_bytes": "of copies",
}
"""Titles of the costs of a replica's updates, by their names in `Work`."""

_NAMES = ("stream", "method", "name")
_WORDS: Columns = {"stream": lambda row: row["stream"], "method": lambda row: row["method"]}
# Characters to escape. An underscore within a word has no meaning in Markdown, nor has a colon that
# does not begin an emoji's name.
_MARKDOWN = re.compile(r"[\\`*\[\]<>|~&$#@]|(?<![^\W_])_|_(?![^\W_])|:(?=[\w+-]+:)")
_LATEX = str.maketrans(
    {c: f"\\{c}" for c in "{}$&#_%"}
    | {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "`": r"\textasciigrave{}"}
)


@dataclass(frozen=True)
class Layout:
    """Choice and names of a table's columns.

    Attributes:
        settings: Keys of rows that are settings, shown beside the method.
        columns: Titles of the columns to show, in order (keys, for JSON and CSV). Empty shows all.
        renamed: Replacements for titles of columns and names of methods.
        best: Returns the cells, as (row, title), that are set in bold. Called for LaTeX only.
    """

    settings: Sequence[str] = ()
    columns: Sequence[str] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    best: Callable[[], Collection[tuple[int, str]]] = tuple


def number(value: float | Interval | None) -> str:
    """Return a number with three significant digits, or an interval as "LOW to HIGH".

    Args:
        value: A number or an interval; None returns "-".

    >>> number((0.12345, 2)), number(None)
    ('0.123 to 2', '-')
    """
    if isinstance(value, tuple):
        return " to ".join(map(number, value))
    return "-" if value is None else f"{value:.3g}"


def table_text(rows: Sequence[Row], columns: Columns, style: TableFormat, *, words: int) -> str:
    """Return rows as a table with the given columns.

    Args:
        rows: The rows.
        columns: Columns of the table. JSON and CSV show all keys of the rows instead.
        style: Format of the table.
        words: Number of leading columns that are left-aligned.
    """
    if style in ("json", "csv"):
        return _data(rows, style, Layout())
    return format_cells(list(columns), cells(rows, columns), style, words=words)


def cells(rows: Sequence[Row], columns: Columns) -> list[list[str]]:
    """Return the text of each cell, as a list of lines.

    Args:
        rows: The rows.
        columns: The columns.
    """
    return [[cell(row) for cell in columns.values()] for row in rows]


def render(rows: Sequence[Row], style: TableFormat, layout: Layout | None = None) -> str:
    """Return rows of a summary as a table.

    Args:
        rows: Rows returned by `rows`, `rows_by_task` or `cost_rows`.
        style: Format of the table. "json" and "csv" show all digits and unchanged names; in JSON an
            infinite number is null. The others show three decimals, and names that are made
            printable and escaped for the format. LaTeX needs the package booktabs.
        layout: Choice and names of the columns; None for the default.

    Raises:
        SpecError: There is no such format or column, or no method or column to rename.
    """
    layout = layout or Layout()
    if not (isinstance(style, str) and style in get_args(TableFormat)):
        formats = ", ".join(get_args(TableFormat))
        raise SpecError(f"A table is one of {formats}, got {shown(style)}.")
    methods = list(dict.fromkeys(row["method"] for row in rows))
    rows = [{**row, "method": layout.renamed.get(row["method"], row["method"])} for row in rows]
    if style in ("json", "csv"):
        _check_renamed(layout, [*methods, *(rows[0] if rows else ())])
        return _data(rows, style, layout)
    rows = [{k: displayed(v) if k in _NAMES else v for k, v in row.items()} for row in rows]
    settings = {
        key: lambda row, key=key: displayed(setting_text(row[key])) for key in layout.settings
    }
    columns = {**_WORDS, **settings, **columns_of(rows)}
    words = {*_WORDS, *settings, "task"}  # titles of the columns of text
    titles = _chosen(columns, layout.columns)
    _check_renamed(layout, [*methods, *columns])
    bold = {
        (row, titles.index(title))
        for row, title in (layout.best() if style == "latex" else ())
        if title in titles
    }
    header = [printable(layout.renamed.get(title, title)) for title in titles]
    body = [[columns[title](row) for title in titles] for row in rows]
    footer = _footer(rows) if style == "text" else []
    text_columns = sum(title in words for title in titles)
    text = format_cells(header, body, style, words=text_columns, bold=bold)
    return "\n".join([text, *footer])


def format_cells(
    header: Sequence[str],
    body: Sequence[Sequence[str]],
    style: TableFormat,
    *,
    words: int,
    bold: Collection[tuple[int, int]] = (),
) -> str:
    """Return cells as a table of text, Markdown or LaTeX.

    Args:
        header: Titles of the columns.
        body: Cells of each line.
        style: "text", "markdown" or "latex".
        words: Number of leading columns that are left-aligned.
        bold: Line and column, from 0, of the cells that LaTeX sets in bold.
    """
    if style == "markdown":
        rule = [*["---"] * words, *["--:"] * (len(header) - words)]
        header, *body = (
            [_MARKDOWN.sub(r"\\\g<0>", cell) for cell in line] for line in (header, *body)
        )
        return "\n".join("| " + " | ".join(line) + " |" for line in [header, rule, *body])
    if style == "latex":
        columns = "l" * words + "r" * (len(header) - words)
        titles, *cells = ([cell.translate(_LATEX) for cell in line] for line in (header, *body))
        first = _latex_line(titles)
        top = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", first, r"\midrule"]
        for line, column in bold:
            cells[line][column] = rf"\textbf{{{cells[line][column]}}}"
        return "\n".join([*top, *map(_latex_line, cells), r"\bottomrule", r"\end{tabular}"])
    return aligned(header, body, words)


def _data(rows: Sequence[Row], style: TableFormat, layout: Layout) -> str:
    """Return rows as JSON or CSV."""
    keys = _chosen(rows[0] if rows else {}, layout.columns)
    header = [layout.renamed.get(key, key) for key in keys]
    body = [[_data_value(row[key], style) for key in keys] for row in rows]
    if style == "json":
        entries = [dict(zip(header, values, strict=True)) for values in body]
        return json.dumps(entries, indent=1, allow_nan=False)
    return "\n".join(map(_csv_line, [header, *body]))


def _data_value(value: Any, style: TableFormat) -> Any:
    """Return a value for JSON, which has no infinite numbers, or for a cell of CSV."""
    if style == "json":
        return None if value in (math.inf, -math.inf) else value
    if isinstance(value, tuple):  # an interval, with every digit
        return ", ".join(map(str, value))
    return setting_text(value) if isinstance(value, list | Mapping | bool) else value


def _chosen(columns: Mapping[str, Any], chosen: Sequence[str]) -> list[str]:
    """Return the titles of the columns to show; all of them if none is named."""
    for title in chosen:
        if title not in columns:
            raise unknown("column", title, list(columns), f"Columns: {', '.join(columns)}.")
    return list(chosen or columns)


def _check_renamed(layout: Layout, names: Sequence[str]) -> None:
    """Raise SpecError if a name to replace is none of the table's methods or columns."""
    for name in layout.renamed:
        if name not in names:
            raise unknown("method or column", name, names, f"To rename: {listed(names)}.")


def _footer(rows: Sequence[Row]) -> list[str]:
    """Return the lines under a table: diverged replicas, validation rows, metrics without value."""
    diverged = [
        f"{row['method']} on {row['stream']}: seed{'s' * (row['diverged'] > 1)} "
        f"{row['diverged_seeds'].replace(' ', ', ')} diverged; its means are over the survivors, "
        f"{row['replicas'] - row['diverged']} of {row['replicas']} replicas."
        for row in rows
        if row.get("diverged_seeds")
    ]
    on_validation = [
        f"{row['method']} on {row['stream']}: trains on validation rows too, which methods without "
        "this line never see."
        for row in rows
        if row.get("trains_on_validation")
    ]
    without_value = [
        f"{row['method']} on {row['stream']}: {metric} has no value for {number} of "
        f"{row['replicas']} replicas"
        + ("." if row[f"{metric}_mean"] is None else "; its mean is over the others.")
        for row in rows
        for metric, number in row.get("lacking", {}).items()
        if number
    ]
    return diverged + list(dict.fromkeys(on_validation)) + without_value


def columns_of(rows: Sequence[Row]) -> Columns:
    """Return the columns of a table, other than stream and method.

    Args:
        rows: Rows of the table. Their keys decide whether it shows tasks, costs or a summary.
    """

    def pair(name: str) -> Callable[[Row], str]:
        return lambda row: _mean_with_error(row[f"{name}_mean"], row.get(f"{name}_se"))

    def count(key: str) -> Callable[[Row], str]:
        return lambda row: _count(row[key])

    first = rows[0] if rows else {}
    if "task" in first:
        return {
            "task": lambda row: f"{row['task']}: {row['name']}",
            "replicas": _replicas,
            "error when new": pair("new"),
            "error at last": pair("last"),
        }
    if "flops" in first:
        return {"replicas": _replicas, **{COSTS[k]: count(k) for k in COSTS}}
    means = {"CME": pair("cme")}
    if not all(_are_close(row["cme_mean"], row["cme_micro_mean"]) for row in rows):
        means["CME (micro)"] = pair("cme_micro")
    names = [key.removesuffix("_se") for key in first if key.endswith("_se")]
    return {
        "replicas": _replicas,
        **means,
        "NTE": pair("nte"),
        "NTE path": pair("nte_path"),
        "accuracy": pair("accuracy"),
        "forgetting": pair("forgetting"),
        **{name: pair(name) for name in names if name not in ("cme", "cme_micro", "nte")},
        "gradients": count("gradient_evaluations"),
        "rows": count("rows_backpropagated"),
    }


def _replicas(row: Row) -> str:
    return f"{row['replicas']}" + f", {row['diverged']} diverged" * bool(row["diverged"])


def aligned(header: Sequence[str], body: Sequence[Sequence[str]], words: int) -> str:
    """Return a table as lines of text with aligned columns.

    Args:
        header: Titles of the columns.
        body: Cells of each line.
        words: Number of leading columns that are left-aligned.
    """
    widths = [max(map(cell_len, column)) for column in zip(header, *body, strict=True)]

    def line(cells: Sequence[str]) -> str:
        blanks = [" " * (w - cell_len(c)) for c, w in zip(cells, widths, strict=True)]
        pairs = enumerate(zip(cells, blanks, strict=True))
        return "  ".join(c + blank if i < words else blank + c for i, (c, blank) in pairs).rstrip()

    return "\n".join([line(header), "  ".join("-" * w for w in widths), *map(line, body)])


def _csv_line(cells: Sequence[Any]) -> str:
    """Return a line of CSV without its line end.

    The writer needs the line end "\\r\\n": it quotes a cell that contains "\\r" or "\\n" only if
    its line end has that character.
    """
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerow(cells)
    return out.getvalue().removesuffix("\r\n")


def _latex_line(cells: Sequence[str]) -> str:
    line = " & ".join(cells) + r" \\"
    line = re.sub("-(?=-)", r"-\\/", line)  # LaTeX sets two hyphens as a dash
    # At the start of a line, [ and * would be an argument of the \\ of the line before.
    return "{}" + line if line.startswith(("[", "*")) else line


def _mean_with_error(value: float | None, error: float | None) -> str:
    return _decimal(value) + (f" ({_decimal(error)})" if error is not None else "")


def _are_close(first: float | None, second: float | None) -> bool:
    """Return True if two means are equal up to rounding, or both None."""
    if first is None or second is None:
        return first is second
    return math.isclose(first, second, rel_tol=1e-9)


def _decimal(value: float | None) -> str:
    """Return a number with three decimals, or as 1.2e-05 if that is too small or too large."""
    if value is None:
        return "-"
    return f"{value:.3f}" if value == 0 or 5e-4 <= abs(value) < 1e4 else f"{value:.1e}"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
