"""The command `run`."""

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpmcl.cli.options import Assignments, BudgetText, Checkpoint, Fresh, On, Tasks, app, short
from dpmcl.cli.study import run_study
from dpmcl.cli.terminal import LOG, dispensable, stoppable
from dpmcl.core.atomic import path_of
from dpmcl.core.choices import DeviceName, EngineName, OnDivergence
from dpmcl.exceptions import printable

if TYPE_CHECKING:
    from dpmcl.training.spec import Spec


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
    budget: BudgetText = None,
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
        name = f"{short(source)}-sweep"
        varied = cells(request.table, dict(map(axis, sweep)))
        run_study(
            varied,
            out or Path("runs") / name,
            budget=budget,
            seconds=checkpoint,
            fresh=fresh,
            on=on,
        )
        return
    spec = request.spec()
    folder = out or request.folder or Path("runs") / short(source)
    if budget is not None:
        spec = _budgeted(spec, budget)
    with stoppable(checkpoint, _rerun(folder)) as (keeping, progress):
        result = study.run(spec, folder, progress, keeping=keeping, fresh=fresh, on=on)
    typer.echo(result.table())
    try:
        with dispensable("figure"):
            typer.echo(printable(f"figure: {study.draw(result, folder)}"))
            if result.spec.get("evaluation", {}).get("confusion"):
                typer.echo(printable(f"figure: {study.draw(result, folder, what='confusion')}"))
    finally:
        typer.echo(printable(f"folder: {folder}"))


def _budgeted(spec: "Spec", text: str) -> "Spec":
    """Return a spec within a budget, and say what it allows."""
    from dpmcl.study.budget import Budget, within
    from dpmcl.training.job import Trainer, read

    spec, lines = within(Trainer(spec, read(spec, spec.seeds[:1])), Budget.parse(text))
    for line in lines:
        LOG.info("%s", printable(line))
    return spec


def _rerun(folder: Path) -> str:
    """Return the command that goes on with a run folder; a bare name could be a preset's."""
    shown = str(folder) if len(folder.parts) > 1 else os.path.join(".", folder)  # noqa: PTH118
    return f"`dpmcl run {printable(shlex.quote(shown))}`"
