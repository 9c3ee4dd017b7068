"""Figures of what was watched: the terms of equation (3), and where a condition broke.

A column for each method, tasks from left to right, one quantity below the other; beside the last
column, what each line is and what to look for.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from dpmcl.exceptions import DpmclError, SpecError
from dpmcl.results import theory_strip
from dpmcl.results.figures import (
    COLOURS,
    DASHES,
    MARKERS,
    NAMED,
    PLAIN,
    drawing,
    mean_and_error,
    replicas,
    shortened,
)
from dpmcl.results.store import StreamInfo
from dpmcl.results.theory_panels import Panel, stability, tasks_done, terms
from dpmcl.theory.readings import Readings, Watched

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ACROSS = 3  # methods beside each other
_MARKED = 40  # readings that still fit on a line with a marker each
_MARK = "#a50f15"
_LARGEST = 1e200  # largest number that is drawn: the length of an axis must be finite


@drawing()
def draw(readings: Mapping[str, Readings], stream: StreamInfo, what: Watched) -> "Figure":
    """Return a figure of readings: means over replicas, and bands of one standard error.

    Args:
        readings: Readings by method.
        stream: Names of the stream.
        what: "terms" shows the costs and both estimates of the third and the fourth term;
            "stability" the quantities that Theorem 1 bounds, and below them the share of replicas
            in which each condition is broken.

    Raises:
        DpmclError: Nothing was watched, or matplotlib is not installed.
        SpecError: There is no such figure.
    """
    if what not in get_args(Watched):
        raise SpecError(f"A figure shows errors, {' or '.join(get_args(Watched))}, got '{what}'.")
    readings = {name: one for name, one in readings.items() if one.taken.any()}
    if not readings:
        raise DpmclError(
            f"Nothing was watched, so there is nothing to draw: run with --watch {what} into a new "
            "folder (--out)."
        )
    from matplotlib.figure import Figure

    targets = stream.kind == "regression"
    if what == "terms":
        panels = terms("mean squared error" if targets else "cross-entropy, nats")
    else:
        panels = stability(readings, targets)
    heights = [1.35] * len(panels) + ([1.5] if what == "stability" else [])
    blocks = math.ceil(len(readings) / _ACROSS)
    across = math.ceil(len(readings) / blocks)
    each = max(3.4 if len(stream.tasks) <= NAMED else 5.0, 6.0 / across)
    size = (each * across + 3.2, (sum(heights) + 0.8) * blocks + 0.4)
    figure: Figure = Figure(figsize=size, layout="constrained")
    columns = _columns(figure, heights, across, len(readings))
    drawn: list[list[np.ndarray]] = [[] for _ in panels]
    for column, (name, one) in zip(columns, readings.items(), strict=True):
        column[0].set_title(shortened(name, 30), fontsize=10, fontweight="bold", **PLAIN)
        x = tasks_done(one, len(stream.tasks))
        for ax, panel, values in zip(column, panels, drawn, strict=False):
            values += _lines(ax, panel, one, x)
        if what == "stability":
            theory_strip.draw(column[-1], one, x, len(stream.tasks))
        _tasks(column, stream)
    for scale in dict.fromkeys(panel.scale or panel.name for panel in panels):
        alike = [k for k, panel in enumerate(panels) if scale in (panel.scale, panel.name)]
        values = [v for k in alike for v in drawn[k]]
        _scale(columns[:, alike].ravel(), panels[alike[0]], np.concatenate([np.zeros(0), *values]))
    for start in range(0, len(readings), across):
        part = columns[start : start + across]
        for ax in part[1:].flat:
            ax.tick_params(labelleft=False)
        for k, panel in enumerate(panels):
            part[0, k].set_ylabel(panel.name, fontsize=9)
            _lines_legend(part[-1, k], panel, part[:, k])
        if what == "stability":
            part[0, -1].set_ylabel("broken", fontsize=9)
            look = "Which condition broke, and where"
            _legend(part[-1, -1], look, theory_strip.handles(part[:, -1]))
    figure.align_ylabels(columns[::across].ravel())
    title = f"{shortened(stream.name, 40)}: {_title(readings, stream, what)}"
    figure.suptitle(title, fontsize=11, **PLAIN)
    return figure


def _columns(figure: "Figure", heights: list[float], across: int, methods: int) -> Any:
    """Return axes (methods, panels): `across` methods beside each other, further ones below."""
    blocks = math.ceil(methods / across)
    grid: Any = figure.subplots(
        blocks * len(heights), across, squeeze=False, sharex=True, height_ratios=heights * blocks
    )
    columns = grid.reshape(blocks, len(heights), across).transpose(0, 2, 1)
    columns = columns.reshape(-1, len(heights))
    for ax in columns[methods:].flat:
        ax.remove()
    return columns[:methods]


def _lines(ax: Any, panel: Panel, one: Readings, x: np.ndarray) -> list[np.ndarray]:
    """Draw a panel of one method, and return the values drawn, bands included."""
    drawn = []
    few = len(x) <= _MARKED
    styles = zip(panel.lines.items(), COLOURS, MARKERS, DASHES, strict=False)
    for (label, values), colour, marker, dashes in styles:
        middle, error = mean_and_error(values(one))
        if np.isnan(middle).all():
            continue
        with np.errstate(invalid="ignore", over="ignore"):  # infinite costs
            low, high = middle - error, middle + error
        middle, low, high = (
            np.where(np.isfinite(v), v.clip(-_LARGEST, _LARGEST), np.nan)
            for v in (middle, low, high)
        )
        if panel.decades is None:
            low = np.maximum(low, middle / 10)
        ax.plot(x, middle, linestyle=dashes, color=colour, marker=marker if few else "",
                markersize=3, linewidth=1.3 if few else 1.0, label=label)  # fmt: skip
        ax.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        drawn += [middle, low, high]
    marks = zip(panel.marks.items(), "x|", (0.05, 0.16), strict=False)
    for (label, where), marker, height in marks:
        at = x[where(one).any(0)]
        if len(at):
            ax.plot(at, np.full(len(at), height), marker, color=_MARK, markersize=4, label=label,
                    transform=ax.get_xaxis_transform())  # fmt: skip
    if panel.level is not None:
        ax.axhline(panel.level, color="black", linewidth=0.8, zorder=1)
    return drawn


def _tasks(column: Any, stream: StreamInfo) -> None:
    """Draw the axis that panels share: borders between tasks, names or numbers at the bottom."""
    from matplotlib.ticker import MaxNLocator, NullLocator

    tasks = len(stream.tasks)
    fine = 0.4 if tasks <= NAMED else 0.25
    for ax in column:
        ax.vlines(np.arange(1, tasks), 0, 1, transform=ax.get_xaxis_transform(), color="#999999",
                  linewidth=fine, zorder=0.5, label="_borders")  # fmt: skip
        ax.set_xlim(0, tasks)
        ax.tick_params(labelsize=7)
        ax.tick_params(axis="x", labelbottom=False)
        ax.spines[["top", "right"]].set_visible(False)
    lowest = column[-1]
    lowest.tick_params(axis="x", labelbottom=True)
    if tasks <= NAMED:
        names = [shortened(name, 14) for name in stream.tasks]
        turned = {"rotation": 30, "ha": "right"} if max(map(len, names)) > 3 else {}
        lowest.set_xticks(np.arange(tasks) + 0.5, names, **turned, **PLAIN)
        lowest.set_xlabel("task", fontsize=8)
        for ax in column:
            ax.tick_params(axis="x", length=0)
    else:
        lowest.xaxis.set_major_locator(MaxNLocator(integer=True))
        lowest.set_xlabel("task, from 0: each begins at its number", fontsize=8)
    lowest.xaxis.set_minor_locator(NullLocator())


def _scale(axes: Any, panel: Panel, values: np.ndarray) -> None:
    """Give axes one scale, by all the values drawn on them, bands included."""
    from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

    for i, ax in enumerate(axes):
        if i:
            ax.sharey(axes[0])
        ax.grid(axis="y", alpha=0.25, linewidth=0.5)
    values = np.append(values[np.isfinite(values)], panel.level or 0.0)
    first = axes[0]
    if panel.decades is None:
        values = values[values > 0]
        first.set_yscale("log")
        if len(values):
            first.set_ylim(values.min() / (100 if panel.marks else 3), values.max() * 3)
        first.yaxis.set_major_locator(LogLocator(numticks=6))
    else:
        top = math.floor(math.log10(np.abs(values).max() or 1.0))
        near = 10.0 ** (top - panel.decades)
        first.set_yscale("symlog", linthresh=near, linscale=0.5)
        low, high = values.min(), values.max()
        first.set_ylim(min(2 * low, -near) if low < 0 else -near / 3, max(2 * high, near))
        powers = 10.0 ** np.arange(top, top - panel.decades, -2)
        first.yaxis.set_major_locator(FixedLocator([*-powers, 0, *powers[::-1]]))
    first.yaxis.set_minor_locator(NullLocator())


def _lines_legend(ax: Any, panel: Panel, row: Any) -> None:
    """Draw the legend of a row's lines and marks, beside its last panel."""
    named = {line.get_label(): line for each in row for line in each.get_lines()}
    _legend(
        ax, panel.look, [named[label] for label in (*panel.lines, *panel.marks) if label in named]
    )


def _legend(ax: Any, title: str, handles: list[Any]) -> None:
    ax.legend(handles=handles, title=title, loc="upper left", bbox_to_anchor=(1.01, 1.05),
              frameon=False, fontsize=7.5, title_fontsize=8, alignment="left")  # fmt: skip


def _title(readings: Mapping[str, Readings], stream: StreamInfo, what: Watched) -> str:
    counts = [len(one.seeds) for one in readings.values()]
    lost = sum(
        len(one.seeds)
        if one.positions[-1][0] < len(stream.tasks) - 1
        else int((~one.taken[:, -1]).sum())
        for one in readings.values()
    )
    frozen = f", {lost} of them frozen on the way" if lost else ""
    band = ", band: one standard error" if max(counts) > 1 else ""
    asks = "which term of equation (3) acts?" if what == "terms" else "does Theorem 1 apply?"
    return f"{asks} ({replicas(counts)}{frozen}{band})"
