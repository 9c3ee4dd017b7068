"""Errors of models whose every answer is known, in full and thinned evaluations."""

from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import dpmcl
from conftest import SHARES, own_rows_stream, rows_of, tiny_model, tiny_run, tiny_stream
from dpmcl import plugins
from dpmcl.core.model import initial_weights
from dpmcl.data.splits import split
from dpmcl.data.stream import Stream
from dpmcl.engine import Batched, Looped
from dpmcl.methods._method import State
from dpmcl.methods.er import ER
from dpmcl.training.evaluation import Evaluation, evaluate
from dpmcl.training.setup import Setup

ENGINES = pytest.mark.parametrize("engine", [Looped(), Batched()], ids=lambda e: e.name)


def evaluated_weights(engine, model, stream, rows) -> torch.Tensor:
    """The errors of the initial weights of a replica each, float64 (replicas, tasks)."""
    seeds = tuple(range(len(rows.row)))
    setup = Setup(method=ER(), model=model, stream=stream, splits=None, seeds=seeds, engine=engine)
    state = State(initial_weights(model, seeds), {}, {})
    errors = evaluate(setup, state, rows, range(len(stream.tasks)))
    assert errors.dtype == torch.float64
    return errors


def test_dropout_has_no_part_in_an_evaluation():
    stream = tiny_stream()
    rows = split(stream, [0, 1], SHARES).test
    models = (tiny_model(stream, dropout=p) for p in (0.5, 0.0))
    assert torch.equal(*(evaluated_weights(Looped(), model, stream, rows) for model in models))


# thinned: what is measured is what the full evaluation measures

TASKS, ROWS = 5, {"test": 12, "train": 36}  # rows a task of the tiny stream's splits


def run_er(**evaluation):
    method = ER(updates=2, batch=4, lr=0.1)
    return tiny_run(method, tasks=TASKS, evaluation=Evaluation(**evaluation))


@pytest.fixture(scope="module")
def full():
    return run_er(train=True, future=True)


def evaluated_entries(every: int, tasks: int = TASKS, future: bool = False) -> np.ndarray:
    """Which entries of (after, task) are measured, written out."""
    out = np.zeros((1 + tasks, tasks), dtype=bool)
    out[0] = True
    for after in range(tasks):
        if (after + 1) % every == 0 or after == tasks - 1:
            out[1 + after, : tasks if future else after + 1] = True
        out[1 + after, after] = True
    return out


@pytest.mark.parametrize("future", [False, True])
@pytest.mark.parametrize("every", [2, 7])
def test_after_every_so_many_tasks_all_seen_and_else_the_newest(every, future, full):
    found = run_er(evaluate_every=every, future=future, train=True).errors
    for name in ("test", "train"):
        expected = np.where(
            evaluated_entries(every, future=future), full.errors[name].values, np.nan
        )
        np.testing.assert_array_equal(found[name].values, expected)
        np.testing.assert_array_equal(found[name].examples, full.errors[name].examples)
    for name in ("accuracy", "cme", "nte", "nte_path", "forgetting", "backward_transfer"):
        metric = plugins.find("metric", name)
        assert np.isfinite(metric(found["test"])).all()
        if name != "forgetting":
            np.testing.assert_array_equal(metric(found["test"]), metric(full.errors["test"]))


@pytest.mark.parametrize("rows", [5, 20])
def test_so_many_rows_of_each_task_and_split(rows, full):
    found = run_er(test_rows=rows, train=True).errors
    for name, all_rows in ROWS.items():
        n = min(rows, all_rows)
        assert found[name].examples.tolist() == [[n] * TASKS] * 2
        values = found[name].values[~np.isnan(found[name].values)]
        np.testing.assert_allclose(values * n, np.round(values * n), atol=1e-9)
        if rows >= all_rows:
            expected = np.where(evaluated_entries(1), full.errors[name].values, np.nan)
            np.testing.assert_array_equal(found[name].values, expected)


def test_a_stored_run_loads_as_it_was_returned_and_its_table_and_figure_have_numbers(tmp_path):
    points = tiny_stream(TASKS)
    stream = Stream.from_arrays(points.x.float(), points.y, classes_per_task=2, name="tiny")
    settings = {
        "training.updates": 3, "training.batch": 4, "network": {"name": "mlp", "hidden": 8},
        "evaluation": {"evaluate_every": 3, "test_rows": 7, "train": True},
    }  # fmt: skip
    options = {"methods": ["naive", "er"], "replicas": 2, "out": tmp_path / "run", "device": "cpu"}
    result = dpmcl.run(stream, settings=settings, **options)
    loaded = dpmcl.load(tmp_path / "run")
    for method in ("naive", "er"):
        for name in ("test", "train"):
            one, two = (r.records[method].errors[name] for r in (result, loaded))
            np.testing.assert_array_equal(one.values, two.values)
            np.testing.assert_array_equal(~np.isnan(two.values[0]), evaluated_entries(3))
            assert one.examples.tolist() == two.examples.tolist() == [[7] * TASKS] * 2
    stored = pq.read_table(tmp_path / "run" / "errors.parquet")
    assert stored.num_rows == int(evaluated_entries(3).sum()) * 2 * 2 * 2
    for row in loaded.rows(("backward_transfer",)):
        numbers = ("cme_mean", "nte_mean", "nte_path_mean", "forgetting_mean", "accuracy_mean")
        assert all(isinstance(row[name], float) for name in (*numbers, "backward_transfer_mean"))
    with pytest.raises(dpmcl.DpmclError, match=r"evaluation\.(train|evaluate_every|test_rows)"):
        dpmcl.run(stream, settings={**settings, "evaluation": {}}, **options)


@ENGINES
@pytest.mark.parametrize(("rows", "at_once"), [(1, 1000), (3, 1), (100, 7)])
def test_replicas_of_unlike_sizes_are_measured_on_those_rows(rows, at_once, engine, monkeypatch):
    monkeypatch.setattr("dpmcl.training.evaluation._ROWS_AT_ONCE", at_once)
    sizes = [[12, 12, 6], [11, 11, 8], [5, 5, 20]]
    stream = own_rows_stream(sizes)
    model = tiny_model(stream)
    whole = split(stream, range(3), SHARES).test
    found = evaluated_weights(engine, model, stream, whole.at_most(rows))
    for replica in range(3):
        for task in range(3):
            row = rows_of(whole, replica, task)[:rows]
            off = model.predict(model.init(replica), stream.x[row]) - stream.y[row]
            expected = float(off.square().mean().detach())
            assert float(found[replica, task]) == pytest.approx(expected, rel=1e-9)


@ENGINES
@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_errors_of_classes_are_those_of_the_logits_and_within_a_task_of_its_own(part, engine):
    points = tiny_stream()
    known = {"scenario": "task-incremental", "classes_per_task": 2}
    stream = Stream.from_arrays(points.x, points.y, **known)
    model = tiny_model(stream)
    rows = split(stream, (0, 1), SHARES).named(part)
    within = evaluated_weights(engine, model, stream, rows)
    blind = evaluated_weights(engine, model, replace(stream, within=None), rows)
    for replica in range(2):
        theta = model.init(replica)
        for task in range(3):
            row = rows_of(rows, replica, task)
            logits = model.predict(theta, stream.x[row]).detach()
            answers = 2 * task + logits[:, 2 * task : 2 * task + 2].argmax(-1)
            for found, chosen in ((within, answers), (blind, logits.argmax(-1))):
                wrong = (chosen != stream.y[row]).double().mean()
                assert float(found[replica, task]) == pytest.approx(float(wrong))
    assert (within != blind).any()
