"""The command line: the only reader of flags. Heavy imports happen inside the commands."""

import functools
import itertools
import logging
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpmcl.core.atomic import path_of
from dpmcl.core.choices import (
    DeviceName,
    EngineName,
    FigureContent,
    FigureFormat,
    OnDivergence,
    TableFormat,
)
from dpmcl.exceptions import DpmclError, FolderError, printable

if TYPE_CHECKING:
    from rich.console import Console

LOG = logging.getLogger("dpmcl")

app = typer.Typer(
    help="Meta-continual learning via dynamic programming.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A run folder.", parser=path_of)]
Folders = Annotated[
    list[Path], typer.Argument(metavar="DIR...", help="Run folders.", parser=path_of)
]
Tasks = Annotated[int | None, typer.Option(help="Only the stream's first tasks.")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="K=V", help="Change any entry of the spec.")
]


@app.command("list")
def list_() -> None:
    """Show presets, and every kind of plugin: methods, streams, networks, metrics, ..."""
    from dpmcl import plugins, presets

    sections = {"presets": {name: presets.summary(name) for name in presets.names()}}
    for kind, plural in plugins.KINDS.items():
        sections[plural] = {name: plugins.summary(kind, name) for name in plugins.names(kind)}
    width = max(len(printable(name)) for entries in sections.values() for name in entries)
    for title, entries in sections.items():
        if entries:
            typer.echo(title)
        for name, line in entries.items():
            typer.echo(f"  {printable(name):<{width}}  {printable(line)}")


@app.command()
def show(preset: Annotated[str, typer.Argument(metavar="PRESET")]) -> None:
    """Print the complete spec of a preset; redirect it to a file to make your own."""
    import tomli_w

    from dpmcl import presets
    from dpmcl.training.spec import Spec, read

    text = presets.text(preset)
    comments = itertools.takewhile(lambda line: line.startswith("#"), text.split("\n"))
    complete = Spec.parse(read(text, f"preset '{preset}'")).to_table()
    typer.echo("\n".join([*comments, tomli_w.dumps(complete)]), nl=False)


@app.command()
def run(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A preset, a spec, a stream, or data (my.csv).")
    ],
    *,
    method: Annotated[
        list[str] | None, typer.Option(help="Run this method; may be repeated.")
    ] = None,
    replicas: Annotated[int | None, typer.Option(help="Seeded runs of each method.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="FIRST", help="The first seed.")] = None,
    tasks: Tasks = None,
    set_: Assignments = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Run folder; runs/NAME by default.", parser=path_of),
    ] = None,
    device: DeviceName | None = None,
    engine: EngineName | None = None,
    on_divergence: Annotated[
        OnDivergence | None, typer.Option(help="What to do with a replica that is not finite.")
    ] = None,
    watch: Annotated[
        str | None,
        typer.Option(metavar="WHAT,...", help="Record while it runs: terms, stability."),
    ] = None,
    checkpoint: Annotated[
        float, typer.Option(metavar="SECONDS", help="Between checkpoints within a task.", min=0.0)
    ] = 60.0,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Start anew; keep what DIR holds aside until it has finished."
        ),
    ] = False,
) -> None:
    """Run what a study's folder still lacks; then show the table and draw the figure.

    An unfinished run goes on from its last checkpoint.
    """
    from dpmcl.exceptions import Stopped
    from dpmcl.study import study
    from dpmcl.study.api import Request
    from dpmcl.training.keeper import Keeping

    request = Request(source)
    if method:
        request.choose(method)
    request.set(set_ or []).update(replicas=replicas, seed=seed, tasks=tasks)
    request.update(device=device, engine=engine, on_divergence=on_divergence)
    request.update(watch=watch.split(",") if watch is not None else None)
    spec = request.spec()
    folder = out or request.folder or Path("runs") / _short(source)
    with _signals() as signals, _progress() as progress:
        keeping = Keeping(checkpoint, stop=lambda: bool(signals))
        try:
            result = study.run(spec, folder, progress, keeping=keeping, fresh=fresh)
        except (Stopped, KeyboardInterrupt):
            # A bare name could be a preset's or a stream's.
            shown = str(folder) if len(folder.parts) > 1 else os.path.join(".", folder)  # noqa: PTH118
            again = printable(shlex.quote(shown))
            LOG.info("Stopped; `dpmcl run %s` goes on from the last checkpoint.", again)
            raise typer.Exit(128 + (signals[0] if signals else signal.SIGINT)) from None
    typer.echo(result.table())
    try:
        with _dispensable("figure"):
            typer.echo(printable(f"figure: {study.draw(result, folder)}"))
    finally:
        typer.echo(printable(f"folder: {folder}"))


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
) -> None:
    """Print the table of one or more run folders."""
    from dpmcl.results.table import render
    from dpmcl.study import study

    rows: list[dict[str, Any]] = []
    for folder in folders:
        result = study.load(folder)
        if not result.records:
            raise DpmclError(f"{folder} has no results yet; `dpmcl run` makes some.")
        rows += result.rows_by_task() if by_task else result.rows(tuple(metric or ()))
    typer.echo(render(rows, style))


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
def stream(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A stream, a preset, a spec, or data (my.csv).")
    ],
    *,
    seed: Annotated[int | None, typer.Option(help="Whose split, and whose draws.")] = None,
    tasks: Tasks = None,
    set_: Assignments = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The picture; runs/streams/NAME.png.", parser=path_of),
    ] = None,
) -> None:
    """Show a stream's tasks, labels, rows and shapes, and draw a sheet of samples."""
    from dpmcl.results import figures, sheet
    from dpmcl.study import study
    from dpmcl.study.api import Request

    request = Request(source).set(set_ or []).update(seed=seed, tasks=tasks)
    built, splits = study.preview(request.spec())
    typer.echo(sheet.describe(built, splits))
    path = out or Path("runs") / "streams" / f"{_short(source)}.png"
    with nullcontext() if out else _dispensable("picture"):
        figures.save(sheet.draw(built), path)
        typer.echo(printable(f"picture: {path}"))


