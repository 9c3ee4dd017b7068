"""Thinned evaluation: what is measured is what the full one measures, and training is the same."""

from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import dpmcl
from conftest import evaluate, own_rows_stream, tiny_model, tiny_run, tiny_stream
from dpmcl.core.errors import Errors
from dpmcl.core.model import Model, initial
from dpmcl.core.tree import leaves
from dpmcl.data.splits import split
from dpmcl.data.stream import Stream
from dpmcl.engine import Batched, Looped
from dpmcl.exceptions import SpecError
from dpmcl.methods.dpmcl import DPMCL
from dpmcl.methods.er import ER
from dpmcl.methods.joint import Joint
from dpmcl.methods.naive import Naive
from dpmcl.metrics.accuracy import accuracy
from dpmcl.metrics.backward_transfer import backward_transfer
from dpmcl.metrics.cme import cme
from dpmcl.metrics.forgetting import forgetting
from dpmcl.metrics.nte import nte
from dpmcl.metrics.nte_path import nte_path
from dpmcl.training.evaluation import Evaluation

SHARES = (0.6, 0.2, 0.2)
TASKS, TEST_ROWS, TRAIN_ROWS = 5, 12, 36  # rows a task of the tiny stream's splits
NETWORK = {"name": "mlp", "hidden": 8}
ENGINES = pytest.mark.parametrize("engine", [Looped(), Batched()], ids=lambda e: e.name)
METHODS = {
    "naive": Naive(updates=2, batch=4, lr=0.1),
    "er": ER(updates=2, batch=4, lr=0.1),
    "dpmcl": DPMCL(updates=2, batch=4, lr=0.1, kappa=2, zeta=1),
    "joint": Joint(updates=2, batch=4, lr=0.1),
}


def run_er(tasks: int = TASKS, **evaluation):
    return tiny_run(METHODS["er"], tasks=tasks, evaluation=Evaluation(**evaluation))


@pytest.fixture(scope="module")
def full():
    return run_er(train=True, future=True)


def wanted(every: int, tasks: int = TASKS, future: bool = False) -> np.ndarray:
    """Which entries of (after, task) are measured, written out."""
    out = np.zeros((1 + tasks, tasks), dtype=bool)
    out[0] = True
    for after in range(tasks):
        if (after + 1) % every == 0 or after == tasks - 1:
            out[1 + after, : tasks if future else after + 1] = True
        out[1 + after, after] = True
    return out


def test_the_pattern_for_two_of_five_by_hand():
    found = run_er(evaluate_every=2).errors["test"].values[0]
    expected = """
        x x x x x
        x . . . .
        x x . . .
        . . x . .
        x x x x .
        x x x x x
    """
    letters = [["." if np.isnan(v) else "x" for v in row] for row in found]
    assert letters == [line.split() for line in expected.strip().splitlines()]


@pytest.mark.parametrize("future", [False, True])
@pytest.mark.parametrize("every", [1, 2, 3, 4, 5, 7])
def test_after_every_so_many_tasks_all_seen_and_else_the_newest(every, future, full):
    found = run_er(evaluate_every=every, future=future, train=True).errors
    for name in ("test", "train"):
        measured = ~np.isnan(found[name].values)
        expected = np.broadcast_to(wanted(every, future=future), measured.shape)
        np.testing.assert_array_equal(measured, expected)
        np.testing.assert_array_equal(
            found[name].values[expected], full.errors[name].values[expected]
        )
        np.testing.assert_array_equal(found[name].examples, full.errors[name].examples)


@pytest.mark.parametrize("method", METHODS)
@ENGINES
def test_measured_values_are_those_of_the_full_evaluation_bit_for_bit(method, engine):
    full, thin = (
        tiny_run(METHODS[method], engine=engine, evaluation=Evaluation(evaluate_every=every))
        for every in (1, 3)
    )
    expected = np.where(wanted(3, 3), full.errors["test"].values, np.nan)
    np.testing.assert_array_equal(thin.errors["test"].values, expected)
    assert np.isnan(expected).sum() > np.isnan(full.errors["test"].values).sum()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("evaluation", [{"evaluate_every": 2}, {"test_rows": 2}, {"train": True}])
def test_training_does_not_know_of_it(method, evaluation):
    plain = tiny_run(METHODS[method])
    other = tiny_run(METHODS[method], evaluation=Evaluation(**evaluation))
    pairs = zip(leaves(plain.theta), leaves(other.theta), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)
    assert plain.work == other.work


