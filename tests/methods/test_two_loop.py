"""OML, CML and ANML: which parts move in which phase, and which rows each phase sees."""

from copy import deepcopy

import pytest
import torch

import dpmcl.training.setup
from conftest import (
    TWO_LOOPS,
    supply_of,
    tiny_model,
    tiny_network,
    tiny_run,
    tiny_stream,
    tiny_task,
)
from dpmcl import plugins
from dpmcl.core.model import initial_weights
from dpmcl.core.tree import at, leaves
from dpmcl.data.sampling import draw_rows
from dpmcl.exceptions import SpecError
from dpmcl.results.table import render

ALL = {"representation", "prediction"}
META = {"oml": ALL, "cml": {"prediction"}, "anml": ALL}
GRAD = {"oml": ALL, "cml": ALL, "anml": {"gate"}}
OUTER = {"oml": ALL, "cml": ALL, "anml": ALL | {"gate"}}


def build(name, **settings):
    base = {"optimiser": "adagrad", "lr": 0.05, "batch": 8, "memory": 30, "n_meta": 3, "n_grad": 4}
    return plugins.find("method", name)(**{**base, **settings})


def moved(before, after):
    """The parts of theta, and of its optimiser's state, that an update changed."""
    out = []
    for first, second in ((before.theta, after.theta), (before.optimiser, after.optimiser)):
        pairs = {p: zip(leaves(first[p]), leaves(second[p]), strict=True) for p in first}
        out.append({p for p, pair in pairs.items() if any(not torch.equal(*ab) for ab in pair)})
    assert out[0] == out[1]
    return out[0]


def run_one_update_of_each_phase(method):
    """(phase name, updates, the parts that it moved) for the second task."""
    stream = tiny_stream()
    model = method.prepare(tiny_model(stream))
    state = method.start(at(initial_weights(model, [0]), 0), tiny_task())
    supply, out = supply_of(stream, [0], 1, train=30, validation=30), []
    for number, phase in enumerate(method.phases(model, tiny_task(1))):
        drawn = draw_rows(phase.draws, supply, (1, number), range(1), update_keys=phase.keys)
        after = phase.update(state, drawn.batches(stream, model.dtype, 0, 0), drawn.key[0, 0])
        out.append((phase.name, phase.updates, moved(state, after)))
    return out


@pytest.mark.parametrize("name", TWO_LOOPS)
def test_the_phases_of_each_reading(name):
    phases = {
        "box": [("meta", 3, META[name]), ("grad", 4, GRAD[name])],
        "text": [("grad", 4, GRAD[name]), ("meta", 3, META[name])],
        "nested": [("nested", 3, OUTER[name])],
        "box-literal": [("meta", 3, set()), ("grad", 4, GRAD[name])],
    }
    for reading, expected in phases.items():
        if (name, reading) != ("anml", "box-literal"):
            assert run_one_update_of_each_phase(build(name, reading=reading, inner=2)) == expected
    with pytest.raises(SpecError, match="must be 'box', 'text', 'nested' or 'original', got"):
        build("anml", reading="box-literal")


ROWS = {
    "box": {"meta": {("memory", "train")}, "grad": {("new", "train")}},
    "text": {"grad": {("new", "train")}, "meta": {("memory", "validation")}},
    "nested": {"nested": {("new", "train"), ("memory", "validation")}},
}


@pytest.mark.parametrize("reading", ROWS)
@pytest.mark.parametrize("name", TWO_LOOPS)
def test_each_phase_sees_the_rows_that_its_reading_says(name, reading, monkeypatch):
    """Of 36 validation rows, 12 a task, as many stay as `memory` says, new ones among them."""
    discount = {"discount": {"name": "exponential", "rate": 0.1}, "discount_on": "sampling"}
    method = build(name, reading=reading, inner=2, memory=7, n_meta=20, **discount)
    phases = method.phases(method.prepare(tiny_model(tiny_stream())), tiny_task())
    assert {p.name: {(d.source, d.split) for d in p.draws.values()} for p in phases} == ROWS[
        reading
    ]
    touched, task_of = {}, tiny_stream().task[0]

    def spy(draws, supply, position, steps, **more):
        out = draw_rows(draws, supply, position, steps, **more)
        for key, draw in draws.items():
            rows = set(out.row[key][0][out.present[key][0] > 0].tolist())
            assert rows <= set(supply.splits.named(draw.split).row[0].tolist())
            if draw.split == "validation":
                assert int(supply.held["validation"].filled[0]) == min(7, 12 * (position[0] + 1))
                touched.setdefault(position[0], set()).update(rows)
        return out

    monkeypatch.setattr(dpmcl.training.setup, "draw_rows", spy)
    tiny_run(method, seeds=(0,))
    assert bool(touched) == (reading != "box")
    for task, rows in touched.items():
        assert len(rows) <= 7
        assert task in {int(task_of[row]) for row in rows}


