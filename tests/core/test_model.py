"""A model is a pure function of its parameters and a key; what would break that is refused."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from conftest import tiny_model, tiny_network, tiny_stream
from dpmcl import plugins
from dpmcl.core import keys
from dpmcl.core.batch import Batch, join, weighted_mean
from dpmcl.core.generators import forked
from dpmcl.core.keys import Purpose
from dpmcl.core.model import Model, has_convolution, initial
from dpmcl.core.part import KeyedDropout
from dpmcl.core.tree import leaves
from dpmcl.exceptions import ModelError


def key_of(step: int) -> torch.Tensor:
    return keys.derive(0, Purpose.DROPOUT, step=step)


def build(h: nn.Module, g: nn.Module, width: int = 2, outputs: int = 3, kind="classification"):
    example = torch.ones(4, width, dtype=torch.float64)
    return Model.build(lambda: (h, g), kind, example, outputs, dtype=torch.float64)


def dropout_model(layer: nn.Module) -> Model:
    """h is the layer alone; g is there because a model has one."""
    return build(nn.Sequential(layer), nn.Linear(2, 3))


def masks(model: Model, key: torch.Tensor, shape=(100, 100)) -> torch.Tensor:
    return model.features({}, torch.ones(shape, dtype=torch.float64), key)


def global_states():
    return (
        torch.random.get_rng_state().tolist(),
        str(np.random.get_state()),  # noqa: NPY002
        random.getstate(),
    )


def linear_shapes(module: nn.Module) -> list[tuple[int, int]]:
    return [(m.in_features, m.out_features) for m in module.modules() if isinstance(m, nn.Linear)]


def network(name: str, shape, outputs: int, **settings):
    return plugins.find("network", name)(**settings).build(shape, outputs)


# ---------------------------------------------------------------------------------- dropout


def test_a_mask_is_a_function_of_its_key():
    model = dropout_model(nn.Dropout(0.5))
    assert torch.equal(masks(model, key_of(0)), masks(model, key_of(0)))
    assert not torch.equal(masks(model, key_of(0)), masks(model, key_of(1)))


def test_two_dropout_layers_have_masks_of_their_own():
    model = build(nn.Sequential(nn.Dropout(0.5)), nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 3)))
    first = model.parts["representation"].training[0]
    second = model.parts["prediction"].training[0]
    assert isinstance(first, KeyedDropout)
    assert isinstance(second, KeyedDropout)
    assert first.lane != second.lane
    ones = torch.ones(100)
    made = [
        torch.func.functional_call(layer, {"key": key_of(0)}, (ones,)) for layer in (first, second)
    ]
    assert not torch.equal(*made)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_the_share_that_is_dropped_is_p_and_the_mean_is_kept(p):
    mask = masks(dropout_model(nn.Dropout(p)), key_of(0), (200, 500))
    assert abs(float((mask == 0).double().mean()) - p) < 0.008
    assert abs(float(mask.mean()) - 1) < 0.04
    torch.testing.assert_close(float(mask.max()), 1 / (1 - p))


@pytest.mark.parametrize(("p", "value"), [(0.0, 1.0), (1.0, 0.0)])
def test_dropout_of_nothing_and_of_everything(p, value):
    assert (masks(dropout_model(nn.Dropout(p)), key_of(0)) == value).all()


def test_evaluation_has_no_dropout():
    assert (masks(dropout_model(nn.Dropout(0.5)), None) == 1).all()


def test_a_mask_is_the_same_alone_and_under_vmap():
    stream = tiny_stream()
    model = tiny_model(stream, dropout=0.5)
    theta = initial(model, [0, 1, 2])
    many = torch.stack([key_of(step) for step in range(3)])

    def features(theta, key):
        return model.features(theta["representation"], stream.x[:20], key)

    together = torch.func.vmap(features)(theta, many)
    for replica in range(3):
        alone = features(model.init(replica), many[replica])
        assert torch.equal(together[replica] == 0, alone == 0)
        torch.testing.assert_close(together[replica], alone)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Dropout1d(0.5), (20, 10, 6)),
        (nn.Dropout2d(0.5), (20, 10, 3, 2)),
        (nn.Dropout3d(0.5), (20, 10, 3, 2, 2)),
    ],
)
def test_channel_dropout_drops_whole_channels(layer, shape):
    h = nn.Sequential(layer, nn.Flatten())
    example = torch.ones(shape, dtype=torch.float64)
    width = example[0].numel()
    model = Model.build(
        lambda: (h, nn.Linear(width, 3)), "classification", example, 3, dtype=torch.float64
    )
    out = model.features({}, example, key_of(0)).view(shape).flatten(2)
    assert torch.equal(out, out[..., :1].expand_as(out))
    dropped = float((out[..., 0] == 0).double().mean())
    assert 0.35 < dropped < 0.65


def test_dropout_within_blocks_of_the_users_own_is_found():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.ModuleList([nn.Linear(2, 2), nn.Dropout(0.5)])

        def forward(self, x):
            for layer in self.inner:
                x = layer(x)
            return x

    model = build(nn.Sequential(Block(), Block()), nn.Linear(2, 3))
    names = model.parts["representation"].key_names
    assert names == ("0.inner.1.key", "1.inner.1.key")


# ------------------------------------------------------------------- the user's own network


def test_the_users_own_module_keeps_its_layers_and_modes():
    h = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.ReLU()).eval()
    g = nn.Sequential(nn.Dropout(0.2), nn.Linear(4, 3))
    before = {k: v.clone() for k, v in h.state_dict().items()}
    example = torch.ones(4, 2)
    model = Model.build(lambda: (h, g), "classification", example, 3)
    model.predict(model.init(0), example, key_of(0))
    assert [type(layer) for layer in h] == [nn.Linear, nn.Dropout, nn.ReLU]
    assert [type(layer) for layer in g] == [nn.Dropout, nn.Linear]
    assert not h.training
    assert g.training
    assert all(p.requires_grad for module in (h, g) for p in module.parameters())
    assert all(torch.equal(v, before[k]) for k, v in h.state_dict().items())


def test_a_factory_of_the_users_own_is_used_as_it_is():
    class Doubler(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, x):
            return self.scale * x

    def factory():
        return Doubler(), nn.Sequential(nn.Linear(2, 3, bias=False))

    example = torch.ones(2, 2, dtype=torch.float64)
    model = Model.build(factory, "classification", example, 3, dtype=torch.float64)
    theta = model.init(0)
    assert {k: tuple(v.shape) for k, v in theta["representation"].items()} == {"scale": ()}
    x = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    expected = 2 * x @ theta["prediction"]["0.weight"].T
    torch.testing.assert_close(model.predict(theta, x), expected)


def test_the_weights_are_in_the_models_type():
    stream = tiny_stream()
    for dtype in (torch.float32, torch.float64):
        theta = tiny_model(stream, dtype).init(0)
        assert {leaf.dtype for leaf in leaves(theta)} == {dtype}


# -------------------------------------------------------------------------- initial weights


def test_initial_weights_are_a_function_of_the_seed():
    stream = tiny_stream()
    first, again = (tiny_model(stream).init(3) for _ in range(2))
    other = tiny_model(stream).init(4)
    assert all(torch.equal(a, b) for a, b in zip(leaves(first), leaves(again), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(leaves(first), leaves(other), strict=True))


def test_initial_weights_are_the_layers_own_draw():
    theta = tiny_model(tiny_stream(), torch.float32).init(5)
    key = keys.derive(5, Purpose.WEIGHTS)
    with forked(int((key[0] << 31) | (key[1] >> 1))):
        h, g = tiny_network()
    for module, part in ((h, "representation"), (g, "prediction")):
        for name, parameter in module.named_parameters():
            assert torch.equal(theta[part][name], parameter.detach())


def test_initial_weights_have_the_layers_own_spread():
    def factory():
        return nn.Linear(400, 100), nn.Linear(100, 3)

    model = Model.build(factory, "classification", torch.ones(2, 400), 3)
    weight = model.init(0)["representation"]["weight"]
    bound = 400**-0.5
    assert float(weight.abs().max()) <= bound
    assert abs(float(weight.std()) / (bound / 3**0.5) - 1) < 0.02


def test_initial_weights_of_many_replicas_are_those_of_each():
    model = tiny_model(tiny_stream())
    together = initial(model, [4, 9])
    for replica, seed in enumerate((4, 9)):
        for many, alone in zip(leaves(together), leaves(model.init(seed)), strict=True):
            assert torch.equal(many[replica], alone)


def test_initial_weights_do_not_depend_on_the_global_generators():
    def factory():
        h, g = tiny_network()
        h[0].bias.data += random.random() + np.random.rand()  # noqa: NPY002
        return h, g

    model = Model.build(factory, "classification", torch.ones(2, 2), 6)
    first = model.init(0)
    torch.rand(3), random.random(), np.random.rand()  # noqa: NPY002
    assert all(torch.equal(a, b) for a, b in zip(leaves(first), leaves(model.init(0)), strict=True))


def test_building_and_drawing_weights_leave_the_global_generators_alone():
    before = global_states()
    model = tiny_model(tiny_stream(), dropout=0.5)
    model.init(0)
    initial(model, [1, 2])
    assert global_states() == before


def test_a_network_that_fails_leaves_the_global_generators_alone():
    def broken():
        torch.rand(3)
        random.random()
        np.random.rand()  # noqa: NPY002
        raise KeyError("no network")

    before = global_states()
    with pytest.raises(ModelError, match="cannot be built: KeyError: 'no network'"):
        Model.build(broken, "classification", torch.ones(2, 2), 3)
    assert global_states() == before


# ---------------------------------------------------------------------- networks refused


def refused(h: nn.Module, g: nn.Module, **arguments) -> str:
    with pytest.raises(ModelError) as caught:
        build(h, g, **arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_wrong_output_width_is_refused():
    line = refused(nn.Identity(), nn.Linear(2, 3), outputs=4)
    assert ", 4), got float" in line


def test_a_missing_row_dimension_is_refused():
    line = refused(nn.Linear(2, 3), nn.Flatten(0), outputs=3)
    assert "prediction must give one tensor" in line


def test_a_wrong_input_shape_is_refused():
    line = refused(nn.Linear(5, 2), nn.Linear(2, 3))
    assert "does not take inputs of shape (2,)" in line
    assert "5x2" in line


def test_parts_that_do_not_fit_together_are_refused():
    assert "4x3" in refused(nn.Linear(2, 8), nn.Linear(4, 3))


# ------------------------------------------------------------------------ costs and errors


@pytest.fixture(scope="module")
def classifier():
    return build(nn.Identity(), nn.Linear(2, 3))


@pytest.fixture(scope="module")
def regressor():
    return build(nn.Identity(), nn.Linear(2, 2), outputs=2, kind="regression")


def test_errors_of_classes_are_zero_or_one(classifier):
    logits = torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 1.0], [-1.0, -2.0, -3.0]])
    errors = classifier.errors(logits, torch.tensor([0, 2, 0]))
    assert errors.dtype == torch.float64
    assert errors.tolist() == [0.0, 1.0, 0.0]


def test_outputs_that_are_not_finite_are_wrong_whatever_their_largest(classifier):
    nan, inf = float("nan"), float("inf")
    logits = torch.tensor([[nan, 0.0, 0.0], [inf, 0.0, 0.0], [1.0, -inf, 0.0], [nan] * 3])
    assert logits.argmax(-1).tolist() == [0, 0, 0, 0]
    assert classifier.errors(logits, torch.zeros(4, dtype=torch.int64)).tolist() == [1.0] * 4


def test_losses_of_classes_are_the_cross_entropy(classifier):
    logits = torch.tensor([[1.0, 2.0, 0.5], [0.0, 0.0, 0.0]], dtype=torch.float64)
    losses = classifier.losses(logits, torch.tensor([1, 2]))
    first = -2.0 + np.log(np.exp(1.0) + np.exp(2.0) + np.exp(0.5))
    np.testing.assert_allclose(losses.numpy(), [first, np.log(3)], rtol=1e-14)


def test_losses_and_errors_of_values_are_the_mean_squared_error(regressor):
    outputs = torch.tensor([[1.0, 2.0], [0.0, -1.0]])
    y = torch.tensor([[0.0, 4.0], [0.0, 1.0]])
    expected = [(1.0 + 4.0) / 2, (0.0 + 4.0) / 2]
    assert regressor.losses(outputs, y).tolist() == expected
    errors = regressor.errors(outputs, y)
    assert errors.dtype == torch.float64
    assert errors.tolist() == expected


def test_the_cost_is_the_mean_over_the_rows_that_are_present(classifier):
    theta = classifier.init(0)
    x = torch.tensor([[1.0, 2.0], [0.5, -1.0], [9.0, 9.0]], dtype=torch.float64)
    y, task = torch.tensor([0, 2, 1]), torch.zeros(3, dtype=torch.int64)
    with_absent = Batch(x, y, torch.tensor([1.0, 1.0, 0.0]).double(), task)
    without = Batch(x[:2], y[:2], torch.ones(2).double(), task[:2])
    torch.testing.assert_close(
        classifier.cost(theta, with_absent), classifier.cost(theta, without), rtol=1e-14, atol=0
    )
    losses = classifier.losses(classifier.predict(theta, x[:2]), y[:2])
    torch.testing.assert_close(classifier.cost(theta, without), losses.mean())


def test_the_cost_without_rows_is_zero_with_zero_gradients(classifier):
    theta = classifier.init(0)
    x = torch.tensor([[1.0, 2.0], [0.5, -1.0]], dtype=torch.float64)
    batch = Batch(x, torch.tensor([0, 1]), torch.zeros(2).double(), torch.tensor([0, 0]))
    grads, value = torch.func.grad_and_value(classifier.cost)(theta, batch)
    assert float(value) == 0.0
    assert all((leaf == 0).all() for leaf in leaves(grads))


def test_the_weighted_mean_weighs():
    losses = torch.tensor([1.0, 2.0, 4.0])
    assert float(weighted_mean(losses, torch.tensor([1.0, 0.0, 3.0]))) == (1.0 + 3 * 4.0) / 4
    assert float(weighted_mean(losses, torch.zeros(3))) == 0.0


def test_joined_batches_cost_the_mean_of_both(classifier):
    theta = classifier.init(0)
    x = torch.tensor([[1.0, 2.0], [0.5, -1.0], [9.0, 9.0], [1.0, 0.0]], dtype=torch.float64)
    y = torch.tensor([0, 2, 1, 1])
    w = torch.ones(4, dtype=torch.float64)
    first, second = Batch(x[:1], y[:1], w[:1], y[:1]), Batch(x[1:], y[1:], w[1:], y[1:])
    both = join(first, second)
    assert torch.equal(both.x, x)
    costs = [classifier.cost(theta, batch) for batch in (first, second)]
    torch.testing.assert_close(classifier.cost(theta, both), (costs[0] + 3 * costs[1]) / 4)


# -------------------------------------------------------------------- the paper's networks


def test_lenet_has_the_printed_layers():
    h, g = network("lenet", (1, 28, 28), 10)
    assert linear_shapes(g) == [(256, 512), (512, 512), (512, 10)]
    assert linear_shapes(h) == []
    convolutions = [m for m in h if isinstance(m, nn.Conv2d)]
    assert [(c.in_channels, c.out_channels, c.kernel_size) for c in convolutions] == [
        (1, 6, (5, 5)),
        (6, 16, (5, 5)),
    ]
    assert [m.p for m in h if isinstance(m, nn.Dropout)] == [0.5]
    shapes = [tuple(p.shape) for p in h.parameters()]
    assert shapes == [(6, 1, 5, 5), (6,), (16, 6, 5, 5), (16,)]


def test_omninet_has_the_printed_layers():
    h, g = network("omninet", (1, 28, 28), 50)
    assert linear_shapes(g) == [(3136, 100), (100, 50)]
    convolutions = [m for m in h if isinstance(m, nn.Conv2d)]
    assert [(c.in_channels, c.out_channels, c.kernel_size, c.padding) for c in convolutions] == [
        (1, 32, (5, 5), (2, 2)),
        (32, 64, (5, 5), (2, 2)),
    ]
    shapes = [tuple(p.shape) for p in h.parameters()]
    assert shapes == [(32, 1, 5, 5), (32,), (64, 32, 5, 5), (64,)]


def test_sinenet_has_six_linear_layers():
    h, g = network("sinenet", (3,), 100)
    assert linear_shapes(h) == [(3, 100), (100, 100), (100, 3)]
    assert linear_shapes(g) == [(3, 100), (100, 100), (100, 100)]


def test_mlp_flattens_whatever_comes():
    h, g = network("mlp", (2, 3, 4), 7, hidden=11)
    assert linear_shapes(h) == [(24, 11), (11, 11)]
    assert linear_shapes(g) == [(11, 11), (11, 7)]


@pytest.mark.parametrize(
    ("name", "shape", "outputs"),
    [
        ("lenet", (1, 28, 28), 10),
        ("lenet", (3, 32, 32), 10),
        ("lenet", (1, 16, 20), 10),
        ("omninet", (1, 28, 28), 50),
        ("omninet", (2, 5, 9), 4),
        ("sinenet", (3,), 100),
        ("mlp", (1, 8, 8), 10),
    ],
)
def test_every_network_makes_a_model(name, shape, outputs):
    example = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    model = Model.build(
        lambda: network(name, shape, outputs, hidden=16), "classification", example, outputs
    )
    out = model.predict(model.init(0), example, key_of(0))
    assert out.shape == (2, outputs)
    assert has_convolution(model) == (name in ("lenet", "omninet"))


@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        ("lenet", (1, 8, 8), "images of at least 16x16, got 8x8"),
        ("lenet", (64,), "takes images (channels, height, width), got inputs of shape (64,)"),
        ("omninet", (1, 3, 28), "images of at least 4x4, got 3x28"),
        ("sinenet", (1, 8, 8), "takes vectors, got inputs of shape (1, 8, 8)"),
    ],
)
def test_a_network_for_other_shapes_says_so(name, shape, says):
    with pytest.raises(ModelError) as caught:
        network(name, shape, 10)
    assert says in str(caught.value)
    assert "use network = 'mlp'" in str(caught.value)


class CallsTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.drop(x))


def test_a_dropout_layer_called_twice_is_refused_since_its_masks_would_repeat():
    with pytest.raises(ModelError, match="is called 2 times"):
        Model.build(lambda: (CallsTwice(), nn.Linear(4, 3)), "classification", torch.rand(2, 4), 3)


def test_a_dropout_layer_in_two_places_gets_a_mask_for_each():
    def network():
        drop = nn.Dropout(0.5)
        return nn.Sequential(drop, nn.Identity(), drop), nn.Identity()

    model = Model.build(network, "classification", torch.rand(2, 3), 3)
    x = torch.ones(1, 4000)
    kept = model.features({}, x, torch.tensor([1, 2])).count_nonzero() / 4000
    assert kept.item() == pytest.approx(0.25, abs=0.03)


def test_the_modules_of_a_factory_stay_as_they_are():
    h, g = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), nn.Linear(4, 3)
    Model.build(lambda: (h, g), "classification", torch.rand(2, 4), 3, dtype=torch.float64)
    assert h[0].weight.dtype == torch.float32
    assert type(h[1]) is nn.Dropout


@pytest.mark.parametrize("modules", [(nn.Identity(),), nn.Identity(), (1, 2)])
def test_a_network_returns_two_modules(modules):
    with pytest.raises(ModelError, match="two modules"):
        Model.build(lambda: modules, "classification", torch.rand(2, 3), 3)
