"""What a stream looks like: a table of its tasks, and a sheet of samples."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dpmcl.data.splits import Splits
from dpmcl.data.stream import LIMIT, Stream
from dpmcl.results.figures import PLAIN, drawing, legend, shortened

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SAMPLES = 12  # images a task, in a strip
_STRIPS = 10  # strips in a column
_TITLE = 180  # characters that fit above strips
_LABELS = 40  # names that fit beside an axis


def describe(stream: Stream, splits: Splits, replica: int = 0) -> dict[str, Any]:
    """A stream in numbers, for one replica.

    Keys: name, kind, scenario, tasks, rows, inputs (shape), dtype, outputs, classes (the original
    label of each class number), notes (what became of the source), and table, a list of a dict for
    each task: task, name, classes (names), train, validation, test (rows that arrive with it).
    """
    counts = {
        name: splits.named(name).offset[replica].diff().tolist()
        for name in ("train", "validation", "test")
    }
    table = []
    for task, name in enumerate(stream.tasks):
        numbers = _rows(stream, task, replica)
        kinds = stream.y[numbers].unique().tolist() if stream.classes else []
        table.append(
            {
                "task": task,
                "name": name,
                "classes": [stream.classes[c] for c in kinds],
                **{split: counts[split][task] for split in counts},
            }
        )
    return {
        "name": stream.name,
        "kind": stream.kind,
        "scenario": stream.scenario,
        "tasks": len(stream.tasks),
        "rows": int(stream.row.shape[1]),
        "inputs": list(stream.x.shape[1:]),
        "dtype": str(stream.x.dtype).removeprefix("torch."),
        "outputs": stream.outputs,
        "classes": list(stream.classes),
        "notes": [*stream.notes, *_cut_off(stream, replica)],
        "table": table,
    }


def _cut_off(stream: Stream, replica: int) -> list[str]:
    """A line on the inputs that are cut off, so far are they from the first task's."""
    if stream.scale is None or stream.scaled is None or not stream.columns:
        return []
    row = torch.arange(len(stream.x), device=stream.x.device)
    plain = replace(stream, view=None)
    x = plain.batch(
        row, torch.ones_like(row, dtype=torch.bool), row * 0, torch.float64, replica=replica
    ).x
    shares = ((x.abs() >= LIMIT) & stream.scaled).double().mean(0).tolist()
    names = [f"{c} ({s:.2g})" for c, s in zip(stream.columns, shares, strict=True) if s]
    line = f"share of rows beyond {LIMIT:g} deviations of the first task, cut off there: "
    return [line + ", ".join(names)] if names else []


@drawing()
def draw(stream: Stream, replica: int = 0) -> "Figure":
    """A sheet of samples: a strip of images for each task; for curves, one of each task.

    For tables, the mean of every input in every task, as the network sees it.

    Raises DpmclError where matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    if stream.x.dim() == 4:
        return _images(stream, replica, Figure)
    if stream.columns:
        return _columns(stream, replica, Figure)
    return _lines(stream, replica, Figure)


def _rows(stream: Stream, task: int, replica: int) -> torch.Tensor:
    own = min(replica, stream.row.shape[0] - 1)
    return stream.row[own][stream.task[own] == task]


def _images(stream: Stream, replica: int, figure_of: Any) -> "Figure":
    tasks = len(stream.tasks)
    columns = math.ceil(tasks / _STRIPS)
    strips = math.ceil(tasks / columns)
    each = _SAMPLES if columns == 1 else max(3, _SAMPLES // columns)
    figure: Figure = figure_of(figsize=(9.0, 0.62 * strips + 0.5), layout="constrained")
    grid: Any = figure.subplots(strips, columns, squeeze=False)
    for ax in grid.flat:
        ax.set_axis_off()
    for task in range(tasks):
        row = _rows(stream, task, replica)[:each]
        there = torch.ones_like(row, dtype=torch.bool)
        x = stream.batch(row, there, row * 0 + task, torch.float32, replica=replica).x.cpu().numpy()
        blank = np.ones((x.shape[1], x.shape[2], 1))
        cells = [part for image in x for part in (image, blank)]
        strip = np.concatenate(cells[:-1], 2).transpose(1, 2, 0)
        ax = grid[task % strips, task // strips]
        ax.imshow(strip.squeeze(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        title = f"{task}: {shortened(stream.tasks[task], max(18, _TITLE // columns))}"
        ax.set_title(title, fontsize=6, pad=2, loc="left", **PLAIN)
    title = f"{shortened(stream.name, 60)}: the first {each} rows of each task"
    figure.suptitle(title, fontsize=9, **PLAIN)
    return figure


def _columns(stream: Stream, replica: int, figure_of: Any) -> "Figure":
    tasks, columns = len(stream.tasks), len(stream.columns)
    means = np.empty((tasks, columns))
    for task in range(tasks):
        row = _rows(stream, task, replica)
        there = torch.ones_like(row, dtype=torch.bool)
        seen = stream.batch(row, there, row * 0 + task, torch.float64, replica=replica).x
        means[task] = seen.mean(0).cpu().numpy()
    size = (9.0, 1.9 + 0.3 * min(tasks, 30))
    figure: Figure = figure_of(figsize=size, layout="constrained")
    ax: Any = figure.subplots()
    most = max(float(np.abs(means).max()), 1e-9)
    picture = ax.imshow(means, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
    if columns <= _LABELS:
        names = [shortened(name, 24) for name in stream.columns]
        ax.set_xticks(np.arange(columns), names, rotation=40, ha="right", fontsize=7, **PLAIN)
    else:
        ax.set_xlabel(f"{columns} inputs")
    if tasks <= _LABELS:
        names = [shortened(name, 24) for name in stream.tasks]
        ax.set_yticks(np.arange(tasks), names, fontsize=7, **PLAIN)
    else:
        ax.set_ylabel("task")
    unit = "deviations of the first task" if stream.scale is not None else "as stored"
    figure.colorbar(picture, ax=ax, label=unit)
    title = f"{shortened(stream.name, 60)}: the mean of each input in each task"
    ax.set_title(title, fontsize=9, **PLAIN)
    return figure


def _lines(stream: Stream, replica: int, figure_of: Any) -> "Figure":
    from matplotlib import colormaps

    figure: Figure = figure_of(figsize=(9.0, 3.6), layout="constrained")
    ax: Any = figure.subplots()
    curves = stream.y if stream.kind == "regression" and stream.outputs > 1 else stream.x.flatten(1)
    tasks = len(stream.tasks)
    for task in range(tasks):
        curve = curves[_rows(stream, task, replica)[0]].cpu().numpy()
        colour = colormaps["viridis"](task / max(1, tasks - 1))
        ax.plot(np.arange(len(curve)), curve, color=colour, linewidth=1)
    ax.set_xlabel("output" if curves is stream.y else "input")
    ax.set_ylabel("value")
    ax.spines[["top", "right"]].set_visible(False)
    ends = [ax.get_lines()[0], ax.get_lines()[-1]][:tasks]
    legend(ax, ends, [stream.tasks[0], stream.tasks[-1]][:tasks], frameon=False, fontsize=8)
    title = (
        f"{shortened(stream.name, 60)}: one row of each of {tasks} tasks, early dark, late bright"
    )
    ax.set_title(title, fontsize=9, **PLAIN)
    return figure