@pytest.mark.parametrize("rows", [1, 5, TEST_ROWS, 20, TRAIN_ROWS, 1000])
def test_so_many_rows_of_each_task_and_split(rows, full):
    found = run_er(test_rows=rows, train=True).errors
    for name, there in (("test", TEST_ROWS), ("train", TRAIN_ROWS)):
        n = min(rows, there)
        assert found[name].examples.tolist() == [[n] * TASKS] * 2
        values = found[name].values[~np.isnan(found[name].values)]
        np.testing.assert_allclose(values * n, np.round(values * n), atol=1e-9)
        if rows >= there:
            seen = np.broadcast_to(wanted(1), found[name].values.shape)
            np.testing.assert_array_equal(found[name].values[seen], full.errors[name].values[seen])


def test_the_rows_measured_are_each_tasks_first():
    stream = tiny_stream()
    model = tiny_model(stream)
    theta = initial(model, [0, 1])
    rows = split(stream, (0, 1), SHARES).test
    found = evaluate(Looped(), model, theta, stream, rows.at_most(5), range(3))
    for replica in range(2):
        for task in range(3):
            first = int(rows.offset[replica, task])
            own = rows.row[replica, first : first + 5]
            answers = model.predict(model.init(replica), stream.x[own]).argmax(-1)
            expected = (answers != stream.y[own]).double().mean()
            assert float(found[replica, task]) == pytest.approx(float(expected))


def test_both_together():
    thin = run_er(evaluate_every=2, test_rows=4).errors["test"]
    capped = run_er(test_rows=4).errors["test"]
    np.testing.assert_array_equal(thin.values, np.where(wanted(2), capped.values, np.nan))
    assert thin.examples.tolist() == [[4] * TASKS] * 2


@pytest.mark.parametrize("tasks", [1, 2])
def test_short_streams_are_measured_in_full(tasks):
    thin = run_er(tasks, evaluate_every=10).errors["test"].values
    plain = run_er(tasks).errors["test"].values
    assert not np.isnan(thin[:, -1]).any()
    np.testing.assert_array_equal(thin, np.where(wanted(10, tasks), plain, np.nan))


METRICS = [accuracy, cme, nte, nte_path, forgetting, backward_transfer]


@pytest.mark.parametrize("every", [2, 3, 50])
@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.__name__)
def test_metrics_are_numbers(metric, every, full):
    found = metric(run_er(evaluate_every=every).errors["test"])
    assert found.shape == (2,)
    assert np.isfinite(found).all()
    if metric is not forgetting:
        np.testing.assert_array_equal(found, metric(full.errors["test"]))


def test_forgetting_takes_the_best_of_what_was_measured():
    nan = np.nan
    after = [[0.3, nan, nan, nan], [0.1, 0.4, nan, nan], [nan, nan, 0.2, nan], [0.5, 0.6, 0.7, 0.1]]
    values = np.array([[[0.9] * 4, *after]])
    found = forgetting(Errors((0,), values, np.ones((1, 4), dtype=np.int64)))
    np.testing.assert_allclose(found, [((0.5 - 0.1) + (0.6 - 0.4) + (0.7 - 0.2)) / 3])


@pytest.mark.parametrize("settings", [{"evaluate_every": 0}, {"test_rows": 0}, {"test_rows": -1}])
def test_no_evaluation_is_refused(settings):
    (name,) = settings
    with pytest.raises(SpecError, match=f"{name} must be greater than or equal to 1"):
        Evaluation(**settings)


