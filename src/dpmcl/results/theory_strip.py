"""Strip below a figure of stability: which conditions broke, where, in how many replicas."""

from typing import Any

import numpy as np

from dpmcl.theory.readings import Readings
from dpmcl.theory.stability import CONDITIONS

_COLOURS, _NEVER = "Reds", "#ececec"
_LIGHT = -0.3  # share that would be white; all real ones are darker


def draw(ax: Any, readings: Readings, x: np.ndarray, tasks: int) -> None:
    """Draw a row for each condition: the share of replicas in which it is broken, at each reading.

    Args:
        ax: Axes of matplotlib.
        readings: Readings of one method.
        x: Where each reading was taken, in tasks.
        tasks: Tasks of the stream.
    """
    left = readings.taken.sum(0)
    shares = np.stack([where.sum(0) for where in readings.broken.values()]) / np.maximum(left, 1)
    edges = _edges(x, tasks)
    end = edges[np.flatnonzero(left)[-1] + 1]
    # Only what is broken has a cell, and cells have edges, or those of many tasks were too thin.
    cells = np.ma.masked_equal(shares, 0.0)
    ax.pcolormesh(edges, np.arange(len(CONDITIONS) + 1), cells, cmap=_COLOURS, vmin=_LIGHT, vmax=1,
                  edgecolors="face", linewidth=0.5)  # fmt: skip
    for never in np.flatnonzero(~shares.any(1)):
        ax.axhspan(never, never + 1, color=_NEVER, linewidth=0, zorder=0)
    for row, share in enumerate(shares):
        if share.any():
            first = np.flatnonzero(share)[0]
            ax.plot(x[first], row + 0.5, ">", color="black", markersize=4, label="_first")
    if end < tasks:
        ax.axvspan(end, tasks, facecolor="none", edgecolor="#999999", hatch="////",
                   linewidth=0, label="no replica left")  # fmt: skip
    ax.hlines(np.arange(1, len(CONDITIONS)), 0, 1, transform=ax.get_yaxis_transform(),
              color="white", linewidth=1.5)  # fmt: skip
    ax.set_ylim(len(CONDITIONS), 0)
    ax.set_yticks(np.arange(len(CONDITIONS)) + 0.5, list(CONDITIONS))
    ax.tick_params(axis="y", length=0)


def handles(strips: Any) -> list[Any]:
    """Return the entries of a legend for the colours and signs of strips.

    Args:
        strips: Axes with strips.
    """
    from matplotlib import colormaps
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    reds = colormaps[_COLOURS]
    few, half, all_ = (reds((share - _LIGHT) / (1 - _LIGHT)) for share in (0.1, 0.5, 1.0))
    out: list[Any] = [
        Patch(facecolor=_NEVER, label="never broken"),
        Patch(facecolor="white", edgecolor="#999999", linewidth=0.5, label="holds in all replicas"),
        Patch(facecolor=few, label="broken in a few"),
        Patch(facecolor=half, label="broken in half of them"),
        Patch(facecolor=all_, label="broken in all"),
        Line2D([], [], linestyle="", marker=">", color="black", markersize=4, label="first broken"),
    ]
    if any(patch.get_hatch() for ax in strips for patch in ax.patches):
        out.append(Patch(facecolor="white", edgecolor="#999999", hatch="////", linewidth=0,
                         label="no replica left"))  # fmt: skip
    return out


def _edges(x: np.ndarray, tasks: int) -> np.ndarray:
    """Return the borders between readings: half way, but never across tasks."""
    task = np.floor(x)
    between = np.where(task[1:] > task[:-1], task[1:], (x[1:] + x[:-1]) / 2)
    edges = np.concatenate([task[:1], between])
    end = task[-1] + 1
    if end < tasks and len(x) > 1:  # ended early, perhaps within the task
        end = min(end, x[-1] + np.median(np.diff(x)) / 2)
    return np.append(edges, end)
