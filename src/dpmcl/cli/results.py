"""The commands that read run folders: `table`, `plot` and `report`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from dpmcl.cli.options import Folder, Folders, app
from dpmcl.core.atomic import path_of
from dpmcl.core.choices import FigureContent, FigureFormat, TableFormat
from dpmcl.exceptions import DpmclError, printable


@app.command()
def table(
    folders: Folders,
    *,
    style: Annotated[TableFormat, typer.Option("--format")] = "text",
    metric: Annotated[
        list[str] | None, typer.Option(help="Add a metric's mean and standard error.")
    ] = None,
    by_task: Annotated[
        bool,
        typer.Option("--by-task", help="A row a task: its error when new, and at last."),
    ] = False,
    cost: Annotated[
        bool, typer.Option("--cost", help="What a replica's updates cost, and what it keeps.")
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(metavar="METHOD", help="Compare every method with this one, over seeds."),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="TITLE,...", help="Only these columns, in this order.")
    ] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TEXT", help="Another word for a method or a column's title."),
    ] = None,
) -> None:
    """Print the table of one or more run folders, with a column for each setting that differs."""
    from dpmcl.results.table import Look, render
    from dpmcl.study import study
    from dpmcl.study.side_by_side import SideBySide, render_comparisons

    runs = {str(folder): study.load(folder) for folder in folders}
    for name, result in runs.items():
        if not result.records:
            raise DpmclError(f"{name} has no results yet; `dpmcl run` makes some.")
    several = SideBySide(runs)
    if against is not None:
        typer.echo(render_comparisons(several.compared(against), style))
        return
    chosen = [name.strip() for name in columns.split(",")] if columns else []
    look = Look(columns=chosen, renamed=dict(map(_renamed, rename or [])))

    def rows(result: study.Result) -> list[dict[str, Any]]:
        if cost:
            return result.cost_rows()
        return result.rows_by_task() if by_task else result.rows(tuple(metric or ()))

    shown, look = several.rows(rows, look)
    typer.echo(render(shown, style, look))


@app.command()
def plot(
    folder: Folder,
    *,
    picture: Annotated[FigureFormat, typer.Option("--format")] = "png",
    smooth: Annotated[
        float, typer.Option(metavar="SIGMA", help="Gaussian filter over tasks, 0 for none.")
    ] = 0.0,
    what: Annotated[
        FigureContent, typer.Option(help="Errors, or what --watch recorded.")
    ] = "errors",
) -> None:
    """Draw CME and NTE against tasks, or what was watched: means over seeds, and bands."""
    from dpmcl.study import study

    path = study.draw(study.load(folder), folder, suffix=picture, smooth=smooth, what=what)
    typer.echo(printable(str(path)))


@app.command()
def report(
    folders: Folders,
    *,
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="The HTML file.", parser=path_of)
    ] = Path("report.html"),
    against: Annotated[
        str | None, typer.Option(metavar="METHOD", help="Compare every method with this one.")
    ] = None,
) -> None:
    """Write one HTML file about run folders: tables, statistics, figures, costs, environment."""
    from dpmcl.core.atomic import write_text
    from dpmcl.results import store
    from dpmcl.results.report import report as report_of

    runs = {str(folder): store.load(folder) for folder in folders}
    environment = {str(folder): store.environment(folder) for folder in folders}
    write_text(out, report_of(runs, environment=environment, against=against))
    typer.echo(printable(str(out)))


def _renamed(text: str) -> tuple[str, str]:
    """Return the two sides of NAME=TEXT."""
    name, equals, other = text.partition("=")
    if not name or not equals:
        raise DpmclError(f"--rename takes NAME=TEXT, as in dpmcl=DPMCL, got {printable(text)!r}.")
    return name, other