# stored runs


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A stored run of two methods on five tasks, thinned, and its folder."""
    points = tiny_stream(TASKS)
    stream = Stream.from_arrays(points.x.float(), points.y, classes_per_task=2, name="tiny")
    folder = tmp_path_factory.mktemp("runs") / "thin"
    result = dpmcl.run(
        stream,
        methods=["naive", "er"],
        replicas=2,
        settings={
            "training.updates": 3,
            "training.batch": 4,
            "network": NETWORK,
            "evaluation.evaluate_every": 3,
            "evaluation.test_rows": 7,
            "evaluation.train": True,
        },
        out=folder,
        engine="looped",
        device="cpu",
    )
    return result, folder


def test_a_stored_run_loads_as_it_was_returned(stored):
    result, folder = stored
    loaded = dpmcl.load(folder)
    assert loaded.spec["evaluation"] == {
        "train": True, "future": False, "evaluate_every": 3, "test_rows": 7
    }  # fmt: skip
    for method in ("naive", "er"):
        for name in ("test", "train"):
            one, two = (r.records[method].errors[name] for r in (result, loaded))
            assert one.seeds == two.seeds == (0, 1)
            np.testing.assert_array_equal(one.values, two.values)
            np.testing.assert_array_equal(one.examples, two.examples)
            np.testing.assert_array_equal(~np.isnan(two.values[0]), wanted(3))
            assert two.examples.tolist() == [[7] * TASKS] * 2


def test_only_what_was_measured_is_written(stored):
    table = pq.read_table(stored[1] / "errors.parquet").to_pydict()
    assert len(table["error"]) == int(wanted(3).sum()) * 2 * 2 * 2
    assert np.isfinite(table["error"]).all()
    places = set(zip(table["after"], table["task"], strict=True))
    assert places == {(int(a) - 1, int(k)) for a, k in np.argwhere(wanted(3))}
    assert set(table["examples"]) == {7}


def test_the_table_of_a_thinned_run_has_numbers(stored):
    for row in stored[0].rows(("backward_transfer",)):
        numbers = ("cme_mean", "nte_mean", "nte_path_mean", "forgetting_mean", "accuracy_mean")
        assert all(isinstance(row[name], float) for name in (*numbers, "backward_transfer_mean"))
    for row in stored[0].rows_by_task():
        assert isinstance(row["new_mean"], float)
        assert isinstance(row["last_mean"], float)


@pytest.mark.parametrize("smooth", [0.0, 1.0])
def test_the_figure_draws_what_was_measured(stored, smooth):
    pytest.importorskip("matplotlib")
    figure = stored[0].plot(smooth=smooth)
    for panel, seen in enumerate(([1, 3, 5], [1, 2, 3, 4, 5])):
        for line in figure.axes[panel].get_lines():
            assert line.get_xdata().tolist() == seen
            assert np.isfinite(line.get_ydata()).all()
            if smooth == 0:
                measure = (cme, nte)[panel]
                errors = stored[0].errors[line.get_label()]
                means = [measure(errors, after=k - 1).mean() for k in seen]
                np.testing.assert_allclose(line.get_ydata(), means)


def test_a_folder_refuses_another_evaluation(stored):
    _, folder = stored
    points = tiny_stream(TASKS)
    stream = Stream.from_arrays(points.x.float(), points.y, classes_per_task=2, name="tiny")
    with pytest.raises(dpmcl.DpmclError, match=r"evaluation\.(train|evaluate_every|test_rows)"):
        dpmcl.run(
            stream,
            methods=["naive"],
            replicas=2,
            settings={"training.updates": 3, "training.batch": 4, "network": NETWORK},
            out=folder,
        )


# at most so many rows


@pytest.mark.parametrize("rows", [1, 3, 6, 9, 100])
@pytest.mark.parametrize("sizes", [[[10, 20], [15, 15]], [[12, 12, 6], [11, 11, 8], [5, 5, 20]]])
@pytest.mark.parametrize("part", ["train", "test"])
def test_replicas_of_unlike_sizes_keep_each_tasks_first_rows(sizes, rows, part):
    stream = own_rows_stream(sizes)
    whole = split(stream, range(len(sizes)), SHARES).named(part)
    cut = whole.at_most(rows)
    count = whole.offset.diff(dim=1).clamp(max=rows)
    assert torch.equal(cut.offset.diff(dim=1), count)
    assert (cut.offset[:, 0] == 0).all()
    assert cut.row.shape == cut.task.shape == (len(sizes), int(count.sum(1).max()))
    for replica in range(len(sizes)):
        for task in range(len(sizes[0])):
            start, first = int(whole.offset[replica, task]), int(cut.offset[replica, task])
            n = int(count[replica, task])
            kept, all_rows = cut.row[replica, first : first + n], whole.row[replica]
            assert torch.equal(kept, all_rows[start : start + n])
            assert (cut.task[replica, first : first + n] == task).all()


@ENGINES
@pytest.mark.parametrize("rows", [1, 3, 100])
def test_replicas_of_unlike_sizes_are_measured_on_those_rows(rows, engine):
    sizes = [[12, 12, 6], [11, 11, 8], [5, 5, 20]]
    stream = own_rows_stream(sizes)
    model = tiny_model(stream)
    whole = split(stream, range(3), SHARES).test
    theta = initial(model, range(3))
    found = evaluate(engine, model, theta, stream, whole.at_most(rows), range(3))
    for replica in range(3):
        for task in range(3):
            start, end = whole.offset[replica, task : task + 2].tolist()
            own = whole.row[replica, start : min(end, start + rows)]
            off = model.predict(model.init(replica), stream.x[own]) - stream.y[own]
            expected = float(off.square().mean().detach())
            assert float(found[replica, task]) == pytest.approx(expected, rel=1e-9)


# within: where the task is known


def known_tasks(tasks: int = 3) -> Stream:
    points = tiny_stream(tasks)
    return Stream.from_arrays(
        points.x, points.y, scenario="task-incremental", classes_per_task=2, name="tiny"
    )


@ENGINES
@pytest.mark.parametrize("part", ["train", "test"])
def test_errors_within_a_task_are_those_of_masked_logits(part, engine):
    stream = known_tasks()
    model = tiny_model(stream)
    rows = split(stream, (0, 1), SHARES).named(part)
    found = evaluate(engine, model, initial(model, (0, 1)), stream, rows, range(3))
    blind = evaluate(
        engine, model, initial(model, (0, 1)), replace(stream, within=None), rows, range(3)
    )
    for replica in range(2):
        theta = model.init(replica)
        for task in range(3):
            start, end = rows.offset[replica, task : task + 2].tolist()
            own = rows.row[replica, start:end]
            logits = model.predict(theta, stream.x[own]).detach()
            answers = 2 * task + logits[:, 2 * task : 2 * task + 2].argmax(-1)
            wrong = (answers != stream.y[own]).double().mean()
            assert float(found[replica, task]) == pytest.approx(float(wrong))
    assert (found <= blind).all()
    assert (found < blind).any()


def test_training_is_that_of_the_same_tasks_unknown():
    known, unknown = known_tasks(), tiny_stream()
    settings = {"training.updates": 3, "training.batch": 4, "network": NETWORK}
    unknown = Stream.from_arrays(unknown.x, unknown.y, classes_per_task=2, name="tiny")
    one, two = (
        dpmcl.run(s, methods=["er"], replicas=2, settings=settings, engine="looped", device="cpu")
        for s in (known, unknown)
    )
    pairs = zip(leaves(one.theta["er"]), leaves(two.theta["er"]), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    seen = np.broadcast_to(wanted(1, 3), one.errors["er"].values.shape)
    assert (one.errors["er"].values[seen] <= two.errors["er"].values[seen]).all()
    assert (one.errors["er"].values[seen] < two.errors["er"].values[seen]).any()


def answering(stream: Stream, *logits: float):
    """A model that always answers so, and its parameters for one replica."""
    model = Model.build(
        lambda: (nn.Flatten(), nn.Linear(2, stream.outputs)),
        stream.kind,
        stream.example(torch.float64),
        stream.outputs,
        dtype=torch.float64,
    )
    weight = torch.zeros(1, stream.outputs, 2, dtype=torch.float64)
    bias = torch.tensor([logits], dtype=torch.float64)
    return model, {"representation": {}, "prediction": {"weight": weight, "bias": bias}}


def test_a_larger_answer_outside_the_task_is_not_looked_at():
    stream = known_tasks()
    rows = split(stream, (0,), SHARES).test
    model, theta = answering(stream, -5, -9, 100, 50, -1e30, -1e31)
    found = evaluate(Looped(), model, theta, stream, rows, range(3))
    assert found.tolist() == [
        [0.5, 0.5, 0.5]
    ]  # the first of each task's two classes, six of twelve
    found = evaluate(Looped(), model, theta, replace(stream, within=None), rows, range(3))
    assert found.tolist() == [[1.0, 0.5, 1.0]]


@ENGINES
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [0, 1, 5])
def test_logits_that_are_not_finite_are_wrong_wherever_they_are(bad, place, engine):
    stream = known_tasks()
    rows = split(stream, (0,), SHARES).test
    logits = [1.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    logits[place] = bad
    model, theta = answering(stream, *logits)
    assert evaluate(engine, model, theta, stream, rows, range(3)).tolist() == [[1.0, 1.0, 1.0]]


def test_model_errors_within_some_classes():
    stream = known_tasks()
    model, _ = answering(stream, *[0.0] * 6)
    outputs = torch.tensor(
        [[3.0, 1, 2, 0, 9, 9], [3, 1, 2, 0, 9, 9], [1, 2, float("nan"), 0, 0, 0]]
    )
    within = torch.tensor([[1, 1, 0, 0, 0, 0], [0, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0]]).bool()
    y = torch.tensor([0, 1, 1])
    assert model.errors(outputs, y, within).tolist() == [0.0, 1.0, 1.0]
    assert model.errors(outputs, y).tolist() == [1.0, 1.0, 1.0]
