"""Arguments and options shared by several commands."""

from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NamedTuple

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
"""The Typer application. Each command registers itself where it is defined."""


def _print_version(requested: bool) -> None:
    """Print the version and exit, if requested."""
    if requested:
        typer.echo(f"dpmcl {version('dpmcl')}")
        raise typer.Exit


@app.callback()
def _global_options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Define the options that precede a command."""


def file_option(text: str) -> Any:
    """Return the option of a file to write.

    Args:
        text: Help on the option.
    """
    return typer.Option(metavar="FILE", help=text, parser=path_of)


Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE", help="A preset, a spec file, a stream, data (my.csv), or a run folder."
    ),
]
Methods = Annotated[list[str] | None, typer.Option(help="Only this method; may be repeated.")]
Replicas = Annotated[int | None, typer.Option(help="Number of seeds of each method.")]
Against = Annotated[
    str | None,
    typer.Option(metavar="METHOD", help="Compare every method with this one, paired by seed."),
]
Style = Annotated[TableFormat, typer.Option("--format", help="Format of the table.")]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Folder for the results; by default a folder in runs/.", parser=path_of
    ),
]
Folders = Annotated[
    list[Path], typer.Argument(metavar="DIR...", help="Run folders.", parser=path_of)
]
Tasks = Annotated[int | None, typer.Option(help="Number of tasks, the stream's first ones.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="K=V", help="Change an entry of the spec; may be repeated."),
]
Fresh = Annotated[
    bool,
    typer.Option(
        "--fresh", help="Start anew; keep the earlier run in DIR until this one has finished."
    ),
]
BudgetText = Annotated[
    str | None,
    typer.Option(
        metavar="printed|flops|flops=N|rows=N|bytes=N",
        help="Limit of each method: flops or rows (backpropagated) per task set its updates, bytes "
        "its rows of memory. flops without a number is the cost of DPMCL; printed keeps the spec.",
    ),
]
On = Annotated[
    Where,
    typer.Option(help="Run jobs here, or on Ray; DPMCL_RAY may name a cluster's address."),
]
StorageAddress = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="ADDRESS",
        help="Storage for checkpoints of jobs on Ray, as s3://bucket/folder; by default DIR.",
    ),
]
Checkpoint = Annotated[
    float,
    typer.Option(metavar="SECONDS", help="Seconds between checkpoints within a task.", min=0.0),
]


class RunOptions(NamedTuple):
    """Options that decide how runs are made.

    Attributes:
        budget: Budget of each method, as text; None for the updates and memory in the spec.
        seconds: Seconds between checkpoints within a task.
        fresh: Start anew.
        on: Where jobs run, "here" or "ray".
        storage: Address for checkpoints of jobs on Ray; None for the run folders.
    """

    budget: str | None
    seconds: float
    fresh: bool
    on: Where
    storage: str | None


def short_name(source: str) -> str:
    """Return a name for a source's folders and files: the last part of its path, without suffixes.

    Args:
        source: The source, as on the command line.
    """
    name = Path(source).absolute().name if "/" in source or "." in source else source
    return (name.lstrip(".").split(".")[0] or "data").replace(":", ".")
