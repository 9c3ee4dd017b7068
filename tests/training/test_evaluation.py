"""Errors of models whose every answer is known, and an evaluation that changes nothing."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import dpmcl.training.evaluation
from conftest import evaluate, tiny_model, tiny_stream
from dpmcl.core.model import Model, initial
from dpmcl.data.splits import split
from dpmcl.data.stream import Stream
from dpmcl.engine import Batched, Looped

SHARES = (0.6, 0.2, 0.2)
ENGINES = pytest.mark.parametrize("engine", [Looped(), Batched()], ids=lambda e: e.name)


def constant_model(stream: Stream) -> Model:
    """Answers with its last layer's bias, once its weights are zero."""
    return Model.build(
        lambda: (nn.Flatten(), nn.Linear(2, stream.outputs)),
        stream.kind,
        stream.example(torch.float64),
        stream.outputs,
        dtype=torch.float64,
    )


def constant_theta(*answers):
    """One replica for each answer."""
    bias = torch.tensor(answers, dtype=torch.float64)
    weight = torch.zeros(len(answers), bias.shape[1], 2, dtype=torch.float64)
    return {"representation": {}, "prediction": {"weight": weight, "bias": bias}}


def one_hot(label: int, classes: int = 6) -> list[float]:
    return [1.0 if c == label else 0.0 for c in range(classes)]


def share_wrong(stream, rows, replica, task, label) -> float:
    first, last = rows.offset[replica, task : task + 2].tolist()
    labels = stream.y[rows.row[replica, first:last]].tolist()
    return sum(y != label for y in labels) / len(labels)


def regression_stream() -> Stream:
    """Two replicas with rows of their own and different task sizes; y is 1, 2 or 3 by task."""
    sizes = torch.tensor([[10, 40, 10], [20, 15, 25]])
    task = torch.stack([torch.arange(3).repeat_interleave(own) for own in sizes])
    return Stream(
        name="steps",
        kind="regression",
        x=torch.zeros(120, 2, dtype=torch.float64),
        y=(task.flatten() + 1.0)[:, None].double(),
        row=torch.arange(120).view(2, 60),
        task=task,
        tasks=("a", "b", "c"),
        classes=(),
        outputs=1,
    )


@ENGINES
@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_a_constant_classifier_is_wrong_on_all_other_classes(engine, part):
    stream = tiny_stream()
    rows = split(stream, [0, 1], SHARES).named(part)
    theta = constant_theta(one_hot(3), one_hot(0))
    found = evaluate(engine, constant_model(stream), theta, stream, rows, range(3))
    expected = [
        [1.0, share_wrong(stream, rows, 0, 1, 3), 1.0],
        [share_wrong(stream, rows, 1, 0, 0), 1.0, 1.0],
    ]
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
    assert 0 < float(found[0, 1]) < 1


@ENGINES
def test_a_constant_regressor_has_the_squared_distance(engine):
    stream = regression_stream()
    rows = split(stream, [0, 1], SHARES).test
    theta = constant_theta([0.0], [2.5])
    found = evaluate(engine, constant_model(stream), theta, stream, rows, range(3))
    assert found.tolist() == [[1.0, 4.0, 9.0], [1.5**2, 0.5**2, 0.5**2]]


@ENGINES
@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_rows_may_be_taken_in_any_chunks(engine, at_once, monkeypatch):
    stream = tiny_stream()
    model = tiny_model(stream)
    theta = initial(model, [0, 1])
    rows = split(stream, [0, 1], SHARES).test
    whole = evaluate(engine, model, theta, stream, rows, range(3))
    monkeypatch.setattr(dpmcl.training.evaluation, "_ROWS_AT_ONCE", at_once)
    assert torch.equal(evaluate(engine, model, theta, stream, rows, range(3)), whole)
    assert len(whole.unique()) > 2


@ENGINES
@pytest.mark.parametrize("at_once", [7, 1000])
@pytest.mark.parametrize("tasks", [range(3), range(1, 2)])
def test_replicas_of_different_sizes_count_their_own_rows_once(engine, at_once, tasks, monkeypatch):
    monkeypatch.setattr(dpmcl.training.evaluation, "_ROWS_AT_ONCE", at_once)
    stream = regression_stream()
    stream = replace(stream, y=torch.arange(120, dtype=torch.float64)[:, None])
    rows = split(stream, [0, 1], SHARES).train
    theta = constant_theta([0.0], [0.0])
    found = evaluate(engine, constant_model(stream), theta, stream, rows, tasks)
    for replica in range(2):
        for task in range(3):
            first, last = rows.offset[replica, task : task + 2].tolist()
            own = rows.row[replica, first:last].tolist()
            value = float(found[replica, task])
            if task in tasks:
                assert value == pytest.approx(sum(row**2 for row in own) / len(own), rel=1e-12)
            else:
                assert np.isnan(value)


def test_dropout_has_no_part_in_an_evaluation():
    stream = tiny_stream()
    rows = split(stream, [0, 1], SHARES).test
    with_it, without = (tiny_model(stream, dropout=p) for p in (0.5, 0.0))
    theta = initial(without, [0, 1])
    found = [
        evaluate(Looped(), model, theta, stream, rows, range(3)) for model in (with_it, without)
    ]
    assert torch.equal(*found)
