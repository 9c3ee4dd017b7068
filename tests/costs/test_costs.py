"""Costs in place of cross entropy and squared error: by hand, in every method, and a user's own."""

import importlib
import json
import sys

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import dpmcl
from conftest import TINY_SPEC, refused, same_bits, tiny_model, tiny_run, tiny_stream
from dpmcl import Learner, ModelError, SpecError, plugins
from dpmcl.core.batch import Batch
from dpmcl.core.cost import check_cost
from dpmcl.core.tree import leaves
from dpmcl.exceptions import FolderError
from dpmcl.methods.er import ER

OUTPUTS = torch.tensor([[1.0, 2.0, -1.0], [0.5, 0.0, 3.0]], dtype=torch.float64)
VALUES = torch.tensor([[1.0, 2.5, 2.0], [0.5, 0.0, 0.0]], dtype=torch.float64)
CLASSES = torch.tensor([0, 2])
X = np.random.default_rng(0).normal(size=(60, 3)) + np.repeat(np.eye(3) * 6, 20, axis=0)
NAMES = np.repeat(["a", "b", "c"], 20)


def cross_entropy(outputs, targets):
    """The usual cost of classes."""
    return functional.cross_entropy(outputs, targets, reduction="none")


def test_the_costs_of_the_package_by_hand():
    huber = plugins.find("cost", "huber")(OUTPUTS, VALUES)
    by_hand = [(0 + 0.5 * 0.5**2 + (3 - 0.5)) / 3, (0 + 0 + (3 - 0.5)) / 3]
    torch.testing.assert_close(huber, torch.tensor(by_hand, dtype=torch.float64))
    smooth = plugins.find("cost", "label_smoothing")(OUTPUTS, CLASSES)
    shares = OUTPUTS.exp() / OUTPUTS.exp().sum(1, keepdim=True)
    target = torch.full((2, 3), 0.1 / 3, dtype=torch.float64)
    target[[0, 1], CLASSES] += 0.9
    torch.testing.assert_close(smooth, -(target * shares.log()).sum(1))


def test_a_model_weighs_rows_and_leaves_out_classes_to_come():
    stream = tiny_stream()
    plain = tiny_model(stream)
    model = ER(cost="label_smoothing").modelled(plain.with_room(4, 6), 6)
    theta = model.init(0)
    x, y, w = stream.x[:3].double(), torch.tensor([0, 3, 1]), torch.tensor([1.0, 0.5, 0.0]).double()
    batch = Batch(x, y, w, torch.zeros(3, dtype=torch.int64))
    logits = model.predict(theta, x)[:, :4]
    each = functional.cross_entropy(logits, y, reduction="none", label_smoothing=0.1)
    expected = (each[0] + 0.5 * each[1]) / 1.5
    torch.testing.assert_close(model.cost(theta, batch), expected)
    usual = functional.cross_entropy(logits, y, reduction="none")
    torch.testing.assert_close(model.usual_losses(model.predict(theta, x), y), usual)
    assert ER().modelled(plain, 6).row_cost is None


@pytest.mark.parametrize("name", plugins.names("method"))
def test_every_method_takes_it(name):
    settings = {"updates": 3, "batch": 8, "memory": 30, "lr": 0.05}
    settings |= {"fisher_rows": 16} if name == "ewc" else {}
    method = plugins.find("method", name)
    usual, same, smooth = (
        tiny_run(method(**settings, cost=cost), tasks=2).theta
        for cost in (None, cross_entropy, "label_smoothing")
    )
    assert same_bits(usual, same)
    pairs = zip(leaves(usual), leaves(smooth), strict=True)
    assert not any(torch.equal(*pair) for pair in pairs)


def test_huber_steps_as_by_hand():
    """One step on one row whose error is beyond 1: the gradient is that of a slope of 1."""
    net = nn.Linear(3, 1).double()
    x, y = torch.ones(1, 3).double(), torch.tensor([100.0]).double()
    one = Learner((nn.Sequential(nn.Linear(3, 3).double()), net), cost="huber", method="naive",
                  optimiser="sgd", lr=0.5, updates=1, batch=1, dtype="float64")  # fmt: skip
    one.learn(x, y)
    (bias,) = (v for k, v in one._known.run.replicas.theta["prediction"].items() if k == "bias")
    torch.testing.assert_close(bias[0], net.bias + 0.5)


