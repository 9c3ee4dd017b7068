"""Networks as their authors write them: those that a run can take as meant, and those it cannot."""

import os
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint

import dpmcl
from dpmcl import cli
from dpmcl.core.model import Model
from dpmcl.exceptions import ModelError
from dpmcl.networks._network import NetworkSettings

Pair = tuple[nn.Module, nn.Module]
INPUTS, WIDTH, CLASSES = 4, 8, 4


class Layer(nn.Module):
    """A layer of one function, and the modules that it uses."""

    def __init__(self, function: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, x):
        return self.function(self, x)


class Holding(nn.Module):
    """A layer that begins with what `fill` gives it, and then is `function`."""

    def __init__(self, fill: Callable[[Any], Any], function: Callable[..., Any]) -> None:
        super().__init__()
        fill(self)
        self.function = function

    def forward(self, x):
        return self.function(self, x)


def first() -> nn.Linear:
    return nn.Linear(INPUTS, WIDTH)


def last() -> nn.Linear:
    return nn.Linear(WIDTH, CLASSES)


def after(*layers: nn.Module) -> Pair:
    """Layers at the end of h."""
    return nn.Sequential(first(), *layers), last()


def before(*layers: nn.Module) -> Pair:
    """Layers at the beginning of g."""
    return first(), nn.Sequential(*layers, last())


def rows(function: Callable[[Any], Any]) -> Pair:
    """A function of the features at the end of h."""
    return after(Layer(lambda self, x: function(x)))


def images(*layers: nn.Module) -> Pair:
    h = nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, WIDTH, 1, bias=False), *layers)
    return nn.Sequential(*h, nn.AdaptiveAvgPool2d(1), nn.Flatten()), last()


def sequence(layer: nn.Module) -> Pair:
    return Layer(lambda self, x: self.layer(x[..., None])[0][:, -1], layer=layer), last()


def attention(layer: nn.Module, **arguments: Any) -> Pair:
    """Over the inputs of each row."""

    def forward(self, x):
        tokens = self.embed(x[..., None])
        seen = self.layer(tokens, **dict.fromkeys(arguments, tokens))
        return (seen[0] if isinstance(seen, tuple) else seen).flatten(1)

    return Layer(forward, embed=nn.Linear(1, 4), layer=layer), nn.Linear(16, CLASSES)


def counted(self, x):
    self.n += 1
    return x


def tied(between: bool = False, storage: bool = False, transposed: bool = False) -> Pair:
    a, b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    b.weight = nn.Parameter(a.weight.data) if storage else a.weight
    if transposed:
        b.weight = nn.Parameter(a.weight.data.t())
    if between:
        return nn.Sequential(first(), a), nn.Sequential(b, last())
    return after(a, nn.ReLU(), b)


def repeated() -> Pair:
    layer = nn.Linear(WIDTH, WIDTH)
    return after(layer, nn.ReLU(), layer, nn.ReLU(), layer)


def zero_head(*layers: nn.Module) -> Pair:
    h, g = before(*layers)
    nn.init.zeros_(g[-1].weight)
    nn.init.zeros_(g[-1].bias)
    return h, g


def numpy_weights() -> Pair:
    h, g = after()
    values = np.random.default_rng().normal(size=(WIDTH, INPUTS))
    h[0].weight.data = torch.tensor(values, dtype=torch.float32)
    return h, g


def buffer(value: Callable[[], torch.Tensor], persistent: bool = True) -> Pair:
    return after(
        Holding(
            lambda self: self.register_buffer("b", value(), persistent=persistent),
            lambda self, x: x + self.b,
        )
    )


def kept(name: str, value: Callable[[], Any], function: Callable[..., Any]) -> Pair:
    return after(Holding(lambda self: setattr(self, name, value()), function))


def changing(training: bool) -> Pair:
    def forward(self, x):
        if self.training == training:
            self.b = 0.9 * self.b + 0.1 * x.detach().mean(0)
        return x

    return after(Holding(lambda self: self.register_buffer("b", torch.zeros(WIDTH)), forward))


