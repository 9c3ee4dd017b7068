"""The commands that read run folders: `table`, `plot` and `report`."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from dpmcl.cli.options import Against, Folders, Style, app, file_option
from dpmcl.core.choices import FigureContent, FigureFormat
from dpmcl.exceptions import DpmclError, SpecError, printable


@app.command()
def table(
    folders: Folders,
    *,
    style: Style = "text",
    metric: Annotated[
        list[str] | None,
        typer.Option(help="Add a metric's mean and standard error; may be repeated."),
    ] = None,
    by_task: Annotated[
        bool,
        typer.Option("--by-task", help="One row per task, with its error when new and at the end."),
    ] = False,
    cost: Annotated[
        bool, typer.Option("--cost", help="Cost of a replica's updates, and bytes that it stores.")
    ] = False,
    against: Against = None,
    columns: Annotated[
        str | None, typer.Option(metavar="TITLE,...", help="Only these columns, in this order.")
    ] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TEXT", help="Rename a method or the title of a column."),
    ] = None,
) -> None:
    """Print the table of run folders.

    It has a column for each setting in which they differ.
    """
    from dpmcl.results import against as comparisons
    from dpmcl.results.table import Layout, render, table_text
    from dpmcl.study import result as results
    from dpmcl.study.side_by_side import SideBySide

    kinds: dict[str, Any] = {
        "--against": against,
        "--cost": cost,
        "--by-task": by_task,
        "--metric": metric,
    }
    if against is not None:
        kinds |= {"--columns": columns, "--rename": rename}
    _refuse_two(kinds)
    runs = {str(folder): results.load(folder) for folder in folders}
    for name, result in runs.items():
        if not result.records:
            raise DpmclError(f"{name} has no results yet; `dpmcl run` makes some.")
    side_by_side = SideBySide(runs)
    if against is not None:
        compared = comparisons.rows(side_by_side.entries, against)
        typer.echo(table_text(compared, comparisons.COLUMNS, style, words=4))
        return
    chosen = [name.strip() for name in columns.split(",")] if columns else []
    layout = Layout(columns=chosen, renamed=dict(map(_renaming, rename or [])))

    def rows(result: results.Result) -> list[dict[str, Any]]:
        if cost:
            return result.cost_rows()
        return result.rows_by_task() if by_task else result.rows(tuple(metric or ()))

    joined, layout = side_by_side.rows(rows, layout)
    typer.echo(render(joined, style, layout))


@app.command()
def plot(
    folders: Folders,
    *,
    picture: Annotated[FigureFormat, typer.Option("--format", help="Format of the file.")] = "png",
    smooth: Annotated[
        float,
        typer.Option(metavar="SIGMA", help="Width of a Gaussian filter over tasks; 0 for none."),
    ] = 0.0,
    what: Annotated[
        FigureContent,
        typer.Option(help="Errors, readings that --watch recorded, or a confusion matrix."),
    ] = "errors",
    ylim: Annotated[
        str | None,
        typer.Option(
            metavar="LOW,HIGH", help="Range of the error axis; by default that of the data."
        ),
    ] = None,
    log: Annotated[
        bool | None,
        typer.Option("--log/--linear", help="Scale of the error axis.", show_default=False),
    ] = None,
    width: Annotated[
        str | None,
        typer.Option(
            metavar="3.25in|8cm",
            help="Width of the figure, 9in by default; below 5in, panels are in one column.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        file_option(
            "File to write; by default DIR/figures/WHAT.FORMAT, or WHAT.FORMAT for several."
        ),
    ] = None,
) -> None:
    """Draw CME and NTE, or recorded readings, against tasks.

    Lines are means over seeds, with bands.
    """
    from dpmcl.study import result as results
    from dpmcl.study.side_by_side import SideBySide

    look: dict[str, Any] = {} if log is None else {"log": log}
    if width is not None:
        look["width"] = _inches(width)
    if ylim is not None:
        look["ylim"] = _two_numbers(ylim)
    runs = {str(folder): results.load(folder) for folder in folders}
    result = next(iter(runs.values()))
    path = folders[0] / "figures" / f"{what}.{picture}"
    if len(runs) > 1:
        records, stream = SideBySide(runs).of_one_stream()
        result, path = results.Result({}, stream, records), Path(path.name)
    result.plot(out or path, smooth, what, **look)
    typer.echo(printable(str(out or path)))


@app.command()
def report(
    folders: Folders,
    *,
    out: Annotated[Path, file_option("File to write, .html or .md.")] = Path("report.html"),
    against: Against = None,
) -> None:
    """Write a report: tables, statistics, figures, costs, environment."""
    from dpmcl.core.atomic import write_text
    from dpmcl.results import report as reports
    from dpmcl.results import store

    runs = {str(folder): store.load(folder) for folder in folders}
    if out.suffix == ".html":
        texts = {out.name: reports.html(runs, against)}
    elif out.suffix == ".md":
        texts = reports.markdown(runs, against, stem=out.stem)
    else:
        raise SpecError(f"A report is an .html or an .md file, got {printable(out.name)!r}.")
    for name, text in reversed(texts.items()):  # the page last, since it names the figures
        write_text(out.parent / name, text)
    typer.echo(printable(str(out)))


def _inches(text: str) -> float:
    """Return a length in inches."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(in|cm|mm|pt)?", text.strip())
    if match is None:
        raise SpecError(f"--width takes a length, as in 3.25in or 8cm, got {printable(text)!r}.")
    return float(match[1]) / {"in": 1, "cm": 2.54, "mm": 25.4, "pt": 72}[match[2] or "in"]


def _two_numbers(text: str) -> tuple[float, float]:
    """Return LOW,HIGH."""
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        raise SpecError(f"--ylim takes LOW,HIGH, as in 0,0.5, got {printable(text)!r}.") from None
    return low, high


def _refuse_two(kinds: dict[str, Any]) -> None:
    """Raise SpecError if options ask for different tables."""
    chosen = [option for option, value in kinds.items() if value]
    if len(chosen) > 1:
        raise SpecError(f"{chosen[0]} and {chosen[1]} are of different tables; leave out one.")


def _renaming(text: str) -> tuple[str, str]:
    """Return the two sides of NAME=TEXT."""
    name, equals, new_name = text.partition("=")
    if not name or not equals:
        raise DpmclError(f"--rename takes NAME=TEXT, as in dpmcl=DPMCL, got {printable(text)!r}.")
    return name, new_name