def test_a_learner_grows_under_it_and_is_saved_without_it(tmp_path):
    """Room for classes to come is none of its business: it is given the classes there are."""
    widths = set()

    def counting(outputs, targets):
        widths.add(outputs.shape[-1])
        return cross_entropy(outputs, targets)

    two = NAMES != "c"
    settings = {"updates": 30, "batch": 8, "lr": 0.1}
    usual, one = Learner(**settings), Learner(cost=counting, **settings)
    for each in (usual, one):
        each.learn(X[two], NAMES[two]).learn(X[~two], NAMES[~two])
    assert widths == {2, 3}
    assert np.allclose(usual.predict_proba(X), one.predict_proba(X), atol=1e-6)
    one.save(tmp_path / "m")
    refused(lambda: Learner.load(tmp_path / "m"), "bring it", "cost=mine", error=SpecError)
    again = Learner.load(tmp_path / "m", cost=counting)
    for each in (one, again, pickled(one)):
        each.learn(X, NAMES)
    assert (one.predict_proba(X) == again.predict_proba(X)).all()
    named = Learner(cost="label_smoothing", **settings).learn(X, NAMES)
    named.save(tmp_path / "m")
    assert (Learner.load(tmp_path / "m").predict_proba(X) == named.predict_proba(X)).all()
    refused(lambda: Learner.load(tmp_path / "m", cost=counting), "leave out cost=", error=SpecError)


def pickled(one):
    """A learner by way of cloudpickle, as a worker gets it."""
    return cloudpickle.loads(cloudpickle.dumps(one))


def test_a_run_names_it_and_knows_its_code(tmp_path, monkeypatch):
    """By name from a spec, as a function from Python; an edit of it is refused."""
    name = f"mycost_{tmp_path.name}"
    text = """
from torch.nn import functional

def squared(outputs, targets):
    return functional.cross_entropy(outputs, targets, reduction="none") ** 2
"""
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    squared = importlib.import_module(name).squared
    first = dpmcl.run(TINY_SPEC, cost=squared, out=tmp_path / "run")
    assert first.spec["training"]["cost"] == f"{name}:squared"
    by_name = dpmcl.run(TINY_SPEC, settings={"training.cost": f"{name}:squared"})
    usual = dpmcl.run(TINY_SPEC)
    all_three = (leaves(result.theta["er"]) for result in (first, by_name, usual))
    for leaf, named, plain in zip(*all_three, strict=True):
        assert torch.equal(leaf, named)
        assert not torch.equal(leaf, plain)
    assert name in str(json.loads((tmp_path / "run" / "code.json").read_text())["er"])
    one = first.learner("er")
    assert one._config.method.costing is squared
    refused(lambda: dpmcl.run(TINY_SPEC, out=tmp_path / "run"), "cost", error=FolderError)
    (tmp_path / f"{name}.py").write_text(text.replace("** 2", "** 3"))
    sys.modules.pop(name)
    importlib.invalidate_caches()
    refused(lambda: dpmcl.run(tmp_path / "run"), "squared", error=FolderError)
    for wrong, part in (
        (lambda outputs, targets: outputs, "at the top of a module"),
        ("hubert", "Did you mean 'huber'?"),
        (3, "cost must be"),
    ):
        refused(lambda wrong=wrong: dpmcl.run(TINY_SPEC, cost=wrong), part, error=SpecError)


WRONG = {
    "a mean over rows": (lambda o, y: cross_entropy(o, y).mean(), "one number a row"),
    "a value for each output": (lambda o, y: o.square(), "got torch.float32 (6, 3)"),
    "another type": (lambda o, y: cross_entropy(o, y).double(), "torch.float64 (6,)"),
    "no tensor": (lambda o, y: 0.5, "float"),
    "not finite": (lambda o, y: o[:, 0].log(), "must be finite, got nan"),
    "other rows": (lambda o, y: cross_entropy(o - o.mean(0), y), "that row's"),
    "other rows, in a small unit": (
        lambda o, y: 1e-7 * cross_entropy(o - o.mean(0), y),
        "that row's",
    ),
    "draws": (lambda o, y: cross_entropy(o, y) * torch.rand(len(o)), "draws or"),
    "no gradient": (lambda o, y: (o.argmax(1) != y).float(), "is 0 for every row"),
    "in place": (lambda o, y: cross_entropy(o.mul_(2), y), "changes in place"),
    "a branch": (lambda o, y: cross_entropy(o, y) * (1 if o.sum() > 0 else 2), "branches"),
    "fails": (lambda o, y: o @ y, "and fails"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_no_cost_is_refused(kind):
    cost, part = WRONG[kind]
    one = Learner(cost=cost, updates=2, classes=["a", "b", "c"])
    refused(lambda: one.learn(X, NAMES), part, "The cost 'test_costs:<lambda>'", error=ModelError)
    refused(lambda: one.predict(X), "learn(x, y) first", error=SpecError)


def test_a_cost_that_counts_the_classes_of_a_batch_is_refused():
    """Though in the first six made-up rows each class appears once."""

    def balanced(outputs, targets):
        return cross_entropy(outputs, targets) / (targets[:, None] == targets).sum(1)

    def check(cost):
        check_cost(cost, "mine", kind="classification", width=10, like=torch.zeros(()))

    check(cross_entropy)
    refused(lambda: check(balanced), "is another one beside other rows", error=ModelError)
