"""What `dpmcl stream` shows of a stream."""

import pytest

from conftest import tiny_stream
from dpmcl.data.scaling import fit_scale
from dpmcl.data.splits import split
from dpmcl.data.stream import Stream
from dpmcl.results import sheet
from dpmcl.streams.digits import Digits
from dpmcl.streams.sine import Sine

SHARES = (0.6, 0.2, 0.2)


def description(stream: Stream) -> list[str]:
    splits = split(stream, [0], SHARES)
    return sheet.describe(fit_scale(stream, splits), splits).split("\n")


def test_a_stream_in_numbers():
    first, *_, labels, header, _, _, row, _ = description(tiny_stream(tasks=3, rows=30))
    assert first == "tiny: classification, 3 tasks, 180 rows, inputs (2,) float64, 6 outputs"
    assert labels.startswith("labels: 0 = class 0, 1 = class 1, ")
    assert header.split() == ["task", "name", "classes", "train", "validation", "test"]
    assert row.startswith("1     task 1  class 2, class 3 ")
    assert row.split()[-3:] == ["36", "12", "12"]


def test_inputs_that_are_cut_off_are_named():
    far = [*range(30), *[1000] * 30]
    table = {"t": far, "n": [0, 1] * 30, "y": ["a"] * 30 + ["b"] * 30}
    line = "share of rows beyond 10 deviations of the first task, cut off there: t (0.5)"
    assert line in description(Stream.from_table(table, target="y"))


@pytest.mark.parametrize("tasks", [3, 10])
def test_images_are_drawn_a_strip_a_task(tasks):
    figure = sheet.draw(Digits(tasks=tasks).build([0]))
    strips = [ax for ax in figure.axes if ax.images]
    assert len(strips) == tasks
    assert strips[1].get_title(loc="left") == "1: 1"
    assert strips[0].images[0].get_array().shape == (8, 12 * 9 - 1)


def test_curves_are_drawn_one_a_task():
    (ax,) = sheet.draw(Sine(tasks=4, rows=5).build([0])).axes
    assert [len(line.get_ydata()) for line in ax.lines] == [100] * 4