def frozen(part: int) -> Pair:
    pair = after()
    next(pair[part].parameters()).requires_grad_(False)
    return pair


class SignBackward(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.sign()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad


class NoSecond(torch.autograd.Function):
    """Twice x, or of a gradient; only the former can be differentiated."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, of_gradient):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.of_gradient = inputs[1]

    @staticmethod
    def backward(ctx, grad):
        if ctx.of_gradient:
            raise NotImplementedError("no derivative of the derivative")
        return NoSecond.apply(grad, True), None


class Normalised(torch.autograd.Function):
    """The identity; its gradient is that of the whole batch, brought to length 1."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad / grad.norm()


class OldFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class Residual(nn.Module):
    def __init__(self, on_itself: bool = False) -> None:
        super().__init__()
        self.inner, self.act = nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)
        self.on_itself = on_itself

    def forward(self, x):
        seen = self.act(x if self.on_itself else x + 0)
        return x + self.inner(seen)


class Batchwise(nn.Module):
    """The statistics of a batch, which no gradient sees."""

    def __init__(self, training: bool | None = None) -> None:
        super().__init__()
        self.only = training

    def forward(self, x):
        if self.only not in (None, self.training):
            return x
        with torch.no_grad():
            mean, deviation = x.mean(0), x.std(0, unbiased=False)
        return (x - mean) / (deviation + 1e-3)


class Gated(nn.Module):
    """A branch that is shut at first."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return x + self.gate * x.mean(0)


class Grows(nn.Module):
    def forward(self, x):
        if not hasattr(self, "layer"):
            self.layer = nn.Linear(x.shape[1], WIDTH)
        return self.layer(x)


class ByClosure(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.scaled = lambda x: x * self.scale

    def forward(self, x):
        return self.scaled(x)


class Stubborn(nn.Module):
    """Dropout that stays on."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def train(self, mode=True):
        super().train(mode)
        self.drop.train()
        return self

    def forward(self, x):
        return self.drop(x)


class Called(nn.Module):
    times = 0

    def forward(self, x):
        Called.times += 1
        return x * (1 + 1e-3 * Called.times)


