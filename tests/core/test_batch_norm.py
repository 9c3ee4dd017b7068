"""BatchNorm computes what PyTorch's does on the rows that are present, and moves as it moves."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from conftest import tiny_task
from dpmcl.core.batch import Batch, join
from dpmcl.core.gradients import gradient
from dpmcl.core.model import Model, initial_weights
from dpmcl.core.part import converted, part_of
from dpmcl.core.tree import at, leaves, stack
from dpmcl.engine import choose
from dpmcl.exceptions import ModelError
from dpmcl.methods.dpmcl import DPMCL

KEY = torch.tensor([1, 2])
LAYERS = [
    (nn.BatchNorm1d, (6, 3)),
    (nn.BatchNorm1d, (6, 3, 4)),
    (nn.BatchNorm2d, (6, 3, 4, 2)),
    (nn.BatchNorm3d, (6, 3, 2, 1, 2)),
]


def numbers(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(shape, generator=generator, dtype=torch.float64) + 1


def part(module):
    like = {"dtype": torch.float64, "device": torch.device("cpu")}
    return part_of(module, iter(range(9)), convolutions="native", **like)


def small_model():
    """A model with BatchNorm in both parts."""

    def network():
        h = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Tanh())
        return h, nn.Sequential(nn.BatchNorm1d(3, momentum=None), nn.Linear(3, 2))

    return Model.build(network, "classification", numbers(6, 2), 2, dtype=torch.float64)


def plain(model, theta):
    """The modules that the model stands for, with its parameters."""
    modules = dict(zip(("representation", "prediction"), model.network(), strict=True))
    for name, module in modules.items():
        module.double().load_state_dict(theta[name], strict=False)
    return nn.Sequential(*modules.values())


def buffers_of(module):
    return {name: value for name, value in module.named_buffers() if "." in name}


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("momentum", [0.3, None])
@pytest.mark.parametrize(("kind", "shape"), LAYERS)
def test_a_layer_is_pytorchs(kind, shape, momentum, affine):
    """Rows of weight 0 hold NaN, and PyTorch's layer does not get them."""
    layer = kind(3, momentum=momentum, affine=affine).double()
    for parameter in layer.parameters():
        parameter.data = numbers(3, seed=9)
    ours = part(layer)
    statistics, w = ours.statistics, torch.tensor([1.0, 0, 2, 1, 0, 1])
    for step in range(3):
        x = numbers(*shape, seed=step)
        present = x[w > 0].requires_grad_()
        expected = layer(present)
        holes = x.clone()
        holes[w == 0] = torch.nan
        out, statistics = ours.apply(ours.parameters, holes, KEY, w=w, statistics=statistics)
        torch.testing.assert_close(out[w > 0], expected)
        for name, value in layer.named_buffers():
            torch.testing.assert_close(statistics[name], value)

        def cost(parameters, x):
            return ours.apply(parameters, x, KEY, w=w)[0][w > 0].pow(3).sum()

        of_parameters, of_x = torch.func.grad(cost, (0, 1))(ours.parameters, x)
        inputs = [present, *layer.parameters()]
        x_grad, *parameter_grads = torch.autograd.grad(expected.pow(3).sum(), inputs)
        torch.testing.assert_close(of_x[w > 0], x_grad)
        assert (of_x[w == 0] == 0).all()
        for a, b in zip(of_parameters.values(), parameter_grads, strict=True):
            torch.testing.assert_close(a, b)
    layer.eval()
    x = numbers(*shape, seed=7)
    evaluated, _ = ours.apply(ours.parameters, x, None, statistics=statistics)
    torch.testing.assert_close(evaluated, layer(x))
    whole, _ = ours.apply(ours.parameters, x, KEY)
    torch.testing.assert_close(whole, copy.deepcopy(layer).train()(x))


def test_without_rows_nothing_moves_and_all_is_finite():
    ours = part(nn.Sequential(*[nn.BatchNorm1d(3) for _ in range(30)]))
    x, w = numbers(4, 3) * 1e30, torch.zeros(4)
    out, after = ours.apply(ours.parameters, x, KEY, w=w, statistics=ours.statistics)
    assert out.isfinite().all()
    assert all(torch.equal(after[name], value) for name, value in ours.statistics.items())
    grads = torch.func.grad(lambda p: (ours.apply(p, x, KEY, w=w)[0].sum(1) * w).sum())(
        ours.parameters
    )
    assert all((leaf == 0).all() for leaf in leaves(grads))
    _, after = ours.apply(ours.parameters, x, KEY, w=torch.eye(4)[0], statistics=ours.statistics)
    assert torch.equal(after["0.running_var"], ours.statistics["0.running_var"])  # one row has none


def test_a_layer_that_its_author_keeps_in_evaluation_is_a_constant():
    class Kept(nn.Sequential):
        def train(self, mode=True):
            super().train(mode)
            self[0].eval()
            return self

    module = Kept(nn.BatchNorm1d(3)).double()
    module[0].running_mean += 2
    ours = part(module)
    x = numbers(5, 3)
    assert ours.statistics == {}
    torch.testing.assert_close(ours.apply(ours.parameters, x, KEY)[0], module.eval()(x))


