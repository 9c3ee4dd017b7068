"""Figures of which classes were taken for which."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmcl.exceptions import DpmclError
from dpmcl.metrics._confusion import confusion
from dpmcl.results.figures import NAMED, PLAIN, drawing, shortened
from dpmcl.results.record import Record
from dpmcl.results.store import StreamInfo

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ACROSS = 3  # panels beside each other
_PANEL = 2.9  # inches


@drawing()
def confusions(records: Mapping[str, Record], stream: StreamInfo) -> "Figure":
    """Return a figure with a panel for each method: shares of each class's test rows, all seeds.

    Args:
        records: Results by method.
        stream: Names of the stream.

    Raises:
        DpmclError: No method kept predictions of classes, or matplotlib is not installed.
    """
    kept = {name: r.predictions for name, r in records.items() if r.predictions is not None}
    if not kept or stream.kind != "classification":
        raise DpmclError(
            "A confusion matrix needs predictions of classes, and this run has kept none; run into "
            "a new folder with --set evaluation.confusion=true."
        )
    from matplotlib.figure import Figure

    classes = len(stream.classes)
    columns = min(len(kept), _ACROSS)
    lines = math.ceil(len(kept) / columns)
    size = (_PANEL * columns + 0.9, _PANEL * lines + 0.3)
    figure = Figure(figsize=size, layout="constrained")
    axes: Any = figure.subplots(lines, columns, squeeze=False)
    image: Any = None
    for ax, (name, predictions) in zip(axes.flat, kept.items(), strict=False):
        shares = _shares(confusion(predictions, classes).sum(0))
        image = ax.imshow(shares, cmap="cividis", vmin=0, vmax=1, interpolation="nearest")
        ax.set_title(shortened(name, 40), fontsize=10, **PLAIN)
        ax.set_xlabel("predicted")
        ax.set_ylabel("class")
        if classes <= NAMED and max(map(len, stream.classes)) <= 2:
            ax.set_xticks(range(classes), stream.classes, fontsize=8, **PLAIN)
            ax.set_yticks(range(classes), stream.classes, fontsize=8, **PLAIN)
    for ax in axes.flat[len(kept) :]:
        ax.set_visible(False)
    figure.colorbar(image, ax=axes, label="share of the class's test rows", shrink=0.9)
    return figure


def _shares(counts: np.ndarray) -> np.ndarray:
    """Return counts as shares of their line; NaN for a class without rows."""
    total = counts.sum(1, keepdims=True)
    return np.where(total > 0, counts / np.maximum(total, 1), np.nan)
