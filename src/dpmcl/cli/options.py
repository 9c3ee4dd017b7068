"""Arguments and options that several commands share."""

from importlib.metadata import version
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from dpmcl.core.atomic import path_of
from dpmcl.core.choices import TableFormat, Where

app = typer.Typer(
    help="Meta-continual learning via dynamic programming.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
"""The command line, to which each command is added where it is defined."""


def _say_version(wanted: bool) -> None:
    """Print the version and end."""
    if wanted:
        typer.echo(f"dpmcl {version('dpmcl')}")
        raise typer.Exit


@app.callback()
def _everywhere(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_say_version, is_eager=True),
    ] = False,
) -> None:
    """Take what every command takes."""


Source = Annotated[
    str, typer.Argument(metavar="SOURCE", help="A preset, a spec, a stream, or data (my.csv).")
]
Methods = Annotated[list[str] | None, typer.Option(help="This method; may be repeated.")]
Replicas = Annotated[int | None, typer.Option(help="Seeded runs of each method.")]
Against = Annotated[
    str | None,
    typer.Option(metavar="METHOD", help="Compare every method with this one, over seeds."),
]
Style = Annotated[TableFormat, typer.Option("--format")]
Out = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder; below runs/ by default.", parser=path_of),
]
Folders = Annotated[
    list[Path], typer.Argument(metavar="DIR...", help="Run folders.", parser=path_of)
]
Tasks = Annotated[int | None, typer.Option(help="Only the stream's first tasks.")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="K=V", help="Change any entry of the spec.")
]
Fresh = Annotated[
    bool,
    typer.Option("--fresh", help="Start anew; keep what DIR holds aside until it has finished."),
]
BudgetText = Annotated[
    str | None,
    typer.Option(
        metavar="printed|flops|flops=N|rows=N|bytes=N",
        help="As many updates (rows of memory, for bytes) as this allows each method a task; "
        "flops without a number is what DPMCL takes.",
    ),
]
On = Annotated[
    Where,
    typer.Option(help="Where jobs run: here, or on Ray (DPMCL_RAY has a cluster's address)."),
]
StorageAddress = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="ADDRESS",
        help="Where jobs on Ray keep checkpoints, as s3://bucket/folder; DIR by default.",
    ),
]
Checkpoint = Annotated[
    float, typer.Option(metavar="SECONDS", help="Between checkpoints within a task.", min=0.0)
]


class How(NamedTuple):
    """How runs are made: the options that commands hand on together.

    Attributes:
        budget: What each method may spend, as text; None for what the spec says.
        seconds: Between checkpoints within a task.
        fresh: Start anew.
        on: Where jobs run.
        storage: Where jobs on other machines keep checkpoints.
    """

    budget: str | None
    seconds: float
    fresh: bool
    on: Where
    storage: str | None


def short(source: str) -> str:
    """Return a name for the files of a source: the last part of a path, without suffixes.

    Args:
        source: As a command takes it.
    """
    name = Path(source).absolute().name if "/" in source or "." in source else source
    return (name.lstrip(".").split(".")[0] or "data").replace(":", ".")