def test_batches_without_statistics_are_refused():
    ours = part(nn.BatchNorm1d(3))
    with pytest.raises(ModelError, match=r"two values of each channel.*batch = 2 or more"):
        ours.apply(ours.parameters, numbers(1, 3), KEY)
    folded = part(nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Flatten(0, 1), nn.BatchNorm1d(3)))
    with pytest.raises(ModelError, match=r"rows of the batch as its first dimension, 4, got 8"):
        folded.apply(folded.parameters, numbers(4, 6), KEY, w=torch.ones(4))


def test_a_model_trains_moves_and_is_evaluated_as_its_modules():
    model = small_model()
    theta, buffers = model.init(0), model.init_buffers()
    modules = plain(model, theta)
    x, y = numbers(6, 2), torch.tensor([0, 1, 1, 0, 1, 0])
    batch = Batch(x, y, torch.ones(6).double(), y)
    for _ in range(3):
        grads, J = gradient(model.cost)(theta, batch, KEY)
        buffers = model.holding(buffers).moved(theta, x, batch.w, KEY)
        cost = nn.functional.cross_entropy(modules(x), y)
        cost.backward()
        torch.testing.assert_close(J, cost.detach())
    for leaf, parameter in zip(leaves(grads), modules.parameters(), strict=True):
        torch.testing.assert_close(3 * leaf, parameter.grad)
    expected = buffers_of(modules)
    held = {f"{i}.{k}": v for i, values in enumerate(buffers.values()) for k, v in values.items()}
    assert held.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(held[name], value)
    torch.testing.assert_close(model.holding(buffers).predict(theta, x), modules.eval()(x))


def test_evaluation_needs_statistics():
    model = small_model()
    theta = model.init(0)
    with pytest.raises(ModelError, match=r"model\.holding\(buffers\)"):
        model.predict(theta, numbers(2, 2))
    with pytest.raises(ModelError, match=r"model\.holding\(buffers\)"):
        model.moved(theta, numbers(2, 2), torch.ones(2), KEY)


@pytest.mark.parametrize("absent", [False, True])
def test_dpmcl_normalises_the_past_and_the_new_together(absent):
    """Step 2 by hand, in plain PyTorch: J_P over features that are normalised over b_PN."""
    model = small_model()
    method = DPMCL(optimiser="sgd", lr=0.1, batch=4, zeta=0, third_term="off")
    state = method.start(model.init(0), tiny_task())
    y = torch.tensor([0, 1, 1, 0])
    w = torch.ones(4).double()
    b_N = Batch(numbers(4, 2), y, w, y)
    b_P = Batch(numbers(4, 2, seed=1) - 2, y, torch.tensor([1.0, 1, 0, 0]).double() * absent, y)
    (phase,) = method.phases(model, tiny_task())
    after = phase.update(state, {"new": b_N, "past": b_P}, torch.stack([KEY, KEY]))

    modules = plain(model, state.theta)
    rule = torch.optim.SGD(modules.parameters(), lr=0.1)
    nn.functional.cross_entropy(modules(b_N.x), y).backward()
    rule.step()
    if absent:
        rule.zero_grad()
        out = modules(join(b_P, b_N).x[join(b_P, b_N).w > 0])
        nn.functional.cross_entropy(out[:2], y[:2]).backward()
        rule.step()
    for leaf, parameter in zip(leaves(after.theta), modules.parameters(), strict=True):
        torch.testing.assert_close(leaf, parameter.detach())


def test_resnet18_trains_alike_mapped_and_alone_and_is_evaluated_row_by_row(log_lines):
    """Chosen in float32 without a word, though it amplifies rounding; compared in float64."""
    resnet18 = pytest.importorskip("torchvision").models.resnet18

    def network():
        module = resnet18(num_classes=3)
        head, module.fc = module.fc, nn.Identity()
        return module, head

    x, y = torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3
    model = Model.build(network, "classification", x, 3)
    assert choose("auto", model, x, replicas=2, batch=6).name == "batched"
    assert not log_lines
    parts = {name: converted(part, torch.float64) for name, part in model.parts.items()}
    model, x = replace(model, parts=parts, dtype=torch.float64), x.double()
    batch = Batch(x, y, torch.tensor([1.0, 1, 1, 1, 1, 0]).double(), y)

    def update(theta, buffers):
        grads, _ = gradient(model.cost)(theta, batch, KEY)
        moved = model.holding(buffers).moved(theta, x, batch.w, KEY)
        stepped = {
            part: {name: p - 1e-2 * grads[part][name] for name, p in parameters.items()}
            for part, parameters in theta.items()
        }
        return stepped, moved

    theta, buffers = initial_weights(model, [0, 1]), stack([model.init_buffers()] * 2)
    alone = model.init(1), model.init_buffers()
    theta, buffers = torch.func.vmap(update)(theta, buffers)
    alone = update(*alone)
    torch.testing.assert_close(at((theta, buffers), 1), alone, rtol=1e-9, atol=1e-9)
    assert int(alone[1]["representation"]["bn1.num_batches_tracked"]) == 1
    held = model.holding(alone[1])
    torch.testing.assert_close(held.predict(alone[0], x)[2:3], held.predict(alone[0], x[2:3]))
