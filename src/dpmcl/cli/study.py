"""The commands of studies: `study`, `tune` and `merge`."""

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpmcl.cli.options import (
    Assignments,
    BudgetText,
    Checkpoint,
    Fresh,
    Methods,
    On,
    Out,
    Replicas,
    RunOptions,
    Source,
    StorageAddress,
    Style,
    Tasks,
    app,
    short_name,
)
from dpmcl.cli.terminal import dispensable, stoppable
from dpmcl.core.atomic import path_of
from dpmcl.core.choices import Preset, TableFormat
from dpmcl.exceptions import SpecError, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dpmcl.study.paper_studies import Choice
    from dpmcl.study.plan import Variant
    from dpmcl.study.result import Result


@app.command()
def study(
    name: Annotated[
        str,
        typer.Argument(
            metavar="STUDY", help="table1, figure2, figure3, zeta, or a spec file with [axes]."
        ),
    ],
    *,
    streams: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Only these streams.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Only these methods.")
    ] = None,
    replicas: Replicas = None,
    tasks: Tasks = None,
    preset: Annotated[
        Preset, typer.Option(help="Learning rates: as printed in the paper, or rates that learn.")
    ] = "calibrated",
    set_: Assignments = None,
    budget: BudgetText = None,
    out: Out = None,
    checkpoint: Checkpoint = 60.0,
    on: On = "here",
    storage: StorageAddress = None,
    fresh: Fresh = False,
    shard: Annotated[
        str | None, typer.Option(metavar="I/N", help="Run only every Nth job, from the Ith on.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="List the jobs and about how long they take; train nothing."
        ),
    ] = False,
    style: Style = "text",
) -> None:
    """Make the runs of a study; print its table and draw its figure.

    Only results that the folder lacks are made. Unfinished runs resume from their last checkpoints.
    """
    from dpmcl.study.paper_studies import Choice
    from dpmcl.training import spec

    changes: dict[str, Any] = {}
    for text in set_ or []:
        changes = spec.merge_changes(changes, spec.parse_assignment(text))
    choice = Choice(
        streams=_names(streams),
        methods=_names(methods),
        replicas=replicas,
        tasks=tasks,
        preset=preset,
        changes=changes,
    )
    variants, folder = _variants_and_folder(name, choice)
    run_study(
        variants,
        out or folder,
        RunOptions(budget, checkpoint, fresh, on, storage),
        name=name if Path(name).suffix != ".toml" else short_name(name),
        shard=shard,
        dry_run=dry_run,
        style=style,
    )


@app.command()
def tune(
    source: Source,
    *,
    method: Methods = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="K=V,V|K=LOW..HIGH",
            help="Values or range of a setting to search; may be repeated. By default "
            "training.lr=0.0001,0.001,0.01,0.1.",
        ),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help="Trials of each method; by default one for each combination.")
    ] = None,
    tasks: Annotated[int, typer.Option(help="Number of tasks of a trial.", min=1)] = 3,
    replicas: Annotated[int, typer.Option(help="Number of seeds of a trial.", min=1)] = 2,
    set_: Assignments = None,
    out: Out = None,
    checkpoint: Checkpoint = 60.0,
    on: On = "here",
    storage: StorageAddress = None,
) -> None:
    """Search for good settings, and write a spec with them.

    Trials are scored on rows held out of the training rows. The spec is a source for `run`.
    """
    from dpmcl.study.api import Request
    from dpmcl.study.plan import axes_by_name
    from dpmcl.study.tune import RATES, Search, dimension
    from dpmcl.study.tune import tune as search_settings

    request = Request(source)
    if method:
        request.choose(method)
    space = axes_by_name(map(dimension, vary)) if vary else RATES
    search = Search(space=space, trials=trials, tasks=tasks, replicas=replicas)
    folder = out or Path("runs") / f"{short_name(source)}-tune"
    options = RunOptions(None, checkpoint, False, on, storage)
    with runner(options, "the same command") as run:
        _, lines = search_settings(request.set(set_ or []).table, search, folder, run)
    for line in lines:
        typer.echo(printable(line))
    typer.echo(printable(f"spec: {folder / 'tuned.toml'}"))


@app.command()
def merge(
    into: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run's or a study's folder.", parser=path_of)
    ],
    others: Annotated[
        list[Path],
        typer.Argument(
            metavar="OTHER...", help="Folders with results of the same runs.", parser=path_of
        ),
    ],
) -> None:
    """Add the results of other folders, as of shards, to a folder."""
    from dpmcl.study.merging import merge as merged

    for line in merged(into, others):
        typer.echo(printable(line))


def run_study(
    variants: "Sequence[Variant]",
    out: Path,
    options: RunOptions,
    *,
    name: str = "",
    shard: str | None = None,
    dry_run: bool = False,
    style: TableFormat = "text",
) -> None:
    """Make the runs of a study, print its table and draw its figure."""
    from dpmcl.results import figures
    from dpmcl.study import studies
    from dpmcl.study.budget import Budget
    from dpmcl.study.executor import processes_of
    from dpmcl.study.forecast import forecast, forecast_lines
    from dpmcl.study.shard import shard_of

    runs = studies.planned_runs(variants, out, Budget.parse(options.budget))
    selected = shard_of(shard) if shard is not None else None
    if dry_run:
        if options.fresh:
            runs = [replace(planned, folder=None) for planned in runs]
        jobs = [job for job in forecast(runs) if selected is None or next(selected)]
        processes = min(processes_of(runs[0].spec), len(jobs) or 1)
        typer.echo("\n".join(map(printable, forecast_lines(jobs, processes))))
        return
    with runner(options, "the same command") as run:
        names = [planned.name for planned in runs]
        results = dict(zip(names, run(runs, shard=selected), strict=True))
    studies.store_protocol(results, out)
    table, draw = studies.table_and_figure(name, variants, results, style)
    typer.echo(table)
    try:
        with dispensable("figure"):
            path = out / f"{name or 'sweep'}.png"
            figures.save(draw(), path)
            typer.echo(printable(f"figure: {path}"))
    finally:
        typer.echo(printable(f"folder: {out}"))


@contextmanager
def runner(options: RunOptions, command: str) -> "Iterator[Callable[..., list[Result]]]":
    """Yield `run_all` with options and progress bars. `command` is the one that resumes a run."""
    from dpmcl.study.runs import run_all

    with stoppable(options.seconds, command) as (keeping, progress):
        yield partial(
            run_all,
            progress=progress,
            keeping=keeping,
            fresh=options.fresh,
            on=options.on,
            storage=options.storage,
        )


def _variants_and_folder(name: str, choice: "Choice") -> "tuple[list[Variant], Path]":
    """Return the runs of a study, and its default folder."""
    from dpmcl.study import paper_studies, plan
    from dpmcl.study.api import Request

    if Path(name).suffix != ".toml":
        folder = f"{'zeta' if name == 'zeta' else 'paper'}-{choice.preset}"
        return paper_studies.runs(name, choice), Path("runs") / folder
    if choice.streams or choice.methods:
        raise SpecError("--streams and --methods are of the paper's studies; set them in the file.")
    table, axes = plan.read(Request(name).table)
    request = Request(table).change(choice.changes or {})
    request.update(replicas=choice.replicas, tasks=choice.tasks)
    return plan.variants(request.table, axes), Path("runs") / short_name(name)


def _names(text: str | None) -> list[str] | None:
    """Return names separated by commas."""
    return [name.strip() for name in text.split(",")] if text else None
