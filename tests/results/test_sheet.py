"""What `dpmcl stream` shows of a stream."""

import json

import pytest

from conftest import tiny_stream
from dpmcl.data.scaling import fitted
from dpmcl.data.splits import split
from dpmcl.data.stream import Stream
from dpmcl.results import sheet
from dpmcl.streams.digits import Digits
from dpmcl.streams.sine import Sine

SHARES = (0.6, 0.2, 0.2)


def test_a_stream_in_numbers():
    stream = tiny_stream(tasks=3, rows=30)
    facts = sheet.describe(stream, split(stream, [0], SHARES))
    assert json.loads(json.dumps(facts)) == facts
    assert (facts["kind"], facts["tasks"], facts["rows"]) == ("classification", 3, 180)
    assert (facts["inputs"], facts["outputs"]) == ([2], 6)
    assert facts["table"][1] == {
        "task": 1, "name": "task 1", "classes": ["class 2", "class 3"],
        "train": 36, "validation": 12, "test": 12,
    }  # fmt: skip


def test_regression_has_no_classes():
    stream = Sine(tasks=2, rows=10).build([0])
    facts = sheet.describe(stream, split(stream, [0], SHARES))
    assert facts["classes"] == []
    assert [row["train"] for row in facts["table"]] == [6, 6]


@pytest.mark.parametrize(("tasks", "strips"), [(3, 3), (10, 10)])
def test_images_are_drawn_a_strip_a_task(tasks, strips):
    figure = sheet.draw(Digits(tasks=tasks).build([0]))
    drawn = [ax for ax in figure.axes if ax.images]
    assert len(drawn) == strips
    assert drawn[1].get_title(loc="left") == "1: 1"
    height, width = drawn[0].images[0].get_array().shape[:2]
    assert height == 8
    assert width == 12 * 9 - 1


def test_curves_are_drawn_one_a_task():
    figure = sheet.draw(Sine(tasks=4, rows=5).build([0]))
    (ax,) = figure.axes
    assert len(ax.lines) == 4
    assert len(ax.lines[0].get_ydata()) == 100


def test_inputs_that_are_cut_off_are_named():
    far = [*range(30), *[1000] * 30]
    table = {"t": far, "n": [0, 1] * 30, "y": ["a"] * 30 + ["b"] * 30}
    stream = Stream.from_table(table, target="y")
    splits = split(stream, [0], SHARES)
    notes = sheet.describe(fitted(stream, splits), splits)["notes"]
    assert (
        notes[-1] == "share of rows beyond 10 deviations of the first task, cut off there: t (0.5)"
    )
