"""The command `run`."""

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    Tasks,
    app,
    short_name,
)
from dpmcl.cli.study import run_study, runner
from dpmcl.cli.terminal import dispensable
from dpmcl.core.choices import DeviceName, EngineName, FigureContent, OnDivergence
from dpmcl.exceptions import printable

if TYPE_CHECKING:
    from dpmcl.training.spec import Spec


@app.command()
def run(
    source: Source,
    *,
    method: Methods = None,
    replicas: Replicas = None,
    seed: Annotated[int | None, typer.Option(metavar="FIRST", help="The first seed.")] = None,
    tasks: Tasks = None,
    set_: Assignments = None,
    out: Out = None,
    device: Annotated[
        DeviceName | None, typer.Option(help="Device for training; auto is a GPU if there is one.")
    ] = None,
    engine: Annotated[
        EngineName | None,
        typer.Option(help="Train replicas together (batched) or one by one (looped)."),
    ] = None,
    on_divergence: Annotated[
        OnDivergence | None,
        typer.Option(help="If a replica is no longer finite, freeze it or stop the run."),
    ] = None,
    watch: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT,...", help="Readings of the theory to record: terms, stability."
        ),
    ] = None,
    checkpoint: Checkpoint = 60.0,
    on: On = "here",
    storage: StorageAddress = None,
    fresh: Fresh = False,
    sweep: Annotated[
        list[str] | None,
        typer.Option(metavar="K=V,V", help="One run for each value; may be repeated."),
    ] = None,
    budget: BudgetText = None,
) -> None:
    """Train methods on a stream; print the table and draw the figure.

    Only results that the folder lacks are made. An unfinished run resumes from its last checkpoint.
    """
    from dpmcl.study.api import Request
    from dpmcl.study.plan import axes_by_name, axis, variants

    request = Request(source)
    if method:
        request.choose(method)
    request.set(set_ or []).update(replicas=replicas, seed=seed, tasks=tasks)
    request.update(device=device, engine=engine, on_divergence=on_divergence)
    request.update(watch=watch.split(",") if watch is not None else None)
    options = RunOptions(budget, checkpoint, fresh, on, storage)
    if sweep:
        folder = out or Path("runs") / f"{short_name(source)}-sweep"
        axes = axes_by_name(map(axis, sweep))
        run_study(variants(request.table, axes), folder, options)
    else:
        _run_one(
            request.spec(), out or request.folder or Path("runs") / short_name(source), options
        )


def _run_one(spec: "Spec", folder: Path, options: RunOptions) -> None:
    """Make a run, print its table and draw its figure."""
    from dpmcl.study.budget import Budget, limit
    from dpmcl.study.runs import Planned

    spec, budget = limit(spec, Budget.parse(options.budget))
    planned = Planned(spec, folder, budget=budget)
    with runner(options, _resume_command(folder)) as make:
        (result,) = make([planned])
    typer.echo(result.table())
    try:
        with dispensable("figure"):
            figures: list[FigureContent] = ["errors"]
            if result.spec.get("evaluation", {}).get("confusion"):
                figures.append("confusion")
            for what in figures:
                path = folder / "figures" / f"{what}.png"
                result.plot(path, what=what)
                typer.echo(printable(f"figure: {path}"))
    finally:
        typer.echo(printable(f"folder: {folder}"))


def _resume_command(folder: Path) -> str:
    """Return the command that resumes a run folder. "./" tells a bare name from a preset's."""
    path = str(folder) if len(folder.parts) > 1 else os.path.join(".", folder)  # noqa: PTH118
    return f"`dpmcl run {printable(shlex.quote(path))}`"
