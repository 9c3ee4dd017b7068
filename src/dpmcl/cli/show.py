"""The commands `list`, `show` and `stream`."""

import itertools
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from dpmcl.cli.options import Assignments, Source, Tasks, app, file_option, short_name
from dpmcl.cli.terminal import dispensable
from dpmcl.exceptions import SpecError, printable


@app.command("list")
def list_() -> None:
    """List presets and plugins: methods, streams, networks, ..."""
    from dpmcl import plugins, presets

    def summary(kind: str, name: str) -> str:
        try:
            return plugins.summary(kind, name)
        except SpecError as error:  # an installed package is broken; the others can be used
            return str(error)

    sections = {"presets": {name: presets.summary(name) for name in presets.names()}}
    for kind, plural in plugins.KINDS.items():
        sections[plural] = {name: summary(kind, name) for name in plugins.names(kind)}
    width = max(len(printable(name)) for entries in sections.values() for name in entries)
    for title, entries in sections.items():
        if entries:
            typer.echo(title)
        for name, line in entries.items():
            typer.echo(f"  {printable(name):<{width}}  {printable(line)}")


@app.command()
def show(source: Source, *, set_: Assignments = None) -> None:
    """Print the complete spec of a run, all defaults included.

    Redirect it to a file to start a spec of your own.
    """
    import tomli_w

    from dpmcl import presets
    from dpmcl.study.api import Request

    complete = Request(source).set(set_ or []).spec().to_table()
    lines = presets.text(source).split("\n") if source in presets.names() else []
    comments = itertools.takewhile(lambda line: line.startswith("#"), lines)
    typer.echo("\n".join([*comments, tomli_w.dumps(complete)]), nl=False)


@app.command()
def stream(
    source: Source,
    *,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the splits and of the stream's draws.")
    ] = None,
    tasks: Tasks = None,
    set_: Assignments = None,
    out: Annotated[
        Path | None, file_option("Picture to write; by default runs/streams/NAME.png.")
    ] = None,
) -> None:
    """Show a stream's tasks, labels, rows and shapes, and draw samples."""
    from dpmcl.results import figures, sheet
    from dpmcl.study import runs
    from dpmcl.study.api import Request

    # A spec must name a method; a stream does not depend on it.
    request = Request(source).choose(["naive"]).set(set_ or []).update(seed=seed, tasks=tasks)
    built, splits = runs.preview(request.spec())
    typer.echo(sheet.describe(built, splits))
    path = out or Path("runs") / "streams" / f"{short_name(source)}.png"
    with nullcontext() if out else dispensable("picture"):
        figures.save(sheet.draw(built), path)
        typer.echo(printable(f"picture: {path}"))
