"""A model is a pure function of its parameters and a key."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from conftest import Layer, refused, same_bits, tiny_model, tiny_network, tiny_stream
from dpmcl import plugins
from dpmcl.core import keys
from dpmcl.core.batch import Batch, weighted_mean
from dpmcl.core.generators import forked, states
from dpmcl.core.keys import Purpose
from dpmcl.core.model import Model, has_convolution, initial_weights
from dpmcl.core.part import Part
from dpmcl.core.tree import at, leaves
from dpmcl.exceptions import ModelError


def key_of(step: int) -> torch.Tensor:
    return keys.derive(0, Purpose.DROPOUT, step=step)


def build(h: nn.Module, g: nn.Module, width: int = 2, outputs: int = 3, kind="classification"):
    example = torch.ones(4, width, dtype=torch.float64)
    return Model.build(lambda: (h, g), kind, example, outputs, dtype=torch.float64)


def masks(h: nn.Module, key: torch.Tensor | None, *shape: int) -> torch.Tensor:
    """What a module of dropout layers makes of ones."""
    ones = torch.ones(shape or (200, 500), dtype=torch.float64)
    width = ones[0].numel()
    model = Model.build(
        lambda: (nn.Sequential(h, nn.Flatten()), nn.Linear(width, 3)),
        "classification",
        ones[:4],
        3,
        dtype=torch.float64,
    )
    return model.features({}, ones, key).view(ones.shape)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.8, 1.0])
def test_a_share_p_is_dropped_by_key_and_the_mean_is_kept(p):
    mask = masks(nn.Dropout(p), key_of(0))
    assert abs(float((mask == 0).double().mean()) - p) < 0.008
    assert set(mask.unique().tolist()) <= {0.0, 1 / (1 - p) if p < 1 else 0.0}
    assert torch.equal(mask, masks(nn.Dropout(p), key_of(0)))
    assert torch.equal(mask, masks(nn.Dropout(p), key_of(1))) == (p in (0, 1))
    assert (masks(nn.Dropout(p), None) == 1).all()


@pytest.mark.parametrize(
    ("kind", "shape"), [(nn.Dropout1d, (6,)), (nn.Dropout2d, (3, 2)), (nn.Dropout3d, (3, 2, 2))]
)
def test_channel_dropout_drops_whole_channels(kind, shape):
    mask = masks(kind(0.5), key_of(0), 20, 10, *shape).flatten(2)
    assert torch.equal(mask, mask[..., :1].expand_as(mask))
    assert 0.35 < float((mask[..., 0] == 0).double().mean()) < 0.65


@pytest.mark.parametrize("shared", [False, True])
def test_each_position_of_a_dropout_layer_has_masks_of_its_own(shared):
    first, second = nn.Dropout(0.5), nn.Dropout(0.5)
    inner = nn.ModuleList([first, first if shared else second])
    mask = masks(Layer(lambda self, x: self.inner[1](self.inner[0](x)), inner=inner), key_of(0))
    assert float((mask > 0).double().mean()) == pytest.approx(0.25, abs=0.01)


def test_the_users_modules_stay_as_they_are():
    h = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.BatchNorm1d(4), nn.ReLU(True)).eval()
    g = nn.Sequential(nn.Dropout(0.2), nn.Linear(4, 3))
    before = {k: v.clone() for k, v in h.state_dict().items()}
    model = build(h, g)
    model.predict(model.init(0), torch.ones(4, 2).double(), key_of(0))
    assert [type(m) for m in h] == [nn.Linear, nn.Dropout, nn.BatchNorm1d, nn.ReLU]
    assert [type(layer) for layer in g] == [nn.Dropout, nn.Linear]
    assert (h.training, g.training, h[3].inplace) == (False, True, True)
    assert all(p.requires_grad and p.dtype == torch.float32 for p in h.parameters())
    assert all(torch.equal(v, before[k]) for k, v in h.state_dict().items())


class Slow(nn.Module):
    """A linear layer whose first pass waits for the second one, which waits for its end."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1, bias=False)
        self.entered, self.entered_again, self.left = (threading.Event() for _ in range(3))

    def forward(self, x):
        if self.entered.is_set():
            self.entered_again.set()
            self.left.wait()
            return self.linear(x)
        self.entered.set()
        self.entered_again.wait(0.2)
        out = self.linear(x)
        self.left.set()
        return out


