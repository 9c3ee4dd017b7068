"""OML, CML and ANML: which parts move in which phase, and which rows each phase sees."""

import pytest
import torch

import dpmcl.runner
from conftest import tiny_model, tiny_run, tiny_stream
from dpmcl import plugins
from dpmcl.model import initial
from dpmcl.sampling import chunk
from dpmcl.splits import split
from dpmcl.tree import at, leaves

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
    splits = split(stream, [0], (0.6, 0.2, 0.2))
    model = method.prepare(tiny_model(stream))
    state = method.start(at(initial(model, [0]), 0))
    held = dpmcl.memory.Memory(
        splits.train.offset[:, 0:1] + torch.arange(30), torch.tensor([30]), torch.tensor([30])
    )
    out = []
    for number, phase in enumerate(method.phases(model, 1)):
        drawn = chunk(
            phase.draws, splits, held, torch.tensor([0]), (1, number), range(1), phase.keys
        )
        after = phase.update(state, drawn.batches(stream, model.dtype, 0, 0), drawn.key[0, 0])
        out.append((phase.name, phase.updates, moved(state, after)))
    return out


@pytest.mark.parametrize("name", ["oml", "cml", "anml"])
def test_the_phases_of_each_reading(name):
    box = run_one_update_of_each_phase(build(name, reading="box"))
    assert box == [("meta", 3, META[name]), ("grad", 4, GRAD[name])]
    text = run_one_update_of_each_phase(build(name, reading="text"))
    assert text == [("grad", 4, GRAD[name]), ("meta", 3, META[name])]
    nested = run_one_update_of_each_phase(build(name, reading="nested", inner=2))
    assert nested == [("nested", 3, OUTER[name])]


ROWS = {
    "box": {"meta": {("memory", "train")}, "grad": {("new", "train")}},
    "text": {"grad": {("new", "train")}, "meta": {("all", "validation")}},
    "nested": {"nested": {("new", "train"), ("all", "validation")}},
}


@pytest.mark.parametrize("reading", ["box", "text", "nested"])
@pytest.mark.parametrize("name", ["oml", "cml", "anml"])
def test_each_phase_sees_the_rows_that_its_reading_says(name, reading, monkeypatch):
    method = build(name, reading=reading, inner=2)
    phases = method.phases(method.prepare(tiny_model(tiny_stream())), 0)
    found = {p.name: {(d.source, d.split) for d in p.draws.values()} for p in phases}
    assert found == ROWS[reading]

    touched = {"train": set(), "validation": set()}
    allowed = {}

    def spy(draws, splits, *rest, **more):
        out = chunk(draws, splits, *rest, **more)
        for key, draw in draws.items():
            touched[draw.split] |= set(out.row[key][0][out.present[key][0]].tolist())
        allowed.update({s: set(splits.named(s).row[0].tolist()) for s in touched})
        return out

    monkeypatch.setattr(dpmcl.runner, "chunk", spy)
    tiny_run(method, seeds=(0,))
    assert touched["train"] <= allowed["train"]
    assert touched["validation"] <= allowed["validation"]
    assert bool(touched["validation"]) == (reading != "box")


def test_half_of_the_updates_go_to_each_loop_unless_told():
    method = plugins.find("method", "oml")(updates=300)
    assert (method.n_meta, method.n_grad) == (150, 150)


def test_oml_forgets_when_the_new_task_has_the_last_word():
    def error(reading):
        method = build("oml", reading=reading, n_meta=60, n_grad=60)
        return tiny_run(method).errors["test"].after[:, -1].mean()

    assert error("text") + 0.1 < error("box")


def test_a_gate_leaves_the_other_weights_as_they_are():
    plain = tiny_model(tiny_stream())
    for gate in ("features", "outputs"):
        gated = plain.gated(gate)
        first, second = plain.init(3), gated.init(3)
        assert set(second) == {*first, "gate"}
        for part in first:
            pairs = zip(leaves(first[part]), leaves(second[part]), strict=True)
            assert all(torch.equal(a, b) for a, b in pairs)


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
    found = plain.gated("outputs").predict(theta, x)
    torch.testing.assert_close(found, plain.predict(theta, x) * other)


def test_a_gate_is_evaluated_too():
    errors = tiny_run(build("anml", reading="text", n_meta=60, n_grad=10)).errors["test"]
    assert errors.after[:, 0, 0].max() < 0.1
