"""Figures of confusion matrices."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmcl.exceptions import DpmclError
from dpmcl.metrics._confusion import confusion
from dpmcl.results.figures import drawing
from dpmcl.results.heat_map import COLOURS, name_ticks, panels
from dpmcl.results.record import Record, select_seeds
from dpmcl.results.store import StreamInfo

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@drawing()
def confusions(records: Mapping[str, Record], stream: StreamInfo) -> "Figure":
    """Return a figure with the confusion matrix of each method over the seeds that did not diverge.

    Each line of a matrix shows the shares of one class's test rows that were given each label.

    Args:
        records: Results by method.
        stream: Description of the stream.

    Raises:
        DpmclError: The stream is a regression, no method has stored predictions, or matplotlib is
            not installed.
    """
    if stream.kind != "classification":
        raise DpmclError("A confusion matrix counts classes, and a regression has none.")
    survivors = {
        name: select_seeds(record, set(record.test.seeds) - set(record.diverged))
        for name, record in records.items()
    }
    predictions = {
        name: record.predictions
        for name, record in survivors.items()
        if record.predictions is not None
    }
    if not predictions:
        raise DpmclError(
            "A confusion matrix needs predictions, and this run has kept none; run into a new "
            "folder with --set evaluation.confusion=true."
        )
    figure, axes = panels(list(predictions))
    image: Any = None
    for ax, values in zip(axes.flat, predictions.values(), strict=False):
        shares = _shares(confusion(values, len(stream.classes)).sum(0))
        image = ax.imshow(shares, cmap=COLOURS, vmin=0, vmax=1, interpolation="nearest")
        ax.set_xlabel("predicted")
        ax.set_ylabel("class")
        name_ticks(ax, stream.classes)
    figure.colorbar(image, ax=axes, label="share of the class's test rows", shrink=0.9)
    return figure


def _shares(counts: np.ndarray) -> np.ndarray:
    """Divide counts by the sum of their line; NaN for a class without rows."""
    total = counts.sum(1, keepdims=True)
    return np.where(total > 0, counts / np.maximum(total, 1), np.nan)