def test_threads_that_predict_at_once_have_their_own_parameters():
    part = Part(Slow(), Slow(), {}, {}, {}, {}, ())
    weights = [torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 5.0]])]

    def out(weight):
        return part.apply({"linear.weight": weight}, torch.ones(1, 2), None)[0].item()

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(out, weights)) == [1.0, 5.0]


def test_frozen_parameters_are_constants_and_tied_ones_follow():
    """h: one frozen layer, one whose weight stands in two places."""

    def network():
        pretrained, layer, twin = (nn.Linear(2, 2) for _ in range(3))
        twin.weight = layer.weight
        with torch.no_grad():
            pretrained.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
            pretrained.bias.zero_()
        return nn.Sequential(pretrained.requires_grad_(False), layer, twin), nn.Linear(2, 3)

    example = torch.rand(4, 2, dtype=torch.float64)
    model = Model.build(network, "classification", example, 3, dtype=torch.float64)
    theta = model.init(1)
    assert list(theta["representation"]) == ["1.weight", "1.bias", "2.bias"]
    h = theta["representation"]
    seen = example @ torch.tensor([[1.0, 2.0], [3.0, 4.0]]).double().T
    expected = (seen @ h["1.weight"].T + h["1.bias"]) @ h["1.weight"].T + h["2.bias"]
    torch.testing.assert_close(model.features(h, example), expected)
    assert set(model.gated("features").init(1)["gate"]) == set(h)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_initial_weights_are_the_layers_own_draw_by_seed(dtype):
    model = tiny_model(tiny_stream(), dtype)
    theta = initial_weights(model, [4, 5])
    key = keys.derive(5, Purpose.WEIGHTS)
    with forked(int((key[0] << 31) | (key[1] >> 1))):
        modules = tiny_network()
    expected = [p.detach().to(dtype) for module in modules for p in module.parameters()]
    assert same_bits(at(theta, 1), tuple(expected))
    assert not any(torch.equal(leaf[0], leaf[1]) for leaf in leaves(theta))
    assert same_bits(at(theta, 0), model.init(4))


def test_global_generators_are_neither_read_nor_changed():
    def factory():
        h, g = tiny_network()
        h[0].bias.data += random.random() + np.random.rand()  # noqa: NPY002
        return h, g

    before = states()
    model = Model.build(factory, "classification", torch.ones(2, 2), 6)
    first = model.init(0)
    assert states() == before
    torch.rand(3), random.random(), np.random.rand()  # noqa: NPY002
    assert same_bits(first, model.init(0))


@pytest.fixture(scope="module")
def classifier():
    return build(nn.Identity(), nn.Linear(2, 3))


def batch_of(*w: float) -> Batch:
    x = torch.tensor([[1.0, 2.0], [0.5, -1.0], [9.0, 9.0]], dtype=torch.float64)
    return Batch(x, torch.tensor([0, 2, 1]), torch.tensor(w).double(), torch.zeros(3).long())


def test_errors_of_classes_are_zero_or_one_and_of_what_is_not_finite_one(classifier):
    nan, inf = float("nan"), float("inf")
    right = [[3.0, 1.0, 2.0], [1.0, 0.0, -3.0]]
    wrong = [[0.0, 5.0, 1.0], [nan, 0, 0], [inf, 0, 0], [1.0, -inf, 0], [nan] * 3]
    logits = torch.tensor(right + wrong)
    errors = classifier.errors(logits, torch.zeros(7, dtype=torch.int64))
    assert errors.dtype == torch.float64
    assert errors.tolist() == [0.0] * 2 + [1.0] * 5
    within = torch.tensor([[True, False, True]])
    assert classifier.errors(logits[2:3], torch.tensor([2]), within).tolist() == [0.0]


