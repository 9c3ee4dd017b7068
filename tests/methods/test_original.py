"""reading = "original": what FTML, OML and ANML do as published."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import dpmcl
from conftest import (
    interrupt,
    own_rows_stream,
    same_bits,
    setup_of,
    supply_of,
    tiny_run,
    tiny_stream,
)
from dpmcl import plugins
from dpmcl.core.tree import at, tree_map
from dpmcl.data.labelled import from_arrays
from dpmcl.data.sampling import Draw, Supply, draw_rows
from dpmcl.data.scenario import ScenarioSettings
from dpmcl.data.splits import split
from dpmcl.data.stream import Stream
from dpmcl.data.task_info import task_infos
from dpmcl.engine.batched import Batched
from dpmcl.engine.looped import Looped
from dpmcl.exceptions import DataError, SpecError

ROWS = 12  # a class


def with_background(background: int = 3) -> Stream:
    """Return three tasks of one class each, and classes beside them, points in the plane."""
    tiny = tiny_stream(3, ROWS)
    names = [f"class {c}" for c in tiny.y.tolist()]
    return Stream.from_arrays(tiny.x, names, tasks=3, background=background)


def method(name: str, **settings):
    few = {"batch": 1, "passes": 1, "memory": 10}
    meta = {"meta_updates": 6, "trajectory": 3, "queries": 4, "rates": [0.01, 0.1]}
    meta = meta if name != "oml" else {}
    return plugins.find("method", name)(**{**few, **meta, "reading": "original", **settings})


def test_background_classes_are_in_no_task():
    stream = with_background()
    assert stream.tasks == ("class 0", "class 1", "class 2")
    assert set(stream.y[stream.background].tolist()) == {3, 4, 5}
    assert not set(stream.background.tolist()) & set(stream.row.flatten().tolist())
    splits = split(stream, [0, 1], (0.6, 0.2, 0.2))
    assert splits.background.offset.tolist() == [[0, ROWS, 2 * ROWS, 3 * ROWS]] * 2
    assert stream.digest() != with_background(2).digest()
    overlapping = replace(stream, background=torch.cat([stream.background, stream.row[0, :1]]))
    with pytest.raises(DataError, match="Background classes are in no task, and the class of a"):
        split(overlapping, [0, 1], (0.6, 0.2, 0.2))
    data = from_arrays(np.zeros((4, 1)), list("abab"))
    with pytest.raises(SpecError, match="background must leave classes for tasks, got 2 of the 2"):
        Stream.of(data, ScenarioSettings(background=2))
    with pytest.raises(SpecError, match="background = 1 has no meaning here"):
        Stream.of(data, ScenarioSettings(background=1, scenario="instance-incremental", tasks=2))


def test_draws_of_one_class_and_of_one_task():
    stream = with_background()
    draws = {
        "class": Draw("background", 1, block=5, of_one="class"),
        "random": Draw("background", 7),
        "train": Draw("all", 4, block=2, of_one="task"),
        "validation": Draw("all", 4, split="validation", of_one="task"),
    }
    drawn = draw_rows(draws, supply_of(stream, [0, 5], 2, train=9), (2, 0), range(40))
    label = stream.y[drawn.row["class"].flatten(2)]
    assert (label == label[..., :1]).all() and set(label.unique().tolist()) == {3, 4, 5}
    distinct = drawn.row["class"].flatten(2).sort(-1).values.diff(dim=-1)
    assert (distinct > 0).all()
    assert set(stream.y[drawn.row["random"]].unique().tolist()) == {3, 4, 5}
    of_train, of_validation = drawn.task["train"].flatten(2), drawn.task["validation"]
    assert (of_train == of_validation[..., :1]).all()
    assert set(of_train.unique().tolist()) == {0, 1, 2}


@pytest.mark.parametrize(
    ("draw", "line"),
    [
        ({"source": "all", "batch": 1, "of_one": "class"}, "source = 'background', got 'all'"),
        ({"source": "new", "batch": 1, "of_one": "task"}, "source = 'all', got 'new'"),
    ],
)
def test_draws_of_one_are_of_one_source(draw, line):
    with pytest.raises(SpecError, match=line):
        Draw(**draw)


def test_what_is_missing_is_named():
    with pytest.raises(SpecError, match=r"the stream has none; set stream.background"):
        tiny_run(method("cml"))
    with pytest.raises(SpecError, match="wants 14 distinct rows of a background class, and one"):
        tiny_run(method("cml", trajectory=7), stream=with_background())
    values = own_rows_stream([[15, 15]])
    for name in ("cml", "anml"):
        with pytest.raises(SpecError, match=r"learns classes, .*, and a regression has neither"):
            tiny_run(method(name, pretraining="none"), stream=values, seeds=(0,))
    with pytest.raises(SpecError, match="rates must name a learning rate"):
        method("cml", rates=[])
    for setting in ({"options": ["l2_init"]}, {"schedule": "cosine"}):
        with pytest.raises(SpecError, match="own, which neither options nor a schedule change"):
            method("anml", **setting)


@pytest.mark.parametrize("name", ["cml", "anml", "oml"])
def test_batched_and_looped_alike(name):
    made, stream = method(name, inner=2), with_background()
    one, other = (tiny_run(made, stream=stream, engine=engine) for engine in (Looped(), Batched()))
    np.testing.assert_allclose(one.errors["test"].values, other.errors["test"].values)
    torch.testing.assert_close(one.theta, other.theta)


@pytest.mark.parametrize("name", ["cml", "oml"])
def test_a_run_that_was_stopped_ends_with_the_same_numbers(name, tmp_path):
    """Stopped between meta-training and stream, and between two tasks."""
    settings = {"training.batch": 1, "training.passes": 1, "network.hidden": 8, "workers": 1}
    options = {"methods": {name: method(name).to_table()}, "replicas": 2, "settings": settings}
    whole = dpmcl.run(with_background(), **options)
    options["out"] = tmp_path / "run"
    for at_report in (1, 2):
        interrupt(with_background(), at_report, checkpoint_seconds=0, **options)
    again = dpmcl.run(with_background(), **options)
    np.testing.assert_array_equal(again.errors[name].values, whole.errors[name].values)
    assert same_bits(again.theta, whole.theta)


def first_update(made, stream: Stream):
    """Return the state before and after the first update, its batches and its keys."""
    setup = setup_of(made, stream, (0,))
    phase = setup.phases[0][0]
    supply = Supply(setup.splits, {}, torch.tensor([0]))
    drawn = draw_rows(phase.draws, supply, (0, 0), range(1), update_keys=phase.keys)
    batches, key = drawn.batches(stream, torch.float64, 0, 0), drawn.key[0, 0]
    state = at(setup.start, 0)
    return setup.model, state, phase.update(state, batches, key), batches


def test_the_stream_begins_with_a_new_head_on_what_was_meta_trained():
    made = method("cml", meta_lr=0.1)
    _, before, after, _ = first_update(made, with_background())
    online = after.extra["online"]["prediction"]
    for rate in range(2):
        for name in ("2.weight", "2.bias"):
            assert torch.equal(online[name][rate], before.theta["prediction"][name])
        for name in ("0.weight", "0.bias"):
            assert torch.equal(online[name][rate], after.theta["prediction"][name])
    assert not torch.equal(online["0.weight"][0], before.theta["prediction"]["0.weight"])


def test_only_the_prediction_learns_at_the_stream_and_the_best_rate_answers():
    stream = with_background()
    meta = tiny_run(method("cml", passes=2, rates=[0.3]), stream=stream)
    both = tiny_run(method("cml", passes=2, rates=[1e-9, 0.3]), stream=stream)
    torch.testing.assert_close(meta.theta, both.theta)  # what is meta-trained
    first = (meta.errors["test"].values[:, 1], both.errors["test"].values[:, 1])
    np.testing.assert_array_equal(*first)  # at 1e-9 the first class is not learned
    plain = tiny_run(method("cml", pretraining="plain"), stream=stream)
    scratch = tiny_run(method("cml", pretraining="none"), stream=stream)
    assert plain.work.rows_backpropagated == 6 * (4 + 3)  # of the background; then the head alone
    assert (plain.work.rows_head, scratch.work.rows_head) == (3 * 7 * 2, 0)  # rows, at two rates
    assert scratch.work.rows_backpropagated == 3 * 7 * 2


def test_ftml_with_a_vanishing_inner_step_is_a_step_on_the_drawn_tasks_validation_rows():
    made = plugins.find("method", "oml")(
        reading="original", inner_lr=1e-14, optimiser="sgd", lr=0.1, batch=4, updates=3
    )
    stream = tiny_stream()
    model, before, after, batches = first_update(made, stream)
    grads = torch.func.grad(lambda theta: model.cost(theta, batches["seen"]))(before.theta)
    expected = tree_map(lambda a, g: a - 0.1 * g, before.theta, grads)
    torch.testing.assert_close(expected, after.theta, rtol=0, atol=1e-9)
    splits = split(stream, [0], (0.6, 0.2, 0.2))
    assert torch.isin(batches["seen"].row, splits.validation.row).all()
    assert torch.isin(batches["new"].row, splits.train.row).all()
    info = task_infos(stream, splits)[0]
    (adapt,) = made.evaluation_phases(model, info)
    assert (adapt.name, adapt.draws["new"].source) == ("adapt", "new")
    assert made.trains_on_validation and made.order == 2