@pytest.mark.parametrize(("name", "inner_lr"), [("oml", None), ("cml", 0.01)])
def test_the_literal_box_is_what_plain_pytorch_makes_of_it(name, inner_lr, monkeypatch):
    """theta~ from theta on D_PN, then theta by the cost at theta~, as the box says; two tasks."""
    batches = {}

    def spy(draws, supply, position, steps, **more):
        out = draw_rows(draws, supply, position, steps, **more)
        for step in steps:
            drawn = out.batches(stream, torch.float64, step - steps.start, 0)
            batches[(*position, step)] = drawn["batch"]
        return out

    stream = tiny_stream(2)
    monkeypatch.setattr(dpmcl.training.setup, "draw_rows", spy)
    method = build(name, reading="box-literal", n_meta=5, n_grad=4, inner_lr=inner_lr)
    actual = tiny_run(method, seeds=(0,), tasks=2).theta

    h, g = (module.double() for module in tiny_network(stream.outputs))
    start = at(initial_weights(tiny_model(stream), [0]), 0)
    h.load_state_dict(start["representation"])
    g.load_state_dict(start["prediction"])
    theta = {"representation": h, "prediction": g}
    parameters = [p for net in theta.values() for p in net.parameters()]
    optimiser = torch.optim.Adagrad(parameters, lr=0.05)
    for task in range(2):
        ahead = {part: deepcopy(theta[part]) for part in META[name]}
        nets = {**theta, **ahead}
        moving = [p for net in ahead.values() for p in net.parameters()]
        inner = torch.optim.Adagrad(moving, lr=inner_lr or 0.05)
        for update in range(5):
            b = batches[task, 0, update]
            inner.zero_grad()
            out = nets["prediction"](nets["representation"](b.x))
            torch.nn.functional.cross_entropy(out, b.y).backward()
            inner.step()
        for update in range(4):
            b = batches[task, 1, update]
            out = nets["prediction"](nets["representation"](b.x))
            cost = torch.nn.functional.cross_entropy(out, b.y)
            at_ahead = [p for part in theta for p in nets[part].parameters()]
            for p, grad in zip(parameters, torch.autograd.grad(cost, at_ahead), strict=True):
                p.grad = grad
            optimiser.step()
    for part, net in theta.items():
        for key, value in net.state_dict().items():
            torch.testing.assert_close(actual[part][key][0], value, rtol=1e-12, atol=1e-12)


def test_the_table_says_who_trains_on_validation_rows(tmp_path):
    settings = {"training.updates": 2, "methods.cml.reading": "box", "stream.classes_per_task": 5}
    folder = tmp_path / "run"
    names = ["er", *TWO_LOOPS]
    dpmcl.run("digits", methods=names, replicas=1, settings=settings, out=folder)
    result = dpmcl.load(folder)
    footnote = (
        "oml on digits: trains on validation rows too, which methods without this line never see."
    )
    for rows in (result.rows(), result.rows_by_task()):
        assert {r["method"] for r in rows if r["trains_on_validation"]} == {"oml"}
        assert render(rows, "text").splitlines()[len(rows) + 2 :] == [footnote]


def test_a_gate_multiplies_features_or_outputs():
    plain = tiny_model(tiny_stream())
    x = torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    theta = plain.gated("features").init(0)
    h = plain.features(theta["representation"], x)
    gate = plain.features(theta["gate"], x)
    expected = plain.outputs(theta["prediction"], h * torch.sigmoid(gate))
    assert torch.equal(plain.gated("features").predict(theta, x), expected)

    theta = plain.gated("outputs").init(0)
    halves = [
        {k.removeprefix(f"{i}."): v for k, v in theta["gate"].items() if k.startswith(f"{i}.")}
        for i in (0, 1)
    ]
    other = plain.predict(dict(zip(("representation", "prediction"), halves, strict=True)), x)
    actual = plain.gated("outputs").predict(theta, x)
    torch.testing.assert_close(actual, plain.predict(theta, x) * other)


@pytest.mark.parametrize(("updates", "each"), [(1, 1), (3, 1), (9, 4)])
def test_each_loop_has_half_of_the_updates_and_one_at_least(updates, each):
    method = build("oml", updates=updates, n_meta=None, n_grad=None)
    assert (method.n_meta, method.n_grad) == (each, each)