def test_losses_and_errors_of_values_are_the_mean_squared_error():
    regressor = build(nn.Identity(), nn.Linear(2, 2), outputs=2, kind="regression")
    outputs, y = torch.tensor([[1.0, 2.0], [0.0, -1.0]]), torch.tensor([[0.0, 4.0], [0.0, 1.0]])
    for values in (regressor.losses(outputs, y), regressor.errors(outputs, y)):
        assert values.tolist() == [(1.0 + 4.0) / 2, (0.0 + 4.0) / 2]
    assert regressor.errors(outputs, y).dtype == torch.float64


@pytest.mark.parametrize("w", [(1.0, 1.0, 0.0), (1.0, 0.0, 3.0), (0.0, 0.0, 0.0)])
def test_the_cost_is_the_weighted_mean_and_zero_without_rows(classifier, w):
    theta, batch = classifier.init(0), batch_of(*w)
    grads, value = torch.func.grad_and_value(classifier.cost)(theta, batch)
    losses = classifier.losses(classifier.predict(theta, batch.x), batch.y)
    expected = sum(a * b for a, b in zip(w, losses.tolist(), strict=True)) / max(sum(w), 1)
    assert float(value) == pytest.approx(expected, rel=1e-12)
    assert all((leaf == 0).all() for leaf in leaves(grads)) == (sum(w) == 0)
    assert float(weighted_mean(losses, batch.w)) == pytest.approx(expected)


def network(name: str, shape, outputs: int, **settings):
    return plugins.find("network", name)(**settings).build(shape, outputs)


@pytest.mark.parametrize(
    ("name", "shape", "h", "g"),
    [
        (
            "lenet",
            (1, 28, 28),
            [(6, 1, 5, 5), (16, 6, 5, 5)],
            [(512, 256), (512, 512), (10, 512)],
        ),
        ("lenet", (3, 16, 20), [(6, 3, 5, 5), (16, 6, 5, 5)], [(512, 32), (512, 512), (10, 512)]),
        ("omninet", (1, 28, 28), [(32, 1, 5, 5), (64, 32, 5, 5)], [(100, 3136), (10, 100)]),
        ("omninet", (2, 5, 9), [(32, 2, 5, 5), (64, 32, 5, 5)], [(100, 128), (10, 100)]),
        ("sinenet", (3,), [(100, 3), (100, 100), (3, 100)], [(100, 3), (100, 100), (10, 100)]),
        ("mlp", (2, 3, 4), [(100, 24), (100, 100)], [(100, 100), (10, 100)]),
    ],
)
def test_every_network_has_its_printed_layers_and_makes_a_model(name, shape, h, g):
    modules = network(name, shape, 10)
    for module, shapes in zip(modules, (h, g), strict=True):
        parameters = dict(module.named_parameters())
        weights = [tuple(p.shape) for k, p in parameters.items() if k.endswith("weight")]
        assert weights == shapes
        assert len(parameters) == 2 * len(weights)  # each has a bias
    layers = list(modules[0].modules())
    assert [m.p for m in layers if isinstance(m, nn.Dropout)] == [0.5] * (name == "lenet")
    padding = {m.padding for m in layers if isinstance(m, nn.Conv2d)}
    assert padding == {"lenet": {(0, 0)}, "omninet": {(2, 2)}}.get(name, set())
    example = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    model = Model.build(lambda: network(name, shape, 10), "classification", example, 10)
    assert model.predict(model.init(0), example, key_of(0)).shape == (2, 10)
    assert has_convolution(model) == (name in ("lenet", "omninet"))


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("lenet", (1, 8, 8), "of at least 16x16, got inputs of shape (1, 8, 8)"),
        (
            "lenet",
            (64,),
            "takes images (channels, height, width) of at least 16x16, got inputs of shape (64,)",
        ),
        ("omninet", (1, 3, 28), "of at least 4x4, got inputs of shape (1, 3, 28)"),
        ("sinenet", (1, 8, 8), "takes vectors, got inputs of shape (1, 8, 8)"),
    ],
)
def test_a_network_for_other_shapes_says_so(name, shape, message):
    build = lambda: network(name, shape, 10)  # noqa: E731
    refused(build, message, "use network = 'mlp'", error=ModelError)
