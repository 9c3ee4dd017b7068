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
    Preset,
    TableFormat,
    Where,
)
from dpmcl.exceptions import DpmclError, FolderError, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from dpmcl.study.plan import Cell
    from dpmcl.training.keeper import Keeping
    from dpmcl.training.spec import Spec

LOG = logging.getLogger("dpmcl")

_BARS = 6
"""Progress bars of more methods go when they are full."""

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

Fresh = Annotated[
    bool,
    typer.Option("--fresh", help="Start anew; keep what DIR holds aside until it has finished."),
]
BudgetOption = Annotated[
    str | None,
    typer.Option(
        metavar="flops=N|rows=N|bytes=N",
        help="As many updates (rows of memory, for bytes) as this allows each method a task.",
    ),
]
On = Annotated[
    Where,
    typer.Option(help="Where jobs run: here, or on Ray (DPMCL_RAY has a cluster's address)."),
]
Checkpoint = Annotated[
    float, typer.Option(metavar="SECONDS", help="Between checkpoints within a task.", min=0.0)
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
    checkpoint: Checkpoint = 60.0,
    on: On = "here",
    fresh: Fresh = False,
    sweep: Annotated[
        list[str] | None,
        typer.Option(metavar="K=V,V", help="One run for each of these values; may be repeated."),
    ] = None,
    budget: BudgetOption = None,
) -> None:
    """Run what a study's folder still lacks; then show the table and draw the figure.

    An unfinished run goes on from its last checkpoint.
    """
    from dpmcl.study import study
    from dpmcl.study.api import Request
    from dpmcl.study.plan import axis, cells

    request = Request(source)
    if method:
        request.choose(method)
    request.set(set_ or []).update(replicas=replicas, seed=seed, tasks=tasks)
    request.update(device=device, engine=engine, on_divergence=on_divergence)
    request.update(watch=watch.split(",") if watch is not None else None)
    if sweep:
        name = f"{_short(source)}-sweep"
        varied = cells(request.table, dict(map(axis, sweep)))
        _study(
            varied,
            out or Path("runs") / name,
            budget=budget,
            seconds=checkpoint,
            fresh=fresh,
            on=on,
        )
        return
    spec = request.spec()
    folder = out or request.folder or Path("runs") / _short(source)
    if budget is not None:
        spec = _budgeted(spec, budget)
    with _stoppable(checkpoint, _rerun(folder)) as (keeping, progress):
        result = study.run(spec, folder, progress, keeping=keeping, fresh=fresh, on=on)
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
def study(
    name: Annotated[
        str,
        typer.Argument(
            metavar="STUDY", help="table1, figure2, figure3, zeta, or a TOML file with [axes]."
        ),
    ],
    *,
    streams: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Only these streams.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Only these methods.")
    ] = None,
    replicas: Annotated[int | None, typer.Option(help="Seeded runs of each method.")] = None,
    tasks: Tasks = None,
    preset: Annotated[
        Preset, typer.Option(help="The rates as printed, or those that learn.")
    ] = "calibrated",
    set_: Assignments = None,
    budget: BudgetOption = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder; runs/NAME by default.", parser=path_of),
    ] = None,
    checkpoint: Checkpoint = 60.0,
    on: On = "here",
    fresh: Fresh = False,
    shard: Annotated[
        str | None, typer.Option(metavar="I/N", help="Only every Nth job, from the Ith.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the jobs, and about how long they take.")
    ] = False,
    style: Annotated[TableFormat, typer.Option("--format")] = "text",
) -> None:
    """Make the runs of a study that are missing; then show its table and draw its figure."""
    from dpmcl.exceptions import SpecError
    from dpmcl.study import paper_studies, plan
    from dpmcl.study.api import Request
    from dpmcl.training import spec

    changes: dict[str, Any] = {}
    for text in set_ or []:
        changes = spec.together(changes, spec.assignment(text))
    if Path(name).suffix != ".toml":
        choice = paper_studies.Choice(
            streams=_names(streams),
            methods=_names(methods),
            replicas=replicas,
            tasks=tasks,
            preset=preset,
            changes=changes,
        )
        cells = paper_studies.runs(name, choice)
        folder = Path("runs") / f"{'zeta' if name == 'zeta' else 'paper'}-{preset}"
    else:
        if streams or methods:
            raise SpecError(
                "--streams and --methods are of the paper's studies; set them in the file."
            )
        table, axes = plan.read(Request(name).table)
        request = Request(table).change(changes).update(replicas=replicas, tasks=tasks)
        cells = plan.cells(request.table, axes)
        name = _short(name)
        folder = Path("runs") / name
    _study(
        cells,
        out or folder,
        name=name,
        budget=budget,
        seconds=checkpoint,
        fresh=fresh,
        on=on,
        shard=shard,
        dry_run=dry_run,
        style=style,
    )


