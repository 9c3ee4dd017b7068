"""The command line: the only reader of flags. Heavy imports happen inside the commands."""

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpmcl.core.atomic import path_of
from dpmcl.exceptions import DpmclError, FolderError, printable

if TYPE_CHECKING:
    from dpmcl.study.study import Result

app = typer.Typer(
    help="Meta-continual learning via dynamic programming.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class Style(StrEnum):
    """Formats of a table."""

    text = "text"
    json = "json"
    csv = "csv"
    markdown = "markdown"
    latex = "latex"


class Picture(StrEnum):
    """Formats of a figure."""

    png = "png"
    svg = "svg"
    pdf = "pdf"


class Device(StrEnum):
    """Where to compute."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Diverging(StrEnum):
    """What happens when a replica diverges."""

    freeze = "freeze"
    stop = "stop"


class Form(StrEnum):
    """Forms of the engine."""

    auto = "auto"
    batched = "batched"
    looped = "looped"


class Precision(StrEnum):
    """Of products, where less than float32's is wanted."""

    tf32 = "tf32"
    bf16 = "bf16"


class Drawn(StrEnum):
    """What a figure shows."""

    errors = "errors"
    terms = "terms"
    stability = "stability"


class Study(StrEnum):
    """What a benchmark can estimate."""

    table1 = "table1"


Folders = Annotated[
    list[Path], typer.Argument(metavar="DIR...", help="Run folders.", parser=path_of)
]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A run folder.", parser=path_of)]


@app.command("list")
def list_() -> None:
    """Show presets, methods, streams, networks, metrics, optimisers and discounts."""
    from rich.console import Console
    from rich.table import Table

    from dpmcl import plugins, presets
    from dpmcl.theory.discount import DISCOUNTS

    sections = {"presets": [(name, presets.summary(name)) for name in presets.names()]}
    for kind, plural in plugins.KINDS.items():
        sections[plural] = [(name, plugins.summary(kind, name)) for name in plugins.names(kind)]
    sections["discounts"] = [
        (name, (rule.__doc__ or "").split("\n")[0]) for name, rule in DISCOUNTS.items()
    ]
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for title, entries in sections.items():
        table.add_row(title)
        for name, line in entries:
            table.add_row(f"  {printable(name)}", printable(line))
    Console(emoji=False).print(table, markup=False, highlight=False)


@app.command()
def show(preset: Annotated[str, typer.Argument(metavar="PRESET")]) -> None:
    """Print the complete spec of a preset; redirect it to a file to make your own."""
    from dpmcl import presets

    typer.echo(presets.text(preset).rstrip("\n"))


@app.command()
def run(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A preset, a spec, a stream, or data (my.csv).")
    ],
    method: Annotated[
        list[str] | None, typer.Option(help="Run this method; may be repeated.")
    ] = None,
    replicas: Annotated[int | None, typer.Option(help="Seeded runs of each method.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="FIRST", help="The first seed.")] = None,
    tasks: Annotated[int | None, typer.Option(help="Only the stream's first tasks.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="K=V", help="Change any entry of the spec.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Run folder; runs/NAME by default.", parser=path_of),
    ] = None,
    device: Annotated[Device | None, typer.Option()] = None,
    engine: Annotated[Form | None, typer.Option()] = None,
    on_divergence: Annotated[
        Diverging | None, typer.Option(help="What to do with a replica that is not finite.")
    ] = None,
    watch_: Annotated[
        str | None,
        typer.Option("--watch", metavar="WHAT,...", help="Record while it runs: terms, stability."),
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
    request.set(set_ or []).update(replicas=replicas, seed=seed).tasks(tasks)
    request.update(device=device and device.value, engine=engine and engine.value)
    request.update(on_divergence=on_divergence and on_divergence.value)
    request.watch(watch_.split(",") if watch_ is not None else None)
    spec = request.spec()
    folder = out or request.folder or Path("runs") / _short(source)
    with _signals() as asked, _progress() as (watch, say):
        keeping = Keeping(checkpoint, stop=lambda: bool(asked))
        try:
            result = study.run(spec, folder, watch, say, keeping, fresh)
        except (Stopped, KeyboardInterrupt):
            number = asked[0] if asked else signal.SIGINT
            # A bare name could be a preset's or a stream's.
            shown = str(folder) if len(folder.parts) > 1 else os.path.join(".", folder)  # noqa: PTH118
            again = printable(shlex.quote(shown))
            say(f"Stopped; `dpmcl run {again}` goes on from the last checkpoint.")
            raise typer.Exit(128 + number) from None
    typer.echo(result.table())
    try:
        picture = study.draw(result, folder)
    except FolderError:  # a full disk: the results are whole, and are in the folder
        typer.echo(printable(f"folder: {folder}"))
        raise
    except DpmclError as error:
        typer.echo(f"No figure: {error}", err=True)
    else:
        typer.echo(printable(f"figure: {picture}"))
    typer.echo(printable(f"folder: {folder}"))


@app.command("table")
def table_(
    folders: Folders,
    style: Annotated[Style, typer.Option("--format")] = Style.text,
    metric: Annotated[
        list[str] | None, typer.Option(help="Add a metric's mean and standard error.")
    ] = None,
    by_task: Annotated[
        bool,
        typer.Option("--by-task", help="A row a task: its error when new, and at last."),
    ] = False,
) -> None:
    """Print the table of one or more run folders."""
    from dpmcl.results import table
    from dpmcl.study import study

    rows: list[dict[str, Any]] = []
    for folder in folders:
        result = _with_results(study.load(folder), folder)
        rows += result.rows_by_task() if by_task else result.rows(tuple(metric or ()))
    typer.echo(table.render(rows, style.value))


@app.command()
def plot(
    folder: Folder,
    picture: Annotated[Picture, typer.Option("--format")] = Picture.png,
    smooth: Annotated[
        float, typer.Option(metavar="SIGMA", help="Gaussian filter over tasks, 0 for none.")
    ] = 0.0,
    what: Annotated[Drawn, typer.Option(help="Errors, or what --watch recorded.")] = Drawn.errors,
) -> None:
    """Draw CME and NTE against tasks, or what was watched: means over seeds, and bands."""
    from dpmcl.study import study

    path = study.draw(study.load(folder), folder, picture.value, smooth, what.value)
    typer.echo(printable(str(path)))


@app.command()
def stream(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A stream, a preset, a spec, or data (my.csv).")
    ],
    seed: Annotated[int | None, typer.Option(help="Whose split, and whose draws.")] = None,
    tasks: Annotated[int | None, typer.Option(help="Only the stream's first tasks.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="K=V", help="Change any entry of the spec.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The picture; runs/streams/NAME.png.", parser=path_of),
    ] = None,
) -> None:
    """Show a stream's tasks, labels, rows and shapes, and draw a sheet of samples."""
    from rich.console import Console
    from rich.table import Column, Table

    from dpmcl import plugins
    from dpmcl.results import figures, sheet
    from dpmcl.results.names import displayed
    from dpmcl.study import study
    from dpmcl.study.api import Request

    known = source in plugins.names("stream")
    request = Request({"stream": source, "methods": ["naive"]} if known else source)
    request.set(set_ or []).update(seed=seed).tasks(tasks)
    found, splits = study.preview(request.spec())
    facts = sheet.describe(found, splits)
    typer.echo(
        f"{displayed(facts['name'])}: {facts['kind']}, {facts['tasks']} tasks, "
        f"{facts['rows']} rows, inputs {tuple(facts['inputs'])} {facts['dtype']}, "
        f"{facts['outputs']} outputs"
    )
    if facts["scenario"]:
        typer.echo(printable(f"scenario: {facts['scenario']}"))
    for note in facts["notes"]:
        typer.echo(printable(note))
    if facts["classes"]:
        names = map(displayed, facts["classes"])
        pairs = ", ".join(f"{number} = {name}" for number, name in enumerate(names))
        typer.echo(f"labels: {pairs}")
    columns = ("task", "name", "classes", "train", "validation", "test")
    folding = (Column(column, overflow="fold") for column in columns)  # else names are cut
    table = Table(*folding, box=None, padding=(0, 2, 0, 0))
    for row in facts["table"]:
        classes = ", ".join(map(displayed, row["classes"]))
        cells = {**row, "name": displayed(row["name"]), "classes": classes}
        table.add_row(*(str(cells[column]) for column in columns))
    Console(emoji=False).print(table, markup=False, highlight=False)
    path = out or Path("runs") / "streams" / f"{_short(source)}.png"
    try:
        figures.save(sheet.draw(found), path)
    except DpmclError as error:
        if out is not None or isinstance(error, FolderError):  # it was asked for, or has no room
            raise
        typer.echo(f"No picture: {error}", err=True)
    else:
        typer.echo(printable(f"picture: {path}"))


@app.command("bench")
def bench_(
    networks: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NETWORK]...", help="sine, mnist, omniglot, cifar10; all by default."
        ),
    ] = None,
    replicas: Annotated[
        str | None, typer.Option(metavar="N,N,...", help="1,5,10,25,50 by default.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(metavar="NAME,NAME,...", help="er,dpmcl by default.")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(help="Interleaved timings of each contestant; 5 by default.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="About how long a timing takes.")] = 0.5,
    device: Annotated[Device, typer.Option()] = Device.auto,
    precision: Annotated[Precision | None, typer.Option()] = None,
    study: Annotated[
        Study | None, typer.Option(help="Estimate what the paper's table 1 takes here.")
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="The report as JSON.", parser=path_of)
    ] = Path("runs/bench.json"),
) -> None:
    """Measure how fast the package trains here, beside a plain PyTorch loop.

    Needs no data. Where avalanche-lib is installed (the extra `bench`), it is measured too.
    """
    from dpmcl import bench

    with _progress() as (watch, _):
        report = bench.bench(
            networks or "all",
            replicas=bench.numbers(replicas) if replicas is not None else None,
            repeats=repeats,
            seconds=seconds,
            device=device.value,
            precision=None if precision is None else precision.value,
            methods=methods.split(",") if methods is not None else None,
            study=study and study.value,
            out=out,
            watch=watch,
        )
    typer.echo(bench.text(report))
    typer.echo(printable(f"report: {out}"))


def _short(source: str) -> str:
    """A name for the files of a source: a path's last part without suffixes."""
    name = Path(source).absolute().name if "/" in source or "." in source else source
    return (name.lstrip(".").split(".")[0] or "data").replace(":", ".")


def _with_results(result: "Result", folder: Path) -> "Result":
    if not result.records:
        raise DpmclError(f"{folder} has no results yet; `dpmcl run` makes some.")
    return result


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Signals to stop, in a list as they come; the second one acts as it would without us."""
    asked: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, _: object) -> None:
        asked.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        typer.echo("Stopping after these updates; a second Ctrl-C leaves at once.", err=True)

    for number in before:
        signal.signal(number, note)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _progress() -> Iterator[Any]:
    """A bar for each method, with the time left, and lines beside it, on standard error."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    bars: dict[str, Any] = {}
    console = Console(stderr=True, emoji=False)
    progress = Progress(
        TextColumn("{task.description:<10}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("spent"),
        TimeElapsedColumn(),
        console=console,
    )

    def watch(method: str, done: int, total: int) -> None:
        if not bars:  # from here on, for an error that comes earlier is a line by itself
            progress.start()
        if method not in bars or done == 0:
            bars[method] = progress.add_task(printable(method), total=total)
        progress.update(bars[method], completed=done, total=total)

    def say(line: str) -> None:
        console.print(printable(line), markup=False, highlight=False, soft_wrap=True)

    try:
        yield watch, say
    finally:
        if bars:
            progress.stop()


def main() -> None:
    """Runs the command line; an error of the package's own, or of the machine, is one line.

    The status is 2 then; 1 where nobody reads the output any more.
    """
    _open_streams()
    status, line = 2, ""
    try:
        try:
            sys.path.append(str(Path.cwd()))  # so that `module:Name` finds the user's own files
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
        place = f"{error.filename}: " if error.filename else ""
        line = f"{place}reading or writing failed ({error.strerror or error})."
    with suppress(OSError):
        typer.echo(f"dpmcl: {line}" * bool(line), err=True, nl=bool(line))
    _abandon_output()
    sys.exit(status)


def _open_streams() -> None:
    """Makes both outputs take any text: what their encoding lacks is written as its escape."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed, as by 2>&-
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _abandon_output() -> None:
    """Lets what is still to be written go, if it cannot be written: at exit it would fail again."""
    try:
        sys.stdout.flush()
    except OSError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115


if __name__ == "__main__":
    main()
