"""Figures of metrics against a setting, like the paper's Figure 3."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmcl.results import figures
from dpmcl.results.comparison import setting_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Points = Mapping[Any, np.ndarray]
"""Values of a metric, (replicas,), by the value of the setting."""

_PANEL = (3.0, 2.7)  # inches


@figures.drawing()
def draw(panels: Sequence[tuple[str, str, Mapping[str, Points]]]) -> "Figure":
    """Draw a row of panels: means over seeds against a setting, with bars of one standard error.

    Args:
        panels: For each panel the metric, the setting, and the points of each line by name.
            Numeric values of the setting are drawn to scale, other values in order of appearance.

    Returns:
        The figure.

    Raises:
        DpmclError: matplotlib is not installed.
    """
    figure = figures.new_figure(_PANEL[0] * len(panels), _PANEL[1] + 0.4)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    names = dict.fromkeys(name for _, _, lines in panels for name in lines)
    style = figures.styles(names)
    handles: dict[str, Any] = {}
    for ax, (metric, setting, lines) in zip(axes, panels, strict=True):
        values = list(dict.fromkeys(x for points in lines.values() for x in points))
        numeric = all(isinstance(x, int | float) and not isinstance(x, bool) for x in values)
        if numeric and min(values) > 0 and max(values) >= 10 * min(values):
            ax.set_xscale("log")
        if not numeric:
            positions = range(len(values))
            ax.set_xticks(
                positions, [figures.shortened(setting_text(x), 20) for x in values], **figures.PLAIN
            )
            ax.margins(x=0.1)
        for name, points in lines.items():
            order = sorted(points) if numeric else [x for x in values if x in points]
            means, errors = zip(*(_summary(points[x]) for x in order), strict=True)
            x = order if numeric else [values.index(each) for each in order]
            colour, marker, dashes = style[name]
            handles[name] = ax.errorbar(x, means, errors, color=colour, marker=marker,
                                        linestyle=dashes, markersize=4, capsize=2)  # fmt: skip
        ax.set_xlabel(figures.shortened(setting.rpartition(".")[2], 30), **figures.PLAIN)
        ax.set_ylabel(metric, **figures.PLAIN)
        figures.set_frame(ax)
    if len(handles) > 1:
        options = {"loc": "outside lower center", "ncols": min(len(handles), 3)}
        figures.legend(figure, list(handles.values()), list(handles), fontsize=9, **options)
    values = [one for _, _, lines in panels for points in lines.values() for one in points.values()]
    title = "means" if np.isfinite(np.concatenate(values)).all() else "means of finite errors"
    counts = {len(one) for one in values}
    figure.suptitle(f"{title}, {figures.replicas_text(counts, mark='bars')}", fontsize=10)
    return figure


def _summary(values: np.ndarray) -> tuple[float, float]:
    """Return the mean and standard error of the finite values."""
    finite = np.where(np.isfinite(values), values, np.nan)
    middle, error = figures.mean_and_error(finite[:, None])
    return float(middle[0]), float(error[0])
