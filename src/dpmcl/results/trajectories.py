"""Figures like the paper's Figure 2: errors against tasks, with a column for each stream."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dpmcl.results import figures
from dpmcl.results.comparison import MEASURES
from dpmcl.results.store import Stored

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMOOTH = 2.0
"""Standard deviation, in tasks, of the Gaussian filter in the paper's figures."""

_COLUMN, _LINE = 2.6, 2.3  # inches


@figures.drawing()
def trajectories(runs: Mapping[str, Stored]) -> "Figure":
    """Return a figure of CME (above) and NTE (below) against tasks, with a column for each run.

    Lines are means over seeds, bands are one standard error on either side. Both are smoothed over
    tasks.

    Args:
        runs: Contents of run folders, by name, each with results of at least one method.

    Raises:
        DpmclError: matplotlib or SciPy is not installed.
    """
    results = list(runs.values())
    methods = dict.fromkeys(name for run in results for name in run.records)
    style = figures.styles(methods)
    columns = max(len(results), 2)  # the title is wider than one
    figure = figures.new_figure(_COLUMN * columns + 0.6, 2 * _LINE + 0.7)
    axes: Any = figure.subplots(2, len(results), squeeze=False, sharex="col")
    lines: dict[str, Any] = {}
    for column, run in zip(axes.T, results, strict=True):
        for ax, measure in zip(column, MEASURES, strict=True):
            for name, record in run.records.items():
                lines[name] = figures.curve(ax, MEASURES[measure], record.test, style=style[name],
                                    smooth=SMOOTH, label=name)  # fmt: skip
            figures.set_frame(ax)
            if run.stream.kind == "regression":
                figures.set_log_scale([ax])
            if run.stream.kind != results[0].stream.kind:
                ax.set_ylabel(figures.ERROR[run.stream.kind], fontsize=9)
        column[0].set_title(figures.shortened(run.stream.name, 20), fontsize=11, **figures.PLAIN)
        column[1].set_xlabel("tasks seen")
    for ax, measure in zip(axes[:, 0], MEASURES, strict=True):
        ax.set_ylabel(f"{measure} ({figures.ERROR[results[0].stream.kind]})")
    figure.align_ylabels(axes[:, 0])
    options = {"loc": "outside lower center", "ncols": min(len(lines), columns + 2)}
    figures.legend(figure, list(lines.values()), list(lines), fontsize=9, **options)
    counts = {len(record.test.seeds) for run in results for record in run.records.values()}
    title = f"{figures.replicas_text(counts)}, smoothed over {SMOOTH:g} tasks"
    figure.suptitle(title, fontsize=10)
    return figure