@contextmanager
def _dispensable(what: str) -> Iterator[None]:
    """Go on without a figure where there is nothing to draw it with; a full disk is an error."""
    try:
        yield
    except FolderError:
        raise
    except DpmclError as error:
        LOG.warning("No %s: %s", what, error)


def _short(source: str) -> str:
    """Return a name for the files of a source: the last part of a path, without suffixes."""
    name = Path(source).absolute().name if "/" in source or "." in source else source
    return (name.lstrip(".").split(".")[0] or "data").replace(":", ".")


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect signals to stop in a list; the second one acts as it would without us."""
    received: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, _: object) -> None:
        received.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        LOG.info("Stopping after these updates; a second Ctrl-C leaves at once.")

    for number in before:
        signal.signal(number, note)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@functools.cache
def _console() -> "Console":
    """Return the one console that writes to standard error: progress bars and lines beside them."""
    from rich.console import Console

    return Console(stderr=True, emoji=False)


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Draw a bar for each method, with the time left, from the first progress that is reported."""
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    _, *usual = Progress.get_default_columns()  # the first one would obey markup in names
    name, spent = TextColumn("{task.description:<10}", markup=False), TimeElapsedColumn()
    progress = Progress(name, *usual, TextColumn("left, spent"), spent, console=_console())
    bars: dict[str, Any] = {}

    def report(method: str, done: int, total: int) -> None:
        if not bars:  # not before, so that an error that comes earlier is a line by itself
            progress.start()
        if method not in bars or done == 0:
            bars[method] = progress.add_task(printable(method), total=total)
        progress.update(bars[method], completed=done, total=total)

    try:
        yield report
    finally:
        if bars:
            progress.stop()


class _Lines(logging.Handler):
    """Writes each record as a line, above the progress bars where there are any."""

    def emit(self, record: logging.LogRecord) -> None:
        line = printable(record.getMessage())
        _console().print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _logged_lines() -> Iterator[None]:
    """Show what the package logs, for the length of a command."""
    handler, level = _Lines(), LOG.level
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    try:
        yield
    finally:
        LOG.setLevel(level)
        LOG.removeHandler(handler)


def main() -> None:
    """Run the command line; an error of the package's own, or of the machine, is one line.

    The status is 2 then; 1 where nobody reads the output any more.
    """
    _open_streams()
    status, line = 2, ""
    try:
        try:
            sys.path.append(str(Path.cwd()))  # so that `module:Name` finds the user's own files
            with _logged_lines():
                app()
        finally:
            sys.stdout.flush()  # a failure after this would be the interpreter's own affair
    except DpmclError as error:
        line = str(error)
    except BrokenPipeError:
        status = 1
    except MemoryError:
        line = "This needs more memory than there is."
    except OSError as error:
        path = f"{error.filename}: " if error.filename else ""
        line = f"{path}reading or writing failed ({error.strerror or error})."
    with suppress(OSError):
        typer.echo(f"dpmcl: {line}" * bool(line), err=True, nl=bool(line))
    _abandon_output()
    sys.exit(status)


def _open_streams() -> None:
    """Make both outputs take any text: what their encoding lacks is written as its escape."""
    for name in ("stdout", "stderr"):
        output = getattr(sys, name)
        if output is None:  # closed, as by 2>&-
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        elif isinstance(output, TextIOWrapper):
            output.reconfigure(errors="backslashreplace")


def _abandon_output() -> None:
    """Drop output that cannot be written: at exit it would fail again."""
    try:
        sys.stdout.flush()
    except OSError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115


if __name__ == "__main__":
    main()
