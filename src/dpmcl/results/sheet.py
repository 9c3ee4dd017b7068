"""A stream as its first replica sees it: a table of its tasks, and a sheet of samples."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dpmcl.data.scaling import clipped_shares, clipping_note
from dpmcl.data.splits import Splits
from dpmcl.data.stream import Stream
from dpmcl.exceptions import printable
from dpmcl.results.figures import PLAIN, drawing, legend, new_figure, shortened
from dpmcl.results.names import displayed
from dpmcl.results.table import aligned

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SAMPLES = 12  # images in a strip, which shows one task
_STRIPS = 10  # strips in a column
_TITLE = 180  # characters that fit above the strips of a row
_LABELS = 40  # names that fit below an axis
_SPLITS = ("train", "validation", "test")


def describe(stream: Stream, splits: Splits) -> str:
    """Return a description of a stream as text: its kind, shapes and labels, and a table of tasks.

    Args:
        stream: The stream.
        splits: Rows of the stream by split.
    """
    inputs, dtype = tuple(stream.x.shape[1:]), str(stream.x.dtype).removeprefix("torch.")
    lines = [
        f"{displayed(stream.name)}: {stream.kind}, {len(stream.tasks)} tasks, "
        f"{stream.row.shape[1]} rows, inputs {inputs} {dtype}, {stream.outputs} outputs",
        *([printable(f"scenario: {stream.scenario}")] if stream.scenario else []),
        *map(printable, stream.notes),
        *([clipping_note(shares)] if (shares := clipped_shares(stream)) else []),
    ]
    names = [displayed(name) for name in stream.classes]
    if names:
        lines.append(f"labels: {', '.join(f'{c} = {name}' for c, name in enumerate(names))}")
    counts = [splits.named(split).offset[0].diff().tolist() for split in _SPLITS]
    body = []
    for task, name in enumerate(stream.tasks):
        classes = stream.y[_rows(stream, task)].unique().tolist() if names else []
        labels = ", ".join(names[c] for c in classes)
        body.append([str(task), displayed(name), labels, *(str(count[task]) for count in counts)])
    return "\n".join([*lines, aligned(["task", "name", "classes", *_SPLITS], body, words=3)])


@drawing()
def draw(stream: Stream) -> "Figure":
    """Return a figure with samples of each task.

    It shows a strip of images for each task if they are grey or RGB. If targets are curves, it
    shows one target of each task. Otherwise it shows the mean of each input in each task, as the
    network receives it.

    Args:
        stream: The stream.

    Raises:
        DpmclError: matplotlib is not installed.
    """
    is_picture = stream.x.dim() == 4 and stream.x.shape[1] in (1, 3)
    return _images(stream) if is_picture else _lines(stream)


def _rows(stream: Stream, task: int) -> Tensor:
    """Return the numbers of a task's rows."""
    return stream.row[0][stream.task[0] == task]


def _inputs(stream: Stream, row: Tensor, task: int, dtype: torch.dtype) -> Tensor:
    """Return the inputs of some rows as a network receives them."""
    present = torch.ones_like(row, dtype=torch.bool)
    return stream.batch(row, present, torch.full_like(row, task), dtype, replica=0).x.cpu()


def _images(stream: Stream) -> "Figure":
    """Return a figure with a strip of images for each task."""
    tasks = len(stream.tasks)
    columns = math.ceil(tasks / _STRIPS)
    strips = math.ceil(tasks / columns)
    shown = _SAMPLES if columns == 1 else max(3, _SAMPLES // columns)
    figure = new_figure(9.0, 0.62 * strips + 0.5)
    grid: Any = figure.subplots(strips, columns, squeeze=False)
    for ax in grid.flat:
        ax.set_axis_off()
    for task in range(tasks):
        x = _inputs(stream, _rows(stream, task)[:shown], task, torch.float32).numpy()
        blank = np.ones((x.shape[1], x.shape[2], 1))
        cells = [part for image in x for part in (image, blank)]
        strip = np.concatenate(cells[:-1], 2).transpose(1, 2, 0)
        ax = grid[task % strips, task // strips]
        ax.imshow(strip, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        title = f"{task}: {shortened(stream.tasks[task], max(18, _TITLE // columns))}"
        ax.set_title(title, fontsize=6, pad=2, loc="left", **PLAIN)
    title = f"{shortened(stream.name, 60)}: the first {shown} rows of each task"
    figure.suptitle(title, fontsize=9, **PLAIN)
    return figure


def _lines(stream: Stream) -> "Figure":
    """Return a figure with a line for each task."""
    from matplotlib import colormaps

    figure = new_figure(9.0, 3.6)
    ax: Any = figure.subplots()
    targets = stream.kind == "regression" and stream.outputs > 1
    tasks = len(stream.tasks)
    for task in range(tasks):
        row = _rows(stream, task)
        inputs = _inputs(stream, row, task, torch.float64).flatten(1).mean(0)
        curve = (stream.y[row[0]] if targets else inputs).cpu().numpy()
        colour = colormaps["viridis"](task / max(1, tasks - 1))
        ax.plot(np.arange(len(curve)), curve, color=colour, linewidth=1)
    if 0 < len(stream.columns) <= _LABELS and not targets:
        names = [shortened(name, 24) for name in stream.columns]
        ax.set_xticks(np.arange(len(names)), names, rotation=40, ha="right", fontsize=7, **PLAIN)
    ax.set_xlabel("output" if targets else "input")
    ax.set_ylabel("value")
    ax.spines[["top", "right"]].set_visible(False)
    ends = [ax.get_lines()[0], ax.get_lines()[-1]][:tasks]
    legend(ax, ends, [stream.tasks[0], stream.tasks[-1]][:tasks], fontsize=8)
    what = "the targets of one row" if targets else "the mean of each input"
    title = (
        f"{shortened(stream.name, 60)}: {what} in each of {tasks} tasks, early dark, late bright"
    )
    ax.set_title(title, fontsize=9, **PLAIN)
    return figure
