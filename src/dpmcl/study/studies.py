"""Plan the runs of a study, and show their results."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpmcl.core.atomic import write_text
from dpmcl.core.choices import TableFormat
from dpmcl.exceptions import DpmclError, FolderError
from dpmcl.results import axis_figure, comparison, paper, store, trajectories
from dpmcl.results.axis_figure import Points
from dpmcl.results.comparison import MEASURES, setting_text
from dpmcl.results.store import Stored
from dpmcl.results.table import Layout, render, table_text
from dpmcl.study.budget import Budget, limit
from dpmcl.study.plan import Variant, owner_of
from dpmcl.study.result import Result
from dpmcl.study.runs import Planned
from dpmcl.study.side_by_side import SideBySide
from dpmcl.training.spec import Spec, nested_entry

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LOG = logging.getLogger("dpmcl")


def planned_runs(
    variants: Sequence[Variant], out: Path, budget: Budget | None = None
) -> list[Planned]:
    """Return the runs of a study, each with a folder inside the study's.

    Args:
        variants: The runs of the study.
        out: Folder of the study.
        budget: Budget of each method; None for the updates and memory in the specs.

    Raises:
        SpecError: A spec breaks a rule, or the budget does not allow one of its methods an update.
        FolderError: The folder is that of a single run.
    """
    if store.is_run(out):
        raise FolderError(
            f"{out} holds a run, and a study needs a folder of its own; give another."
        )
    runs = []
    for variant in variants:
        spec, run_budget = limit(Spec.parse(variant.table), budget, variant.name)
        runs.append(Planned(spec, out / variant.name, variant.name, run_budget))
    return runs


def store_protocol(runs: Mapping[str, Stored], out: Path) -> None:
    """Write the protocols of a study's runs into one file, protocol.json.

    Args:
        runs: Results by name of the run.
        out: Folder of the study.
    """
    protocols = {name: run.protocol.to_table() for name, run in runs.items() if run.protocol}
    write_text(out / "protocol.json", json.dumps(protocols, indent=1) + "\n")


def table_and_figure(
    name: str, variants: Sequence[Variant], runs: Mapping[str, Result], style: TableFormat
) -> "tuple[str, Callable[[], Figure]]":
    """Return the table of a study, and a function that draws its figure.

    Args:
        name: Name of the study.
        variants: Its runs.
        runs: Results by name of the run.
        style: Format of the table.

    Raises:
        DpmclError: There are no results.
    """
    runs = {run: result for run, result in runs.items() if result.records}
    if not runs:
        raise DpmclError("The study has no results yet.")
    if name not in ("table1", "figure2"):
        return _table(runs, style), lambda: against_axes(variants, runs)
    printed = {run: result for run, result in runs.items() if run in paper.STREAMS}
    others = {
        run: result
        for run, result in runs.items()
        if run not in paper.STREAMS or not result.records.keys() <= set(paper.METHODS)
    }
    tables = [_table1(printed, style)] if printed else []
    if printed and others and style in ("json", "csv"):
        _LOG.warning(
            f"{style} holds one table, the paper's; `dpmcl table` has that of other streams and "
            "methods."
        )
    elif others:
        tables.append(_table(others, style))
    return "\n".join(tables), lambda: trajectories.trajectories(runs)


def _table1(runs: Mapping[str, Stored], style: TableFormat) -> str:
    """Return the paper's Table 1 beside ours, cell by cell, of results by stream."""
    entries = comparison.entries(runs)
    text = table_text(paper.rows(entries), paper.COLUMNS, style, words=3)
    return "\n".join([text, *paper.notes(entries)]) if style == "text" else text


def _table(runs: Mapping[str, Result], style: TableFormat) -> str:
    """Return the table of runs side by side."""
    rows, layout = SideBySide(runs).rows(Result.rows, Layout())
    return render(rows, style, layout)


def against_axes(variants: Sequence[Variant], runs: Mapping[str, Stored]) -> "Figure":
    """Return a figure of CME and NTE after the last task against each axis.

    A panel shows the runs that vary along its axis, with one line for each method and combination
    of values of the other axes. Lines with a single point are left out.

    Args:
        variants: The runs of the study.
        runs: Results by name of the run.

    Raises:
        DpmclError: Nothing was varied, or there are no results.
    """
    axes = dict.fromkeys(key for variant in variants for key in variant.point)
    panels = [
        (measure, axis, points)
        for axis in axes
        for measure, points in _points(axis, variants, runs).items()
    ]
    if not panels:
        raise DpmclError("Nothing was varied and run yet, so there is nothing to draw.")
    return axis_figure.draw(panels)


def _points(
    axis: str, variants: Sequence[Variant], runs: Mapping[str, Stored]
) -> dict[str, dict[str, Points]]:
    """Return the points of an axis by measure and line; {} if no line has two points."""
    out: dict[str, dict[str, dict[object, object]]] = {name: {} for name in MEASURES}
    for variant in variants:
        if axis not in variant.point or variant.name not in runs:
            continue
        other_axes = {k: v for k, v in variant.point.items() if k != axis}
        values = ", ".join(
            f"{k.rpartition('.')[2]} {setting_text(v)}" for k, v in other_axes.items()
        )
        stored = runs[variant.name]
        for method, record in stored.records.items():
            label = f"{method} ({values})" if values else method
            x = _value(axis, variant.point[axis], stored.spec["methods"].get(method, {}))
            x = x if isinstance(x, int | float | str) else setting_text(x)
            for name, measure in MEASURES.items():
                out[name].setdefault(label, {})[x] = measure(record.test)
    drawn = {
        name: {label: points for label, points in lines.items() if len(points) > 1}
        for name, lines in out.items()
    }
    return drawn if any(drawn.values()) else {}  # type: ignore[return-value]


def _value(axis: str, value: Any, settings: Mapping[str, Any]) -> Any:
    """Return the value of an axis that a method was run with.

    settings: The method's own settings in the spec of its run. A budget sets some of them.
    """
    entry, owner = nested_entry(axis, None), owner_of(axis)
    table = entry["methods"][owner] if owner else entry.get("training", {})
    for name, inner in table.items():
        if inner is None and name in settings:  # not an entry of an optimiser's table, say
            return settings[name]
    return value
