"""The commands for a learner's model: `learn`, `predict`, `inspect` and `export`."""

import csv
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from dpmcl.cli.options import app, file_option
from dpmcl.core.atomic import atomic, path_of
from dpmcl.exceptions import SpecError, printable

Model = Annotated[
    Path, typer.Argument(metavar="MODEL_DIR", help="Folder of the model.", parser=path_of)
]
Table = Annotated[
    str, typer.Argument(metavar="ROWS", help="A table: a .csv, .tsv or .parquet file.")
]


@app.command()
def learn(
    model: Model,
    rows: Table,
    *,
    target: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="The column to predict; needed by a new model."),
    ] = None,
    method: Annotated[str, typer.Option(help="Method of a new model; by default replay.")] = "",
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="K=V",
            help="Setting of a new model, as in updates=100; may be repeated.",
        ),
    ] = None,
) -> None:
    """Train a new model on a table, or an existing one on further rows.

    A tenth of the rows of each table, at most 50, is held out to test the model.
    """
    from dpmcl import Learner
    from dpmcl.core.lock import locked
    from dpmcl.learner import artefact
    from dpmcl.training.spec import merge_changes, parse_assignment

    with locked(model):  # until it is saved, so that no table is lost
        if (model / artefact.FILE).is_file():
            if method or set_:
                raise SpecError(
                    f"{model} is a model already; --method and --set are for a new one."
                )
            learner = Learner.load(model)
        else:
            if target is None:
                raise SpecError("A new model needs the column to predict, as in --target kind.")
            settings: dict[str, Any] = {"holdout": 0.1} | ({"method": method} if method else {})
            for text in set_ or []:
                settings = merge_changes(settings, parse_assignment(text))
            learner = Learner(**settings)
            try:
                artefact.restore(model, *artefact.describe(learner._config, None))
            except SpecError:
                raise SpecError(
                    "A model of this command must have a method, network and cost of the package, "
                    "since the commands that read it import no others; make it in Python, by "
                    "dpmcl.Learner."
                ) from None
        before = learner.score_then_learn(rows, target)
        learner._write(model)
    error = "" if before != before else f" (error before it was learned: {before:.3g})"
    typer.echo(printable(f"{learner!r}{error}"))


@app.command()
def predict(
    model: Model,
    rows: Table,
    *,
    out: Annotated[
        Path | None, file_option("CSV file to write; by default standard output.")
    ] = None,
) -> None:
    """Write predictions for the rows of a table as CSV.

    Each line has a label and the probability of every label, or the values of a regression.
    """
    from dpmcl import Learner

    if out is not None and out.resolve() == path_of(rows).resolve():
        raise SpecError(f"--out would replace the rows themselves, {rows}; name another file.")
    learner = Learner.load(model)
    form = learner._knowledge().form
    if form.kind == "classification":
        header = ["label", *(f"p({label})" for label in learner.classes_)]
        shares = learner.predict_proba(rows)
        lines = zip(learner.classes_[shares.argmax(1)], *shares.T, strict=True)
    else:
        values = learner.predict(rows)
        header = ["value"] if form.flat else [f"value {k}" for k in range(form.width)]
        lines = zip(*values.reshape(len(values), -1).T, strict=True)
    with ExitStack() as stack:
        file: Any = sys.stdout
        if out is not None:
            temporary = stack.enter_context(atomic(out))
            file = stack.enter_context(temporary.open("w", newline="", encoding="utf-8"))
        table = csv.writer(file, lineterminator="\n")
        table.writerow(header)
        table.writerows(lines)


@app.command()
def inspect(model: Model) -> None:
    """Show what a model has learned, and its errors on each chunk.

    For each chunk it shows the error when the chunk was new, and the error now.
    """
    from dpmcl import Learner

    learner = Learner.load(model)
    try:
        errors = repr(learner.report())
    except SpecError as no_rows_held_out:
        errors = str(no_rows_held_out)
    for line in (repr(learner), *errors.split("\n")):
        typer.echo(printable(line))


@app.command()
def export(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Folder of a model or a run.", parser=path_of),
    ],
    *,
    out: Annotated[Path, file_option("File to write, .onnx or .pt2.")],
    method: Annotated[
        str | None, typer.Option(help="Method of the replica, if DIR is a run.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the replica; by default the first.")
    ] = None,
) -> None:
    """Export a model or a run's replica for ONNX Runtime or PyTorch."""
    from dpmcl import Learner
    from dpmcl.learner.artefact import FILE
    from dpmcl.study.result import load

    if (folder / FILE).is_file():
        if method is not None or seed is not None:
            raise SpecError(f"{folder} is a model; --method and --seed choose among a run's.")
        learner = Learner.load(folder)
    else:
        run = load(folder)
        if method is None and len(run.records) != 1:
            names = ", ".join(run.records) or "none yet"
            raise SpecError(f"Say which method of the run, as in --method er; it has {names}.")
        learner = run.learner(next(iter(run.records)) if method is None else method, seed)
    typer.echo(printable(f"{learner.export(out)}: {learner!r}"))
