"""What `dpmcl stream` shows of a stream."""

import numpy as np
import pytest

import dpmcl
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


def test_a_run_and_a_learner_warn_of_inputs_that_are_cut_off(caplog):
    kelvin = np.repeat([300.0, 320.0, 400.0], 20)  # constant in the first task
    table = {"q": np.arange(60) % 20, "T": kelvin, "y": kelvin + np.arange(60) / 60}
    stream = Stream.from_table({**table, "run": np.repeat([0, 1, 2], 20)}, target="y", task="run")
    dpmcl.run(stream, methods=["naive", "er"], replicas=1, settings={"training.updates": 1})
    (line,) = [m for m in caplog.messages if "cut off" in m]
    assert line.startswith("Share of rows beyond 10 deviations of the first task, cut off there: T")
    assert "T (0.67); the network cannot tell these values apart. If they matter, scale" in line

    caplog.clear()
    learner = dpmcl.Learner(updates=1)
    for task in range(3):  # told once
        rows = slice(20 * task, 20 * task + 20)
        learner.learn({name: values[rows] for name, values in table.items()}, "y")
    assert ["T (1);" in m for m in caplog.messages if "cut off" in m] == [True]


@pytest.mark.parametrize("call", ["predict", "evaluate", "learn"])
def test_a_learner_of_arrays_warns_of_inputs_that_are_cut_off(call, caplog):
    metres = np.random.default_rng(0).normal(size=(20, 2, 2))
    learner = dpmcl.Learner(updates=1, scale=True).learn(metres, [0, 1] * 10)
    arguments = (metres * [1, 1000],) if call == "predict" else (metres * [1, 1000], [0, 1] * 10)
    assert not caplog.messages
    for _ in range(2):  # told once
        getattr(learner, call)(*arguments)
    (line,) = caplog.messages
    assert "cut off there: input 0, 1 (1), input 1, 1 (1); the network cannot tell" in line


@pytest.mark.parametrize("tasks", [3, 10])
def test_images_are_drawn_a_strip_a_task(tasks):
    figure = sheet.draw(Digits(tasks=tasks).build([0]))
    strips = [ax for ax in figure.axes if ax.images]
    assert len(strips) == tasks
    assert strips[1].get_title(loc="left") == "1: 1"
    assert strips[0].images[0].get_array().shape == (8, 12 * 9 - 1)


@pytest.mark.parametrize(("shape", "strips"), [((1, 1, 5), 2), ((2, 3, 3), 0)])
def test_rows_of_pixels_are_images_and_two_channels_are_not(shape, strips):
    stream = Stream.from_arrays(np.ones((4, *shape)), [0, 0, 1, 1])
    assert sum(bool(ax.images) for ax in sheet.draw(stream).axes) == strips


def test_curves_are_drawn_one_a_task():
    (ax,) = sheet.draw(Sine(tasks=4, rows=5).build([0])).axes
    assert [len(line.get_ydata()) for line in ax.lines] == [100] * 4
