"""Figures of the monitor's readings: the terms of equation (3), and broken conditions.

A figure has a column for each method and a row for each quantity, with the tasks from left to
right. The legend, at the right, names each line and explains what to look for.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dpmcl.exceptions import DpmclError
from dpmcl.results import figures
from dpmcl.results.store import StreamInfo
from dpmcl.theory.readings import Readings, Watched
from dpmcl.theory.stability import CONDITIONS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DECADES = 3  # of a logarithmic scale that is linear near 0


class _Panel(NamedTuple):
    """Panel of one quantity against tasks.

    Attributes:
        name: Label of the vertical axis.
        hint: Title of the legend, which explains what to look for.
        lines: Name of the reading that each line shows, by the label of the line.
        log: Whether the scale is logarithmic and shows positive values only; a note counts others.
        level: Value that the lines are compared with.
    """

    name: str
    hint: str
    lines: Mapping[str, str]
    log: bool = False
    level: float = 0.0


_PANELS: Mapping[str, tuple[_Panel, ...]] = {
    "terms": (
        _Panel(
            "costs",
            "First and second term: the costs\n(in units of training.cost)",
            {"$J_N$, on the new task": "J_N", "$J_P$, on all earlier tasks": "J_P"},
        ),
        _Panel(
            r"$V_\theta^\top \Delta\theta$",
            "Third term: the update;\nabove 0, it lowers the cost",
            {
                r"proof: $-J\ J_\theta^\top \Delta\theta$ (cost squared)": "third_proof",
                r"difference: $J_{PN} - J_{PN}(\theta_B)$ (cost)": "third_difference",
            },
        ),
        _Panel(
            r"$V_x^\top \Delta x$",
            "Fourth term: the change of the inputs;\nabove 0, it lowers the cost",
            {
                r"proof: $-J\ J_x^\top \Delta x$ (cost squared)": "fourth_proof",
                r"difference: $J_N(x) - J_N(x + \Delta x)$ (cost)": "fourth_difference",
            },
        ),
    ),
    "stability": (
        _Panel("$J$", r"cost: at most $\beta$", {"$J = J_N + J_P$": "J"}),
        _Panel(
            "reach",
            "inputs: below 1",
            {r"$\|J_x\|\ \|\Delta x\|$, and of moving targets": "reach"},
            level=1.0,
        ),
        _Panel(
            r"step $\alpha$",
            "The step taken, and the theorem's",
            {
                r"taken: $-J_\theta^\top \Delta\theta\ /\ \|J_\theta\|^2$": "alpha",
                "the theorem's numerator, equation (4)'s denominator": "alpha_theorem",
            },
            log=True,
        ),
        _Panel(
            "$dV/dt$",
            "rate: at most 0",
            {
                "as printed, (A.2.7)": "dV_dt",
                r"with $\Delta\theta = \alpha V_\theta$ put in": "dV_dt_substituted",
            },
        ),
    ),
}


@figures.drawing()
def draw(readings: Mapping[str, Readings], stream: StreamInfo, what: Watched) -> "Figure":
    """Return a figure of readings: means over replicas, and bands of one standard error.

    Args:
        readings: Readings by method.
        stream: Description of the stream.
        what: "terms" shows the costs and both estimates of the third and the fourth term.
            "stability" shows the quantities that Theorem 1 bounds and, below them, the share of
            replicas in which each condition is broken.

    Raises:
        DpmclError: There are no readings, or matplotlib is not installed.
    """
    readings = {name: values for name, values in readings.items() if values.taken.any()}
    if not readings:
        raise DpmclError(
            f"Nothing was watched, so there is nothing to draw: run with --watch {what} into a new "
            "folder (--out)."
        )
    panels = _PANELS[what]
    rows = len(panels) + (what == "stability")
    figure = figures.new_figure(4.5 * len(readings) + 3.2, 1.5 * rows + 0.8)
    grid: Any = figure.subplots(rows, len(readings), squeeze=False, sharex=True, sharey="row")
    for column, (name, values) in zip(grid.T, readings.items(), strict=True):
        column[0].set_title(
            figures.shortened(name, 30), fontsize=10, fontweight="bold", **figures.PLAIN
        )
        for ax, panel in zip(column, panels, strict=False):
            _draw_lines(ax, panel, values)
        if what == "stability":
            _draw_conditions(column[-1], values)
        for ax in column:
            ax.vlines(np.arange(1, len(stream.tasks)), 0, 1, color="#999999", linewidth=0.4,
                      transform=ax.get_xaxis_transform())  # fmt: skip
        figures.name_tasks(column[-1], stream, first=0.5)
        column[-1].set_xlabel("task")
        column[-1].set_xlim(0, len(stream.tasks))
    for row, panel in zip(grid, panels, strict=False):
        _set_scale(row, panel)
    figure.align_ylabels(grid[:, 0])
    question = "which term of equation (3) acts?" if what == "terms" else "does Theorem 1 apply?"
    title = (
        f"{figures.shortened(stream.name, 40)}: {question} ({_counts(readings, len(stream.tasks))})"
    )
    figure.suptitle(title, fontsize=11, **figures.PLAIN)
    return figure


def _times(readings: Readings) -> np.ndarray:
    """Return the time of each reading, in tasks; the readings of a task are evenly spaced."""
    task = np.array([position[0] for position in readings.positions])
    first, count = np.searchsorted(task, task), np.bincount(task)[task]
    times: np.ndarray = task + (np.arange(len(task)) - first) / count
    return times


def _draw_lines(ax: Any, panel: _Panel, readings: Readings) -> None:
    """Draw a panel of one method; quantities without readings are left out."""
    x, shown = _times(readings), np.stack([readings[name] for name in panel.lines.values()])
    if panel.log and (hidden := int((shown <= 0).sum())):
        note = f"{hidden} of {int((~np.isnan(shown)).sum())} readings, at most 0, are not shown"
        ax.text(0.5, 0.98, note, fontsize=6.5, color="#57606a", ha="center", va="top",
                transform=ax.transAxes)  # fmt: skip
    for (label, name), colour, dashes in zip(
        panel.lines.items(), figures.COLOURS, figures.DASHES, strict=False
    ):
        values = readings[name]
        middle, error = figures.mean_and_error(
            np.where(values > 0, values, np.nan) if panel.log else values
        )
        if np.isnan(middle).all():
            continue
        options = {"color": colour, "linestyle": dashes, "linewidth": 1.2, "label": label}
        figures.line_and_band(ax, x, middle, error, **options)


def _set_scale(row: Any, panel: _Panel) -> None:
    """Set a common scale for the panels of all methods, and add a legend to the last one."""
    lines = {line.get_label(): line for ax in row for line in ax.get_lines()}
    drawn = [line.get_ydata() for ax in row for line in ax.get_lines()]
    heights = np.concatenate([[panel.level], *drawn])
    top = math.log10(np.nanmax(np.abs(heights)) or 1.0)
    scale: dict[str, Any] = {"value": "log"}
    if not panel.log:
        threshold = 10.0 ** (math.floor(top) - _DECADES)
        scale = {"value": "symlog", "linthresh": threshold, "linscale": 0.5}
    for ax in row:
        ax.set_yscale(**scale)
        ax.yaxis.get_major_locator().set_params(numticks=6)
        ax.tick_params(labelsize=7)
        figures.set_frame(ax, grid="y")
        if not panel.log:
            ax.axhline(panel.level, color="black", linewidth=0.8, zorder=1)
            if np.nanmin(heights) >= 0:
                ax.set_ylim(bottom=0)
    row[0].set_ylabel(panel.name, fontsize=9)
    row[-1].legend(lines.values(), lines, title=panel.hint, loc="upper left",
                   bbox_to_anchor=(1.01, 1.05), frameon=False, fontsize=7.5, title_fontsize=8,
                   alignment="left")  # fmt: skip


def _draw_conditions(ax: Any, readings: Readings) -> None:
    """Draw the share of replicas in which each condition is broken, in a row for each."""
    taken = np.maximum(readings.taken.sum(0), 1)
    shares = np.stack([broken.sum(0) for broken in readings.broken.values()]) / taken
    edges = np.append(_times(readings), readings.positions[-1][0] + 1)
    mesh = ax.pcolormesh(edges, np.arange(len(CONDITIONS) + 1), shares, cmap="Reds", vmin=0,
                         vmax=1)  # fmt: skip
    ax.set_ylim(len(CONDITIONS), 0)
    ax.set_yticks(np.arange(len(CONDITIONS)) + 0.5, list(CONDITIONS), fontsize=7)
    if ax.get_subplotspec().is_last_col():
        bar = ax.inset_axes([1.03, 0.1, 0.03, 0.8])
        ax.figure.colorbar(mesh, cax=bar, label="broken in this\nshare of replicas")


def _counts(readings: Mapping[str, Readings], tasks: int) -> str:
    """Return the numbers of replicas and of those frozen before the last task, as text."""
    counts = [len(values.seeds) for values in readings.values()]
    lost = 0
    for values in readings.values():
        in_last_task = [position[0] == tasks - 1 for position in values.positions]
        lost += int((~values.taken[:, in_last_task].any(1)).sum())
    frozen = f"{lost} of all {sum(counts)} frozen on the way" if lost else ""
    return figures.replicas_text(counts, frozen)
