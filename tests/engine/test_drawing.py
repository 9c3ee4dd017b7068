"""Networks that draw from global generators in training: looped, by the key alone, never frozen."""

import os
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torchvision.ops import StochasticDepth

from conftest import Layer, model_of, refused, same_bits, tiny_run, tiny_stream
from dpmcl import Learner, ModelError, plugins
from dpmcl.core import keys
from dpmcl.core.generators import states
from dpmcl.core.model import Model
from dpmcl.core.tree import at, leaves
from dpmcl.engine import Batched, Looped
from dpmcl.engine.stepper import Stepper
from dpmcl.engine.traced import trace

X = torch.from_numpy(np.random.default_rng(0).normal(size=(40, 8))).float()
Y = np.repeat([*"abcd"], 10)


def in_training(noise) -> Layer:
    return Layer(lambda self, x: noise(x) if self.training else x)


def sequence(layer: nn.Module) -> Layer:
    """The last state of a recurrent layer, over a row's values."""
    return Layer(lambda self, x: self.layer(x[..., None])[0][:, -1], layer=layer)


def tokens(layer: nn.Module) -> Layer:
    """A layer over two tokens of each row."""
    return Layer(lambda self, x: self.layer(x.view(-1, 2, 4)).flatten(1), layer=layer)


def attention(self, x):
    x = x.view(-1, 2, 4)
    return self.layer(x, x, x)[0].flatten(1)


KINDS = {
    "dropout": (": Layer", lambda: in_training(lambda x: functional.dropout(x, 0.3))),
    "alpha": (": AlphaDropout", lambda: nn.AlphaDropout(0.3)),
    "features": (": FeatureAlphaDropout", lambda: nn.FeatureAlphaDropout(0.3)),
    "RReLU": (": RReLU", nn.RReLU),
    "depth": (": StochasticDepth", lambda: StochasticDepth(0.3, "row")),
    "noise": (": Layer", lambda: in_training(lambda x: x + torch.randn_like(x))),
    "NumPy": (": Layer", lambda: in_training(lambda x: x * float(np.random.normal()))),  # noqa: NPY002
    "Python": (": Layer", lambda: in_training(lambda x: x * random.random())),
    "LSTM": (
        ".layer: LSTM", lambda: sequence(nn.LSTM(1, 8, 2, batch_first=True, dropout=0.3))
    ),
    "attention": (
        ".layer: MultiheadAttention",
        lambda: Layer(attention, layer=nn.MultiheadAttention(4, 2, dropout=0.3, batch_first=True)),
    ),
    "transformer": (
        ".layer.self_attn: MultiheadAttention",
        lambda: tokens(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)),
    ),
}  # fmt: skip


def network(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), KINDS[kind][1](), nn.Tanh(), nn.Linear(8, 4))


def theta(learner: Learner):
    return learner._known.run.replicas.theta


@pytest.mark.parametrize("kind", KINDS)
def test_a_network_that_draws_is_looped_and_a_line_names_the_layer(kind, log_lines):
    settings = {"classes": [*"abcd"], "lr": 0.05, "updates": 2}
    module, before = network(kind), states()
    learner = Learner(module, replicas=2, **settings).learn(X, Y)
    assert states() == before
    (line,) = log_lines
    name = KINDS[kind][0]
    assert f"cannot be batched in representation.1{name} (it draws from a global" in line
    assert not same_bits(at(theta(learner), 0), at(theta(learner), 1))
    batched = Learner(module, replicas=2, engine="batched", **settings)
    refused(lambda: batched.learn(X, Y), name, "use engine = 'looped'", error=ModelError)


@pytest.mark.parametrize("kind", ["dropout", "Python", "LSTM"])
def test_what_is_drawn_is_the_replicas_own_and_the_same_after_a_stop(kind, tmp_path):
    settings = {"lr": 0.05, "updates": 4, "dtype": "float64"}
    module = network(kind)
    learner = Learner(module, replicas=2, **settings).learn(X[:20], Y[:20])
    learner.save(tmp_path)
    torch.rand(3)  # whatever else draws in between
    again = Learner.load(tmp_path, model=module).learn(X, Y)
    assert same_bits(theta(learner.learn(X, Y)), theta(again))
    alone = Learner(module, seed=1, **settings).learn(X[:20], Y[:20]).learn(X, Y)
    assert same_bits(at(theta(learner), 1), at(theta(alone), 0))
    assert learner.export(tmp_path / "model.pt2").exists()  # compared with the learner's answers


