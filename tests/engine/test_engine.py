"""Two forms of one meaning: batched equals looped, and alone equals among ten."""

import pytest
import torch
from torch import nn

from conftest import Layer, same_bits, tiny_model, tiny_run, tiny_stream
from dpmcl import plugins
from dpmcl.core.model import Model
from dpmcl.core.tree import at
from dpmcl.engine import Batched, Looped, choose
from dpmcl.engine.stepper import Stepper
from dpmcl.exceptions import ModelError

METHODS = plugins.names("method")


@pytest.mark.parametrize("method", METHODS)
def test_a_replica_learns_the_same_alone_and_among_ten(method):
    """Looped alone, traced or not, and as one of two, and batched among ten."""
    rule = plugins.find("method", method)(lr=0.01, batch=4, updates=6, memory=20)
    alone = tiny_run(rule, seeds=(7,), tasks=2, dropout=0.2)
    traced = tiny_run(rule, (7,), Looped(Stepper(trace_after=2)), tasks=2, dropout=0.2)
    assert same_bits(traced.theta, alone.theta)
    assert (traced.errors["test"].after[:, 1] == alone.errors["test"].after[:, 1]).all()
    pair = tiny_run(rule, seeds=(3, 7), tasks=2, dropout=0.2)
    torch.testing.assert_close(at(pair.theta, 1), at(alone.theta, 0), rtol=0, atol=0)
    assert (pair.errors["test"].values[1] == alone.errors["test"].values[0])[1].any()
    batched = tiny_run(rule, seeds=tuple(range(10)), engine=Batched(), tasks=2, dropout=0.2)
    torch.testing.assert_close(at(batched.theta, 7), at(alone.theta, 0), rtol=1e-9, atol=1e-9)


def convolutional() -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten()), nn.Linear(2 * 36, 3)


def model(network, example, outputs=3):
    return Model.build(network, "classification", example, outputs)


def test_auto_is_a_function_of_network_device_replicas_and_batch():
    dense = tiny_model(tiny_stream(), torch.float32)
    points = tiny_stream().example(torch.float32)
    images = torch.rand(2, 1, 8, 8)
    wide = model(convolutional, images)
    for name, network, example, replicas, batch, expected in [
        ("auto", dense, points, 10, 32, "batched"),
        ("auto", dense, points, 1, 32, "looped"),
        ("auto", wide, images, 10, 65, "looped"),
        ("auto", wide, images, 10, 64, "batched"),
        ("auto", dense, points, 10, 512, "batched"),
        ("batched", wide, images, 10, 512, "batched"),
    ]:
        assert choose(name, network, example, replicas=replicas, batch=batch).name == expected
    assert choose("looped", dense, points, replicas=10, batch=32).name == "looped"


class Mistaken(torch.autograd.Function):
    """Twice x; but mapped, three times x, or (`of_gradient`) with the gradient of that."""

    @staticmethod
    def forward(x, of_gradient):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.of_gradient = inputs[1]

    @staticmethod
    def backward(ctx, grad):
        return (Mistaken.apply(grad, False) if ctx.of_gradient else grad * 2), None

    @staticmethod
    def vmap(info, in_dims, x, of_gradient):
        return x * (2 if of_gradient else 3), in_dims[0]


class Float32(nn.Linear):
    def forward(self, x):
        return super().forward(x.to(torch.float32))


def masked() -> nn.Module:
    """A layer that has one whose result is a mask."""
    return Layer(lambda self, x: x * self.positive(x), positive=Layer(lambda self, x: x > 0))


def slope() -> nn.Module:
    """A layer that returns the gradient of an energy, by row."""

    def gradient(self, x):
        return torch.func.vmap(torch.func.grad(lambda row: self.energy(row).tanh().sum()))(x)

    return Layer(gradient, energy=nn.Linear(8, 8))


@pytest.mark.parametrize(
    ("make", "unit"),
    [
        (lambda: Float32(4, 8), 1.0),  # is compared in float32
        (lambda: nn.Sequential(nn.Linear(4, 8), masked()), 1.0),
        (lambda: nn.Sequential(nn.Linear(4, 8), slope()), 1.0),
        (lambda: nn.Linear(4, 8), 1e-15),
        (lambda: nn.Linear(4, 8), 1e15),
    ],
)
def test_types_masks_gradients_and_the_unit_of_inputs_do_not_hinder_batching(make, unit, log_lines):
    x = torch.rand(6, 4)
    network = model(lambda: (make(), nn.Linear(8, 3)), x)
    assert choose("auto", network, unit * x, replicas=2, batch=8).name == "batched"
    assert not log_lines


@pytest.mark.parametrize("unit", [nn.Identity(), Layer(lambda self, x: 1e-6 * x)])
@pytest.mark.parametrize(
    ("of_gradient", "name"),
    [(False, "representation.1: Layer"), (True, "the gradient of representation.0.")],
)
def test_a_layer_that_gives_other_numbers_when_mapped_is_named(
    of_gradient, name, unit, log_lines, caplog
):
    scaled = Layer(lambda self, x: Mistaken.apply(x, of_gradient))
    layers = nn.Sequential(nn.Linear(4, 8), scaled, unit, nn.Linear(8, 8, bias=False))
    last, x = nn.Linear(8, 3, bias=False), torch.rand(6, 4)
    network = model(lambda: (layers, last), x)
    assert choose("auto", network, x, replicas=2, batch=8).name == "looped"
    (line,) = log_lines
    assert caplog.records[0].once == line  # so a run's workers do not say it again
    assert f"cannot be batched in {name}" in line
    assert "other numbers when it is mapped" in line
    with pytest.raises(ModelError, match=name):
        choose("batched", network, x, replicas=2, batch=8)
    assert choose("auto", network, x, replicas=1, batch=8).name == "looped"
    assert len(log_lines) == 1