class Numbered(nn.Module):
    """A layer with a name of its own, which computes nothing."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        Numbered.made += 1
        self.title = f"layer {Numbered.made}"

    def forward(self, x):
        return x


class Hooked(nn.Linear):
    def __init__(self) -> None:
        super().__init__(INPUTS, WIDTH)
        self.weight.register_hook(lambda grad: grad * 0)


def pruned() -> Pair:
    layer = first()
    prune.l1_unstructured(layer, "weight", 0.5)
    return layer, last()


def wide_by_seed() -> Pair:
    width = 3 + int(torch.randint(50, ()))
    return nn.Linear(INPUTS, width), nn.Linear(width, CLASSES)


ALWAYS = after(nn.ReLU())
ONES = partial(torch.ones, WIDTH)


def cut_off(self, x):
    with torch.no_grad():
        self.inner.weight.clamp_(-0.5, 0.5)
    return self.inner(x)


HONEST: dict[str, Callable[[], Pair]] = {
    "dropout": lambda: after(nn.Dropout(0.5), nn.Dropout(0.1, inplace=True)),
    "dropout of nothing, used twice": lambda: after(*[nn.Dropout(0.0)] * 2),
    "group norm": lambda: after(nn.GroupNorm(2, WIDTH)),
    "layer norm": lambda: before(nn.LayerNorm(WIDTH)),
    "instance norm": lambda: images(nn.InstanceNorm2d(WIDTH, affine=True), nn.ReLU(inplace=True)),
    "GELU and softmax over features": lambda: after(nn.GELU(), nn.Softmax(1)),
    "attention within a row": lambda: attention(
        nn.MultiheadAttention(4, 2, batch_first=True), key=1, value=1
    ),
    "transformer": lambda: attention(
        nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    ),
    "embedding of whole numbers": lambda: (
        Layer(lambda self, x: self.of(x.long()).flatten(1), of=nn.Embedding(9, 2)),
        last(),
    ),
    "activations in place": lambda: (
        nn.Sequential(nn.ReLU(inplace=True), first(), nn.ELU(inplace=True)),
        nn.Sequential(nn.ReLU(inplace=True), last()),
    ),
    "a residual block": lambda: after(Residual()),
    "weight norm": lambda: (parametrizations.weight_norm(first()), last()),
    "tied weights": tied,
    "a layer in three places": repeated,
    "a constant buffer": lambda: buffer(ONES),
    "a constant buffer that is not stored": lambda: buffer(ONES, persistent=False),
    "a constant tensor": lambda: kept("c", ONES, lambda self, x: x + self.c),
    "a head of zeros": zero_head,
    "parts without parameters": lambda: (nn.Flatten(), nn.Linear(INPUTS, CLASSES)),
    "a gradient of its own": lambda: rows(SignBackward.apply),
    "a layer that gets no gradient": lambda: (
        Layer(lambda self, x: self.a(x).detach() + self.b(x), a=first(), b=first()),
        last(),
    ),
    "a parameter that is not used": lambda: (
        Layer(lambda self, x: self.a(x), a=first(), b=first()),
        last(),
    ),
    "changes of what is its own": lambda: rows(lambda x: (x * 2).add_(1).clamp_(-1, 1)),
    "a branch for each value": lambda: rows(lambda x: torch.where(x > 0, x, x / 10)),
    "sorting within a row": lambda: rows(lambda x: x.sort(1).values),
    "modules that are always the same": lambda: ALWAYS,
    "a number that computes nothing": lambda: after(Numbered()),
    "no second derivative": lambda: (
        first(),
        nn.Sequential(last(), Layer(lambda self, x: NoSecond.apply(x, False))),
    ),
    "float32 within": lambda: rows(lambda x: x.float().double() if x.is_cpu else x),
}

LOOPED: dict[str, Callable[[], Pair]] = {
    "GRU": lambda: sequence(nn.GRU(1, WIDTH, batch_first=True)),
    "LSTM": lambda: sequence(nn.LSTM(1, WIDTH, batch_first=True)),
    "a branch on a row": lambda: rows(lambda x: x * 2 if bool((x == x).all()) else x),
}

REFUSED: dict[str, tuple[Callable[[], Pair], str]] = {
    "batch norm": (lambda: after(nn.BatchNorm1d(WIDTH)), r"representation\.1: BatchNorm1d.*Group"),
    "batch norm without statistics": (
        lambda: before(nn.BatchNorm1d(WIDTH, track_running_stats=False)),
        r"prediction\.0: BatchNorm1d, which.*; use nn\.GroupNorm or nn\.LayerNorm",
    ),
    "batch norm over processes": (lambda: after(nn.SyncBatchNorm(WIDTH)), "SyncBatchNorm"),
    "batch norm of one's own": (lambda: after(Batchwise()), r"representation\.1: Batchwise"),
    "batch norm in training alone": (lambda: before(Batchwise(True)), r"Batchwise.*in training"),
    "batch norm in evaluation alone": (lambda: before(Batchwise(False)), "Batchwise.*evaluation"),
    "batch norm behind a head of zeros": (lambda: zero_head(Batchwise()), "Batchwise"),
    "batch norm as a function": (
        lambda: rows(lambda x: functional.batch_norm(x, None, None, training=True)),
        r"representation\.1: Layer gives another.*nn\.GroupNorm",
    ),
    "instance norm with statistics": (
        lambda: images(nn.InstanceNorm2d(WIDTH, track_running_stats=True)),
        r"representation\.2: InstanceNorm2d, which normalises over .* time",
    ),
    "frozen in h": (lambda: frozen(0), r"'representation\.0\.weight' has requires_grad = False"),
    "frozen in g": (lambda: frozen(1), r"'prediction\.weight' has requires_grad = False"),
    "a gradient that a hook changes": (
        lambda: (Hooked(), last()),
        "that of .representation.weight. differs",
    ),
    "a parameter in both parts": (
        lambda: tied(between=True),
        r"'prediction\.0\.weight' has those of 'representation\.1\.weight'; give each its own",
    ),
    "memory in both parts": (lambda: tied(between=True, storage=True), "shared only as one"),
    "two parameters over one memory": (lambda: tied(transposed=True), "shared only as one"),
    "a drawn buffer": (
        lambda: buffer(lambda: torch.randn(WIDTH)),
        r"buffer 'b' of representation\.1: Holding",
    ),
    "a drawn buffer that is not stored": (
        lambda: buffer(lambda: torch.rand(WIDTH), persistent=False),
        "from seed to seed, and the buffer",
    ),
    "a drawn tensor": (
        lambda: kept("c", lambda: torch.rand(WIDTH), lambda self, x: x + self.c),
        r"differ from seed to seed, and the attribute 'c' of representation\.1: Holding does",
    ),
    "a drawn number": (
        lambda: kept("c", random.random, lambda self, x: x + self.c),
        "from seed to seed, and the attribute 'c'",
    ),
    "layers in a list": (
        lambda: kept("of", lambda: [nn.Linear(8, 8)], lambda self, x: self.of[0](x)),
        r"attribute 'of'.*nn\.ModuleList",
    ),
    "weights of a generator without a seed": (numpy_weights, "built twice with one seed"),
    "sizes that are drawn": (
        wide_by_seed,
        r"shape of the parameter 'weight' of representation: Linear",
    ),
    "a buffer that training changes": (
        lambda: changing(True),
        r"buffer 'b' of representation\.1: Holding changes in training",
    ),
    "a buffer that evaluation changes": (lambda: changing(False), "changes in evaluation"),
    "spectral norm": (lambda: (parametrizations.spectral_norm(first()), last()), "_SpectralNorm"),
    "old spectral norm": (lambda: (nn.utils.spectral_norm(first()), last()), "buffer 'weight_u'"),
    "old weight norm": (lambda: (nn.utils.weight_norm(first()), last()), "attribute 'weight' of"),
    "pruning": (pruned, "'weight_mask' of representation: Linear"),
    "clipping of weights": (
        lambda: (
            Layer(lambda self, x: (self.l.weight.data.clamp_(-0.1, 0.1), self.l(x))[1], l=first()),
            last(),
        ),
        r"parameter 'weight' of representation\.l: Linear",
    ),
    "a counter": (lambda: kept("n", int, counted), r"attribute 'n' of representation\.1: Holding"),
    "a cache": (
        lambda: kept("of", dict, lambda self, x: x + self.of.setdefault(len(x), 1)),
        "attribute 'of'",
    ),
    "features that are kept": (
        lambda: kept("x", int, lambda self, x: (setattr(self, "x", x), x)[1]),
        "attribute 'x'",
    ),
    "a counter of all layers": (
        lambda: after(Called()),
        "Called gives .* in training for a row in a second pass",
    ),
    "a generator of its own": (
        lambda: kept(
            "of",
            lambda: torch.Generator().manual_seed(0),
            lambda self, x: x + torch.randn(x.shape, generator=self.of).to(x),
        ),
        "attribute 'of'",
    ),
    "NumPy's generator of its own": (
        lambda: kept(
            "of", lambda: np.random.default_rng(0), lambda self, x: x + float(self.of.normal())
        ),
        "attribute 'of'",
    ),
    "a layer that is made in a pass": (
        lambda: (Grows(), last()),
        r"layer representation\.layer: Linear",
    ),
    "a lazy layer": (
        lambda: (nn.LazyLinear(8), last()),
        "LazyLinear, which does not know its sizes",
    ),
    "noise in training": (
        lambda: rows(lambda x: functional.dropout(x, 0.1)),
        r"representation\.1: Layer draws from PyTorch's generator in training",
    ),
    "noise in evaluation": (
        lambda: after(Layer(lambda self, x: x if self.training else x + torch.rand_like(x))),
        "PyTorch's generator in evaluation",
    ),
    "NumPy's noise": (
        lambda: rows(lambda x: x + np.random.normal()),  # noqa: NPY002
        r"representation\.1: Layer draws from NumPy's generator in training",
    ),
    "Python's noise": (lambda: rows(lambda x: x * random.random()), "draws from Python's"),
    "noise of the machine": (lambda: rows(lambda x: x + os.urandom(1)[0]), "in a second pass"),
    "noise by place": (
        lambda: rows(lambda x: x + torch.arange(len(x)).to(x)[:, None] / 10),
        r"in another order",
    ),
    "RReLU": (lambda: after(nn.RReLU()), r"representation\.1: RReLU draws from PyTorch's"),
    "dropout of attention": (
        lambda: attention(nn.MultiheadAttention(4, 2, 0.1, batch_first=True), key=1, value=1),
        r"representation\.layer: MultiheadAttention draws",
    ),
    "a mean over rows": (lambda: rows(lambda x: x - x.mean(0)), "other rows"),
    "a thousandth of a mean over rows": (lambda: rows(lambda x: x + 1e-3 * x.mean(0)), "other ro"),
    "a mean over rows behind a gate": (lambda: after(Gated()), r"representation\.1: Gated"),
    "softmax over rows": (lambda: after(nn.Softmax(0)), r"representation\.1: Softmax"),
    "sorting of rows": (lambda: rows(lambda x: x.sort(0).values), "another order"),
    "sums over rows": (lambda: rows(lambda x: x.cumsum(0)), "another order"),
    "a branch on the batch": (
        lambda: rows(lambda x: x / x.max() if x.abs().max() > 50 else x),
        "beside other rows",
    ),
    "another answer for one row": (lambda: rows(lambda x: x if len(x) > 1 else 2 * x), "a row alo"),
    "squeezing": (
        lambda: rows(lambda x: x.squeeze()),
        r"representation\.1: Layer .* alone; keep the first dimension",
    ),
    "attention over rows": (
        lambda: after(Layer(lambda self, x: self.of(x, x, x)[0], of=nn.MultiheadAttention(8, 2))),
        r"representation\.1: Layer|representation\.1\.of",
    ),
    "a gradient of the whole batch": (
        lambda: rows(Normalised.apply),
        r"sum of its rows' gradients.*'representation\.0\.(weight|bias)'",
    ),
    "rows without a gradient": (
        lambda: rows(lambda x: torch.cat([x[:1].detach(), x[1:]])),
        "sum of its rows' gradients",
    ),
    "dropout in evaluation": (lambda: after(Stubborn()), r"representation\.1\.drop: Dropout gives"),
    "a mode that a pass changes": (
        lambda: after(Layer(lambda self, x: self.eval() and x)),
        r"attribute 'training' of representation\.1: Layer",
    ),
    "weights that an embedding shortens": (
        lambda: (
            Layer(
                lambda self, x: self.of(x.long()).flatten(1), of=nn.Embedding(9, 2, max_norm=0.1)
            ),
            last(),
        ),
        r"parameter 'weight' of representation\.of: Embedding",
    ),
    "a module compiled by PyTorch": (
        lambda: (torch.compile(first(), backend="eager"), last()),
        "leave out torch.jit and torch.compile",
    ),
    "a dict": (lambda: rows(lambda x: {"x": x}), "got dict; .* return the tensor alone"),
    "a tuple": (lambda: (first(), Layer(lambda self, x: (x, x))), "one tensor.*got tuple"),
    "classes": (lambda: rows(lambda x: x.argmax(1)), "must give one tensor.*got int64"),
    "another type": (
        lambda: (first(), nn.Sequential(last(), Layer(lambda self, x: x.half()))),
        r"one tensor, float32 \(\d+, 4\), got float16",
    ),
    "what is not finite": (lambda: rows(lambda x: x / 0), "finite before training, got"),
    "no gradient": (lambda: rows(lambda x: x.detach()), "no parameter of the representation"),
    "numbers in place of tensors": (
        lambda: (first(), nn.Sequential(last(), Layer(lambda self, x: torch.tensor(x.tolist())))),
        "gets a gradient",
    ),
    "a row too many": (
        lambda: rows(lambda x: x[:1]),
        r"must give .*, got float32 \(1, 8\); keep the first dimension",
    ),
    "rows second": (lambda: (Layer(lambda self, x: x.T), nn.Linear(6, 4)), "keep the first"),
    "complex parameters": (
        lambda: (nn.Linear(INPUTS, WIDTH, dtype=torch.complex64), last()),
        "real numbers, and 'representation.weight' is complex64",
    ),
    "complex buffers": (lambda: buffer(lambda: 1j * torch.ones(8)), "real numbers.*complex64"),
    "changes of the input": (
        lambda: before(Layer(lambda self, x: x.mul_(2))),
        r"prediction\.0: Layer changes its input.* x \* 2 in place",
    ),
    "a block that changes its own input": (
        lambda: after(nn.Identity(), Residual(on_itself=True)),
        "gradient that PyTorch finds.*change no tensor in place",
    ),
    "a function that holds a parameter": (
        lambda: after(ByClosure()),
        r"'representation\.1\.scale' differs; use parameters as attributes",
    ),
    "a compiled layer": (lambda: (torch.jit.script(first()), last()), "leave out torch.jit"),
    "recomputation": (
        lambda: after(Layer(lambda self, x: checkpoint(torch.tanh, x, use_reentrant=False))),
        r"torch\.func\.grad in representation\.1: Layer|differentiated by torch\.func\.grad",
    ),
    "an old function": (lambda: rows(OldFunction.apply), r"differentiated by torch\.func\.grad"),
    "weights that are cut off": (
        lambda: after(Layer(cut_off, inner=nn.Linear(WIDTH, WIDTH))),
        r"'representation\.1\.inner\.weight' changes at some weights",
    ),
    "a build that fails": (lambda: nn.Linear(4, 0.5), "cannot be built: TypeError"),
    "a pass that fails": (
        lambda: rows(lambda x: {}["key"]),
        r"does not take inputs of shape \(4,\) in representation\.1: Layer: 'key'",
    ),
    "tensors without values": (lambda: (nn.Linear(4, 8, device="meta"), last()), "cannot be used"),
}

EVERY = {**HONEST, **LOOPED, **{name: build for name, (build, _) in REFUSED.items()}}


@dataclass(frozen=True, kw_only=True)
class Net(NetworkSettings):
    """One of the networks of this file."""

    which: str = ""

    def build(self, shape, outputs):
        return EVERY[self.which]()


@dataclass(frozen=True, kw_only=True)
class Ordinary(NetworkSettings):
    """A residual network of dropout, layer norm and activations in place."""

    def build(self, shape, outputs):
        return nn.Sequential(
            first(), nn.LayerNorm(WIDTH), nn.Dropout(0.1), Residual()
        ), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(WIDTH, outputs))


def run(network: str = "Net", which: str = "", method: str = "dpmcl", **arguments):
    y = np.repeat(np.arange(CLASSES), 15)
    x = np.random.default_rng(0).integers(0, 9, size=(60, INPUTS)).astype("float64")
    chosen = {"network.which": which} if which else {}
    settings = {
        "network": f"{__name__}:{network}",
        **chosen,
        "training.updates": 2,
        "training.batch": 4,
        **({"methods.dpmcl.kappa": 2, "methods.dpmcl.zeta": 1} if method == "dpmcl" else {}),
        "workers": 1,
        **arguments.pop("settings", {}),
    }
    stream = dpmcl.Stream.from_arrays(x, y, classes_per_task=2)
    return dpmcl.run(stream, methods=[method], replicas=2, settings=settings, **arguments)


@pytest.mark.parametrize("which", HONEST)
def test_an_honest_network_runs_and_both_engines_train_it_alike(which):
    """In float64 too, where it does not name a type of its own."""
    dtype = {"dtype": "float64"}
    looped, batched = (
        run(which=which, engine=engine, settings=dtype) for engine in ("looped", "batched")
    )
    for part, leaves in looped.theta["dpmcl"].items():
        for name, leaf in leaves.items():
            torch.testing.assert_close(leaf, batched.theta["dpmcl"][part][name])
    assert np.isfinite(looped.errors["dpmcl"].after[:, -1]).all()


@pytest.mark.parametrize("which", LOOPED)
def test_a_network_that_cannot_be_mapped_is_looped_or_refused(which):
    theta = [run(which=which, engine=engine).theta["dpmcl"] for engine in ("auto", "looped")]
    for part, leaves in theta[0].items():
        assert all(torch.equal(leaf, theta[1][part][name]) for name, leaf in leaves.items())
    with pytest.raises(ModelError, match=r"cannot be batched \(.*\); use engine = 'looped'"):
        run(which=which, engine="batched")


@pytest.mark.parametrize("which", REFUSED)
def test_what_a_run_would_not_take_as_meant_is_refused_by_name(which):
    with pytest.raises(ModelError, match=REFUSED[which][1]) as caught:
        run(which=which)
    line = str(caught.value)
    assert "\n" not in line
    assert line.endswith(".")
    assert len(line) < 500


@pytest.mark.parametrize("engine", ["looped", "batched"])
def test_an_error_does_not_depend_on_what_else_is_evaluated(engine):
    """Each task's error after it was learned, with all tasks or alone, in a batch or row by row."""
    full, thin = (
        run("Ordinary", engine=engine, settings={"evaluation.evaluate_every": every})
        for every in (1, 3)
    )
    own = [np.einsum("rtt->rt", r.errors["dpmcl"].after) for r in (full, thin)]
    assert np.array_equal(*own)
    one = run("Ordinary", engine=engine, settings={"evaluation.test_rows": 1})
    assert set(np.unique(one.errors["dpmcl"].after[:, -1])) <= {0.0, 1.0}
    assert all(
        torch.equal(a, b)
        for part, leaves in full.theta["dpmcl"].items()
        for a, b in zip(leaves.values(), one.theta["dpmcl"][part].values(), strict=True)
    )


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_one_row_is_enough_to_tell(value):
    """Where all rows are equal, others are made up, if the network takes them."""
    example = torch.full((1, INPUTS), value)
    mixing = (
        lambda: after(Batchwise()),
        lambda: rows(lambda x: x + 1e-3 * x.mean(0)),
        lambda: rows(lambda x: x - x[0]),
        lambda: rows(lambda x: torch.cat([part - part.mean(0) for part in x.split(4)])),
    )
    for build in mixing:
        with pytest.raises(ModelError, match="other rows"):
            Model.build(build, "classification", example, CLASSES)
    for name in ("embedding of whole numbers", "dropout", "a head of zeros"):
        Model.build(HONEST[name], "classification", example, CLASSES)


@pytest.mark.parametrize(
    ("method", "way"), [("dpmcl", "third_term = 'first'"), ("oml", "order = 1")]
)
def test_a_network_without_second_derivatives_is_refused_where_they_are_needed(method, way):
    settings = {
        "dpmcl": {"methods.dpmcl.third_term": "exact"},
        "oml": {"methods.oml.reading": "nested", "methods.oml.order": 2},
    }[method]
    run(which="no second derivative")
    with pytest.raises(ModelError, match=r"needs second derivatives.*no derivative of") as caught:
        run(which="no second derivative", settings=settings, method=method)
    assert way in str(caught.value)


def test_at_the_command_line_a_refusal_is_one_line(capsys, monkeypatch):
    network = [f"network.name={__name__}:Net", "network.which=frozen in h", "network.hidden=8"]
    changes = [part for change in network for part in ("--set", change)]
    monkeypatch.setattr(sys, "argv", ["dpmcl", "run", "digits", "--replicas", "1", *changes])
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert "requires_grad = False" in lines[0]