@app.command()
def tune(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A preset, a spec, a stream, or data (my.csv).")
    ],
    *,
    method: Annotated[
        list[str] | None, typer.Option(help="Search for this method; may be repeated.")
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="K=V,V|K=LOW..HIGH",
            help="What is searched; training.lr=0.0001,0.001,0.01,0.1 by default.",
        ),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help="Trials of each method; all of a list by default.")
    ] = None,
    tasks: Annotated[int, typer.Option(help="The stream's first tasks.", min=1)] = 3,
    replicas: Annotated[int, typer.Option(help="Seeds of a trial.", min=1)] = 2,
    set_: Assignments = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder; runs/NAME-tune by default.", parser=path_of),
    ] = None,
    checkpoint: Checkpoint = 60.0,
    on: On = "here",
) -> None:
    """Search settings on rows held out of the training rows; write a spec that `run` takes."""
    from dpmcl.study.api import Request
    from dpmcl.study.tune import RATES, Search, dimension
    from dpmcl.study.tune import tune as search_settings

    request = Request(source)
    if method:
        request.choose(method)
    space = dict(map(dimension, vary)) if vary else RATES
    search = Search(space=space, trials=trials, tasks=tasks, replicas=replicas)
    folder = out or Path("runs") / f"{_short(source)}-tune"
    with _stoppable(checkpoint, "the same command") as (keeping, progress):
        table = request.set(set_ or []).table
        _, lines = search_settings(table, search, folder, watch=progress, keeping=keeping, on=on)
    for line in lines:
        typer.echo(printable(line))
    typer.echo(printable(f"spec: {folder / 'tuned.toml'}"))


@app.command()
def merge(
    into: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run or study folder.", parser=path_of)
    ],
    others: Annotated[
        list[Path],
        typer.Argument(metavar="OTHER...", help="Folders of the same runs.", parser=path_of),
    ],
) -> None:
    """Add the results of other folders, such as those of shards, to a folder."""
    from dpmcl.study.merging import merge as merged

    for line in merged(into, others):
        typer.echo(printable(line))


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


def _study(
    cells: "Sequence[Cell]",
    out: Path,
    *,
    name: str = "",
    budget: str | None = None,
    seconds: float = 60.0,
    fresh: bool = False,
    on: Where = "here",
    shard: str | None = None,
    dry_run: bool = False,
    style: TableFormat = "text",
) -> None:
    """Make the runs of a study; show its table and draw its figure."""
    from dpmcl.results import figures
    from dpmcl.study import studies
    from dpmcl.study.budget import Budget
    from dpmcl.study.executor import most_processes
    from dpmcl.study.forecast import forecast, written
    from dpmcl.study.study import Shard, run_all

    allowed = None if budget is None else Budget.parse(budget)
    runs, lines = studies.planned(cells, out, allowed)
    for line in lines:
        LOG.info("%s", printable(line))
    if dry_run:
        jobs = forecast(runs)
        processes = min(most_processes(runs[0].spec), len(jobs))
        typer.echo("\n".join(map(printable, written(jobs, processes))))
        return
    share = Shard.parse(shard) if shard is not None else None
    with _stoppable(seconds, "the same command") as (keeping, progress):
        run_all(runs, progress, keeping=keeping, fresh=fresh, shard=share, on=on)
    stored = studies.stored(cells, out)
    for line in studies.store_protocol(stored, out, allowed):
        LOG.warning("%s", printable(line))
    table, draw = studies.shown(name, cells, stored, style)
    typer.echo(table)
    try:
        with _dispensable("figure"):
            path = out / f"{name or 'sweep'}.png"
            figures.save(draw(), path)
            typer.echo(printable(f"figure: {path}"))
    finally:
        typer.echo(printable(f"folder: {out}"))


def _budgeted(spec: "Spec", text: str) -> "Spec":
    """Return a spec within a budget, and say what it allows."""
    from dpmcl.study.budget import Budget, within
    from dpmcl.training.job import Trainer, read

    spec, lines = within(Trainer(spec, read(spec, spec.seeds[:1])), Budget.parse(text))
    for line in lines:
        LOG.info("%s", printable(line))
    return spec


@contextmanager
def _stoppable(seconds: float, again: str) -> Iterator[tuple["Keeping", Callable[..., None]]]:
    """Draw bars, and stop after a checkpoint when asked to, saying what goes on from there."""
    from dpmcl.exceptions import Stopped
    from dpmcl.training.keeper import Keeping

    with _signals() as signals, _progress() as progress:
        try:
            yield Keeping(seconds, stop=lambda: bool(signals)), progress
        except (Stopped, KeyboardInterrupt):
            LOG.info("Stopped; %s goes on from the last checkpoint.", again)
            raise typer.Exit(128 + (signals[0] if signals else signal.SIGINT)) from None


def _rerun(folder: Path) -> str:
    """Return the command that goes on with a run folder; a bare name could be a preset's."""
    shown = str(folder) if len(folder.parts) > 1 else os.path.join(".", folder)  # noqa: PTH118
    return f"`dpmcl run {printable(shlex.quote(shown))}`"


def _names(text: str | None) -> list[str] | None:
    """Return names separated by commas."""
    return [name.strip() for name in text.split(",")] if text else None


def _renamed(text: str) -> tuple[str, str]:
    """Return the two sides of NAME=TEXT."""
    name, equals, other = text.partition("=")
    if not name or not equals:
        raise DpmclError(f"--rename takes NAME=TEXT, as in dpmcl=DPMCL, got {printable(text)!r}.")
    return name, other


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
        if done == total and len(bars) > _BARS:
            progress.update(bars[method], visible=False)

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
