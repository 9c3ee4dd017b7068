"""Convolutions by patches give what PyTorch's own give, to any order, with one product a layer."""

import copy
from collections import Counter

import pytest
import torch
from test_captured import needs_gpu
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import dpmcl
from conftest import model_of, tiny_run
from dpmcl import plugins
from dpmcl.core.convolution import PatchedConv2d, with_patches
from dpmcl.core.tree import leaves
from dpmcl.engine import Batched, Looped

GEOMETRIES = [
    {"kernel_size": 3},
    {"kernel_size": (5, 2), "padding": (2, 1)},
    {"kernel_size": (2, 5), "bias": False},
    {"kernel_size": 1},
    {"kernel_size": 3, "stride": 2},
    {"kernel_size": 3, "stride": (1, 2), "padding": 1},
    {"kernel_size": 3, "stride": (3, 1), "padding": 1, "dilation": (1, 2)},
    {"kernel_size": 3, "dilation": (2, 1)},
]
every_geometry = pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)


def pair(**geometry):
    """PyTorch's layer, and the same one by patches."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        native = nn.Conv2d(3, 2, **{"kernel_size": 3, **geometry}, dtype=torch.float64)
    patched = with_patches(copy.deepcopy(native))
    assert type(patched) is PatchedConv2d
    return native, patched


def numbers(*shape, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=dtype)


def cost(layer):
    def of(parameters, x):
        return torch.func.functional_call(layer, parameters, (x,)).sin().sum()

    return of


def first_order(layer):
    return torch.func.grad(cost(layer), (0, 1))


def second_order(layer):
    """The gradient of a number made of all gradients."""

    def of(parameters, x):
        return sum((leaf**3).sum() for leaf in leaves(first_order(layer)(parameters, x)))

    return torch.func.grad(of, (0, 1))


def replicas_of(layer, count=3):
    return {
        name: torch.stack([p.detach() * (1 + k) for k in range(count)])
        for name, p in layer.named_parameters()
    }


def assert_close(first, second, tolerance=1e-10):
    torch.testing.assert_close(first, second, rtol=tolerance, atol=tolerance)


class Operations(TorchDispatchMode):
    """Counts matrix products, and convolutions' weight gradients that PyTorch computes."""

    def __init__(self):
        super().__init__()
        self.count = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if name != "convolution_backward" or args[-1][1]:  # the mask of (input, weight, bias)
            self.count[name] += 1
        return function(*args, **(kwargs or {}))


@every_geometry
def test_outputs_and_gradients_are_the_native_ones_alone_and_mapped(geometry):
    native, patched = pair(**geometry)
    parameters, x = replicas_of(native), numbers(3, 4, 3, 11, 9)
    assert_close(patched(x[0]), native(x[0]))
    replica = {name: p[1] for name, p in parameters.items()}
    for order in (first_order, second_order):
        assert_close(order(patched)(replica, x[0]), order(native)(replica, x[0]))
        expected = torch.func.vmap(order(native))(parameters, x)
        assert_close(torch.func.vmap(order(patched))(parameters, x), expected)


@pytest.mark.parametrize("in_dims", [(0, None), (None, 0), (0, 1)])
def test_replicas_may_share_inputs_or_weights_or_be_stored_otherwise(in_dims):
    native, patched = pair()
    parameters = replicas_of(native)
    if in_dims[0] is None:
        parameters = {name: p[0] for name, p in parameters.items()}
    x = numbers(*(4, 3) if in_dims[1] == 1 else (3, 4)[in_dims[1] is None :], 3, 8, 8)
    expected = torch.func.vmap(first_order(native), in_dims)(parameters, x)
    assert_close(torch.func.vmap(first_order(patched), in_dims)(parameters, x), expected)


def test_no_layer_takes_a_native_weight_gradient():
    _, patched = pair(kernel_size=5)
    parameters, x = replicas_of(patched), numbers(3, 8, 3, 12, 12)
    with Operations() as of:
        torch.func.vmap(second_order(patched))(parameters, x)
    assert of.count["bmm"] > 0
    assert of.count["convolution_backward"] == 0


class Odd(nn.Conv2d):
    """Not of the type itself."""


def test_plain_layers_are_replaced_where_they_are_and_others_are_not():
    shared = nn.Conv2d(2, 2, 1)
    module = nn.Sequential(
        shared,
        nn.ModuleDict({"inner": nn.Conv2d(2, 2, 3)}),
        nn.Conv2d(2, 2, 3, groups=2),
        nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(2, 2, 3, padding="same"),
        Odd(2, 2, 3),
        nn.Conv1d(2, 2, 3),
        nn.Conv3d(2, 2, 3),
        shared,
    )
    before = dict(module.named_parameters())
    assert with_patches(module) is module
    kinds = {name: type(layer) for name, layer in module.named_modules(remove_duplicate=False)}
    patched = {name for name, kind in kinds.items() if kind is PatchedConv2d}
    assert patched == {"0", "1.inner", "8"}
    assert module[0] is module[8]
    after = dict(module.named_parameters())
    assert before.keys() == after.keys()
    assert all(before[name] is after[name] for name in before)


def stream():
    x = numbers(40, 1, 16, 16)
    y = torch.arange(40) % 4
    return dpmcl.Stream.from_arrays(x + y[:, None, None, None], y, name="images", tasks=2)


def lenet(convolutions, of=None):
    of = of or stream()
    build = plugins.find("network", "lenet")(hidden=6).build
    return model_of(of, lambda: build((1, 16, 16), of.outputs), convolutions=convolutions)


def test_a_model_has_the_convolutions_that_it_is_asked_for():
    for asked, kind in ((None, nn.Conv2d), ("native", nn.Conv2d), ("patches", PatchedConv2d)):
        parts = lenet(asked).gated("features").parts
        for part in (parts["representation"], parts["gate"]):
            layers = part.training.modules()
            assert [type(layer) for layer in layers if isinstance(layer, nn.Conv2d)] == [kind] * 2


METHODS = [
    ("dpmcl", {"third_term": "exact", "zeta": 2}),
    ("oml", {"reading": "nested", "inner": 2, "order": 2}),
    # Not through a fresh Adagrad, which amplifies rounding (benchmarks/second_order_noise.py).
    ("anml", {"reading": "nested", "order": 2, "optimiser": "sgd"}),
]
every_method = pytest.mark.parametrize(
    ("name", "options"), METHODS, ids=[" ".join(map(str, (n, *o.values()))) for n, o in METHODS]
)


def trained(convolutions, name, options, engine, device="cpu"):
    of = stream().to(torch.device(device))
    method = plugins.find("method", name)(batch=4, updates=4, memory=20, lr=0.01, **options)
    return tiny_run(method, engine=engine, stream=of, model=lenet(convolutions, of)).theta


@every_method
def test_training_by_patches_equals_native_training(name, options):
    native = trained("native", name, options, Batched())
    for engine in (Batched(static=True), Looped()):
        assert_close(trained("patches", name, options, engine), native, 1e-9)


@needs_gpu
@every_method
def test_captured_on_a_gpu_patches_equal_native_training_on_a_cpu(name, options):
    there = trained(None, name, options, Batched(), "cuda")
    here = trained("native", name, options, Looped())
    torch.testing.assert_close(there, here, rtol=1e-8, atol=1e-8, check_device=False)
