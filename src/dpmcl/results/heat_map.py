"""Heat maps of the error tensor: the error on each task after each task."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmcl.results import figures
from dpmcl.results.record import Record
from dpmcl.results.store import StreamInfo

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = "cividis"
"""Colour map with even steps of lightness, readable for colour-blind readers."""

_ACROSS = 3  # panels side by side
_PANEL = 2.9  # width and height in inches


@figures.drawing()
def heat_maps(records: Mapping[str, Record], stream: StreamInfo) -> "Figure":
    """Return a figure with a heat map for each method: mean errors over seeds, on a common scale.

    Args:
        records: Results by method, at least one.
        stream: Description of the stream.

    Raises:
        DpmclError: matplotlib is not installed.
    """
    from matplotlib.colors import LogNorm, Normalize

    errors = {name: record.test.after for name, record in records.items()}
    means = {
        name: figures.mean_and_error(np.where(np.isfinite(after), after, np.nan))[0]
        for name, after in errors.items()
    }
    known = np.concatenate([values[~np.isnan(values)] for values in means.values()])
    norm: Any = Normalize(0, 1)
    if stream.kind == "regression":
        positive = known[known > 0]
        low, high = (positive.min(), positive.max()) if len(positive) else (0.1, 1.0)
        norm = LogNorm(low, high if high > low else 10 * low, clip=True)  # 0 as the lowest
    figure, axes = panels(list(means))
    columns = axes.shape[1]
    image: Any = None
    for ax, values in zip(axes.flat, means.values(), strict=False):
        image = ax.imshow(values, cmap=COLOURS, norm=norm, aspect="auto", interpolation="nearest")
        ax.set_facecolor("#ececec")
        _label_tasks(ax, stream)
    for ax in axes[:, 0]:
        ax.set_ylabel("after task")
    for ax in axes.flat[max(0, len(means) - columns) : len(means)]:
        ax.set_xlabel("error on task")
    figure.colorbar(
        image, ax=axes, label=f"{figures.ERROR[stream.kind]}, mean over seeds", shrink=0.9
    )
    return figure


def panels(names: Sequence[str]) -> "tuple[Figure, Any]":
    """Return an empty figure with a titled panel for each name, and its axes (lines, columns).

    Args:
        names: Titles of the panels.
    """
    columns = min(len(names), _ACROSS)
    lines = math.ceil(len(names) / columns)
    figure = figures.new_figure(_PANEL * columns + 0.9, _PANEL * lines + 0.3)
    axes: Any = figure.subplots(lines, columns, squeeze=False)
    for ax, name in zip(axes.flat, names, strict=False):
        ax.set_title(figures.shortened(name, 40), fontsize=10, **figures.PLAIN)
    for ax in axes.flat[len(names) :]:
        ax.set_visible(False)
    return figure, axes


def name_ticks(ax: Any, names: Sequence[str]) -> bool:
    """Name the ticks of both axes if there are few and short names, and return whether it did.

    Args:
        ax: Axes of a heat map.
        names: Name of each line and column.
    """
    if len(names) > figures.NAMED or max(map(len, names)) > 2:
        return False
    ax.set_xticks(range(len(names)), names, fontsize=8, **figures.PLAIN)
    ax.set_yticks(range(len(names)), names, fontsize=8, **figures.PLAIN)
    return True


def _label_tasks(ax: Any, stream: StreamInfo) -> None:
    """Label tasks by name if there are few and short names, by number from 1 otherwise."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    if name_ticks(ax, stream.tasks):
        return
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        axis.set_major_formatter(FuncFormatter(lambda position, _: f"{position + 1:g}"))