def test_draws_are_those_of_pytorch_seeded_by_the_key_even_after_tracing_would_begin():
    """By hand, over more updates than are run before one is traced; all rows are equal."""
    torch.manual_seed(0)
    drop = lambda: in_training(lambda x: functional.dropout(x, 0.3))  # noqa: E731
    h, g = nn.Sequential(nn.Linear(8, 8), drop()), nn.Sequential(drop(), nn.Linear(8, 4))
    x = X[:1].repeat(8, 1).double()
    learner = Learner(
        (h, g), method="naive", classes=[*"abcd"], seed=5, updates=60, batch=8, lr=0.01,
        optimiser="sgd", dtype="float64",
    ).learn(x, ["b"] * 8)  # fmt: skip
    h.double(), g.double()
    step = torch.optim.SGD([*h.parameters(), *g.parameters()], lr=0.01)
    for update in range(60):
        key = keys.derive(5, keys.Purpose.DROPOUT, step=update)
        out = x
        for part, module in enumerate((h, g)):
            words = keys.bits(key, 2, (1 << 21) + part)
            torch.manual_seed(int((words[0] << 31) | (words[1] >> 1)))
            out = module(out)
        step.zero_grad()
        functional.cross_entropy(out, torch.ones(8, dtype=torch.int64)).backward()
        step.step()
    expected = [*h.parameters(), *g.parameters()]
    for a, b in zip(leaves(at(theta(learner), 0)), expected, strict=True):
        torch.testing.assert_close(a, b.detach(), rtol=1e-10, atol=1e-12)


METHODS = {
    "dpmcl": {"third_term": "exact"},
    "oml": {"reading": "nested", "inner": 2, "order": 2},
    "anml": {},
}


def drawing_model(stream) -> Model:
    def built():
        noise = in_training(lambda x: functional.dropout(x, 0.3))
        return nn.Sequential(nn.Linear(2, 8), noise, nn.Tanh()), nn.Linear(8, stream.outputs)

    return model_of(stream, built)


def run(name: str, engine, seeds=(0, 1)):
    rule = plugins.find("method", name)(batch=4, updates=5, memory=20, **METHODS[name])
    return tiny_run(rule, seeds, engine, tasks=2, model=drawing_model(tiny_stream(2))).theta


@pytest.mark.parametrize("name", METHODS)
def test_no_method_s_update_that_draws_is_traced_mapped_or_captured(name):
    before = states()
    plain, stepper = run(name, Looped(Stepper(trace_after=None))), Stepper(trace_after=3)
    assert same_bits(plain, run(name, Looped(stepper)))
    assert [known.traced for known in stepper._known if known.runs > 3]
    assert not any(known.traced for known in stepper._known)
    assert same_bits(at(plain, 1), at(run(name, Looped(), (1,)), 0))
    for static in (True, False):
        with pytest.raises((ModelError, RuntimeError), match="vmap"):
            run(name, Batched(static=static))
    assert states() == before


def test_an_update_with_a_key_of_its_own_is_not_traced_either():
    model, constant = drawing_model(tiny_stream(2)), torch.tensor([1, 2])
    for key in (lambda: constant, lambda: torch.tensor([1, 2])):
        with pytest.raises(ValueError, match="depends on values of tensors"):
            trace(
                lambda theta, x, key=key: model.predict(theta, x, key()),
                model.init(0),
                torch.ones(3, 2).double(),
            )


def test_parts_updates_and_gates_draw_apart():
    model = drawing_model(tiny_stream(2)).gated("features")
    assert [part.lane - (1 << 21) for part in model.parts.values()] == [0, 1, 2]
    assert all(part.draws for part in model.parts.values())
    x, first, second = torch.rand(9, 2).double(), torch.tensor([1, 2]), torch.tensor([1, 3])
    first_draw, again, second_draw = (
        model.predict(model.init(0), x, k) for k in (first, first, second)
    )
    assert torch.equal(first_draw, again)
    assert not torch.equal(first_draw, second_draw)


def test_what_no_seed_decides_is_refused():
    wild = in_training(lambda x: x * torch.rand(()) * int.from_bytes(os.urandom(3), "big"))
    refused(
        lambda: Learner(nn.Sequential(nn.Linear(8, 8), wild, nn.Linear(8, 4))).learn(X, Y),
        "must follow from a seed", "representation.1: Layer", error=ModelError,
    )  # fmt: skip


def test_a_layer_that_draws_is_still_looked_at_in_evaluation_and_what_is_around_it_in_training():
    def mixing(self, x):
        return x - x.mean(0) if self.training else x

    for layer in (Layer(mixing), Layer(lambda self, x: x - x.mean(0))):
        noise = in_training(torch.randn_like)
        module = nn.Sequential(nn.Linear(8, 8), noise, layer, nn.Linear(8, 4))
        refused(lambda own=module: Learner(own).learn(X, Y), "only on its row", error=ModelError)


@pytest.mark.parametrize("engine", ["looped", "batched"])
def test_a_dropout_layer_used_twice_has_other_masks_each_time(engine):
    torch.manual_seed(0)
    twice = Layer(lambda self, x: self.layer(x) + 10 * self.layer(x), layer=nn.Dropout(0.5))
    network = lambda: (twice, nn.Linear(8, 4))  # noqa: E731
    model = Model.build(network, "classification", X, 4)
    key = torch.tensor([[1, 2], [1, 3]])
    once = lambda k: model.features({}, torch.ones(50, 8), k)  # noqa: E731
    both = torch.func.vmap(once)(key) if engine == "batched" else torch.stack([*map(once, key)])
    assert set(both.unique().tolist()) == {0.0, 2.0, 20.0, 22.0}
    assert not torch.equal(*both)
    assert torch.equal(once(key[0]), both[0])
