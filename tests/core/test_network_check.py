"""Networks as their authors write them: those that a run can take as meant, and those it cannot."""

import itertools
import os
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import dpmcl
from conftest import Layer, complaint, same_bits
from dpmcl.core.batch import Batch
from dpmcl.core.model import Model, initial_weights
from dpmcl.core.part import modules_of, trainable
from dpmcl.core.tree import at, leaves
from dpmcl.exceptions import ModelError
from dpmcl.networks._network import NetworkSettings

Pair = tuple[nn.Module, nn.Module]
INPUTS, WIDTH, CLASSES = 4, 8, 4
KEY = torch.tensor([1, 2])
X = torch.from_numpy(np.random.default_rng(0).integers(0, 9, (6, INPUTS))).float()


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


def kept(value: Any, function: Callable[..., Any]) -> Pair:
    """A layer that has a value as its attribute c."""
    return after(Layer(function, c=value))


def buffer(value: torch.Tensor) -> Pair:
    fill = lambda self: self.register_buffer("b", value)  # noqa: E731
    return after(Layer(lambda self, x: x + self.b, fill))


def changing(training: bool) -> Pair:
    def forward(self, x):
        if self.training == training:
            self.b = 0.9 * self.b + 0.1 * x.detach().mean(0)
        return x

    return after(Layer(forward, lambda self: self.register_buffer("b", torch.zeros(WIDTH))))


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


def embedding(**arguments: Any) -> Pair:
    of = nn.Embedding(9, 2, **arguments)
    return Layer(lambda self, x: self.of(x.long().clamp(0, 8)).flatten(1), of=of), last()


def tied(between: bool = False, transposed: bool = False) -> Pair:
    a, b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    b.weight = nn.Parameter(a.weight.data.t()) if transposed else a.weight
    if between:
        return nn.Sequential(first(), a), nn.Sequential(b, last())
    return after(a, nn.ReLU(), b)


def zero_head(*layers: nn.Module) -> Pair:
    h, g = before(*layers)
    nn.init.zeros_(g[-1].weight)
    nn.init.zeros_(g[-1].bias)
    return h, g


def fixed(module: nn.Module) -> nn.Module:
    """A module whose values are no draw."""
    for parameter in module.parameters():
        values = torch.linspace(-1, 1, parameter.numel())
        parameter.data = values.view_as(parameter)
    return module


def frozen(drawn: bool) -> Pair:
    h, g = after()
    if not drawn:
        fixed(h)
    h[0].weight.requires_grad_(False)
    return h, g


def own_function(forward: Any, backward: Any, vmap: bool = True) -> Callable[[Any], Any]:
    """A torch.autograd.Function, applied."""
    context = staticmethod(lambda ctx, inputs, output: None)
    names = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    names |= {"setup_context": context, "generate_vmap_rule": True} if vmap else {}
    return type("Function", (torch.autograd.Function,), names).apply


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


def residual(on_itself: bool = False) -> nn.Module:
    def forward(self, x):
        return x + self.inner(self.act(x if on_itself else x + 0))

    return Layer(forward, inner=nn.Linear(WIDTH, WIDTH), act=nn.ReLU(inplace=True))


def batchwise(training: bool | None = None) -> nn.Module:
    """The statistics of a batch, which no gradient sees."""

    def forward(self, x):
        if training not in (None, self.training):
            return x
        with torch.no_grad():
            mean, deviation = x.mean(0), x.std(0, unbiased=False)
        return (x - mean) / (deviation + 1e-3)

    return Layer(forward)


class Grows(nn.Module):
    def forward(self, x):
        if not hasattr(self, "layer"):
            self.layer = nn.Linear(x.shape[1], WIDTH)
        return self.layer(x)


def by_closure() -> nn.Module:
    """A layer that uses its parameter by a function that knows the layer itself."""
    layer = Layer(lambda self, x: self.scaled(x), scale=scale())
    layer.scaled = lambda x: x * layer.scale
    return layer


NUMBER = itertools.count()


def numbered() -> nn.Module:
    """A layer with a name of its own, which computes nothing."""
    return Layer(lambda self, x: x, title=f"layer {next(NUMBER)}")


def with_hook(add: Callable[[nn.Linear], Any]) -> Pair:
    layer = first()
    add(layer)
    return layer, last()


def keeping(kept: list[torch.Tensor]) -> Callable[..., None]:
    """A hook that keeps what its layer computes: of a pass under torch.func, which is of no use."""
    return lambda layer, inputs, out: kept.append(out)


def numpy_weights() -> Pair:
    h, g = after()
    values = np.random.default_rng().normal(size=(WIDTH, INPUTS))
    h[0].weight.data = torch.tensor(values, dtype=torch.float32)
    return h, g


def wide_by_seed() -> Pair:
    width = 3 + int(torch.randint(50, ()))
    return nn.Linear(INPUTS, width), nn.Linear(width, CLASSES)


def cut_off(self, x):
    with torch.no_grad():
        self.inner.weight.clamp_(-self.most, self.most)
    return self.inner(x)


def compiled_in_place() -> nn.Module:
    layer = first()
    layer.compile(backend="eager")
    return layer


def scale() -> nn.Parameter:
    return nn.Parameter(torch.ones(()))


class Freezes(nn.Sequential):
    """Layers of which `train` freezes a weight, and returns nothing."""

    def train(self, mode=True):
        super().train(mode)
        self[0].weight.requires_grad_(False)


def normalised_rows() -> Pair:
    """A convolution whose bias normalisation takes away, so its gradient is rounding."""
    layers = nn.Unflatten(1, (1, WIDTH)), nn.Conv1d(1, 8, 3), nn.GroupNorm(8, 8), nn.Flatten()
    head = nn.Linear(48, CLASSES)
    with torch.no_grad():
        head.weight.mul_(50)
    return nn.Sequential(first(), *layers), head


GLOBAL = nn.Linear(WIDTH, WIDTH)

sign = own_function(lambda x: x.sign(), lambda ctx, grad: grad)
normalised = own_function(lambda x: x.clone(), lambda ctx, grad: grad / grad.norm())
small_normalised = own_function(lambda x: x.clone(), lambda ctx, grad: 1e-8 * grad / grad.norm())


def slope(x):
    """The slope of an energy, taken in `forward`."""
    with torch.enable_grad():
        x = x if x.requires_grad else x.detach().requires_grad_()
        return torch.autograd.grad(x.square().tanh().sum(), x, create_graph=True)[0]


def energy(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The slope of an energy that has parameters, taken by torch.func."""
    return torch.func.vmap(torch.func.grad(lambda row: self.of(row).tanh().sum()))(x)


HONEST: dict[str, Callable[[], Pair]] = {
    "the gradient of an energy": lambda: after(Layer(energy, of=nn.Linear(WIDTH, WIDTH))),
    "dropout": lambda: after(nn.Dropout(0.5), nn.Dropout(0.1, inplace=True)),
    "a bias without effect": normalised_rows,
    "dropout twice": lambda: after(Layer(lambda self, x: self.of(self.of(x)), of=nn.Dropout())),
    "batch norm": lambda: after(nn.BatchNorm1d(WIDTH), nn.ReLU()),
    "batch norm of images": lambda: images(nn.BatchNorm2d(WIDTH), nn.ReLU(inplace=True)),
    "instance norm": lambda: images(nn.InstanceNorm2d(WIDTH, affine=True), nn.ReLU(inplace=True)),
    "attention": lambda: attention(nn.MultiheadAttention(4, 2, batch_first=True), key=1, value=1),
    "embedding of whole numbers": embedding,
    "activations in place": lambda: before(nn.ReLU(inplace=True), nn.ELU(inplace=True)),
    "a residual block": lambda: after(residual()),
    "weight norm": lambda: (parametrizations.weight_norm(first()), last()),
    "tied weights": tied,
    "a constant buffer": lambda: buffer(torch.ones(WIDTH)),
    "a frozen weight": lambda: frozen(drawn=False),
    "a weight frozen by train": lambda: (Freezes(fixed(first())), last()),
    "a frozen part": lambda: (fixed(nn.Sequential(first())).requires_grad_(False), last()),
    "a head of zeros": zero_head,
    "parts without parameters": lambda: (nn.Flatten(), nn.Linear(INPUTS, CLASSES)),
    "a gradient of its own": lambda: rows(sign),
    "a layer that gets no gradient": lambda: (
        Layer(lambda self, x: self.a(x).detach() + self.b(x), a=first(), b=first()),
        last(),
    ),
    "changes of what is its own": lambda: rows(lambda x: (x * 2).add_(1).clamp_(-1, 1)),
    "sorting within a row": lambda: rows(lambda x: x.sort(1).values),
    "a number that computes nothing": lambda: after(numbered()),
    "no second derivative": lambda: (
        first(),
        nn.Sequential(last(), Layer(lambda self, x: NoSecond.apply(x, False))),
    ),
    "float32 within": lambda: rows(lambda x: x.float().double() if x.is_cpu else x),
}

LOOPED: dict[str, Callable[[], Pair]] = {
    "LSTM": lambda: sequence(nn.LSTM(1, WIDTH, batch_first=True)),
    "a branch on a row": lambda: rows(lambda x: x * 2 if bool((x == x).all()) else x),
}

REFUSED: dict[str, tuple[Callable[[], Pair], str]] = {
    # Statistics of a batch, and other rows.
    "no statistics": (
        lambda: before(nn.BatchNorm1d(WIDTH, track_running_stats=False)),
        r"the prediction gives.*nn\.BatchNorm with running statistics, nn\.GroupNorm",
    ),
    "over processes": (
        lambda: after(nn.SyncBatchNorm(WIDTH)),
        "buffer 'running_mean' of .*SyncBatchNorm",
    ),
    "batchwise": (lambda: after(batchwise()), r"the representation gives.*nn\.GroupNorm"),
    "in training": (lambda: before(batchwise(True)), r"the prediction gives.*in training"),
    "a shut gate": (
        lambda: kept(nn.Parameter(torch.zeros(())), lambda self, x: x + self.c * x.mean(0)),
        "the representation gives another",
    ),
    "a branch on the batch": (
        lambda: rows(lambda x: x / x.max() if x.abs().max() > 50 else x),
        "beside other rows",
    ),
    "one row": (lambda: rows(lambda x: x if len(x) > 1 else 2 * x), "a row alone"),
    "squeezing": (lambda: rows(lambda x: x.squeeze()), "alone.*; keep the first"),
    "a gradient of the batch": (
        lambda: rows(normalised),
        "sum of its rows' gradients.*weight|bias",
    ),
    "a small gradient of the batch": (
        lambda: rows(small_normalised),
        "sum of its rows' gradients.*weight|bias",
    ),
    "dropout of channels that are rows": (
        lambda: after(nn.Dropout1d()),
        "Dropout1d .* whole rows of one with 2; use nn.Dropout",
    ),
    # What depends on the seed, or on nothing at all.
    "a drawn frozen weight": (
        lambda: frozen(drawn=True),
        r"trainable.*'weight' of representation\.0: Linear does;.* load it from a file",
    ),
    "a drawn buffer": (lambda: buffer(torch.randn(WIDTH)), r"buffer 'b' of representation\.1: La"),
    "drawn sizes": (wide_by_seed, r"shape of the parameter 'weight' of representation: Linear"),
    "a list": (lambda: kept([nn.Linear(8, 8)], lambda self, x: self.c[0](x)), "'c'.*ModuleList"),
    "a generator without a seed": (numpy_weights, "built twice with one seed"),
    # Passes that change something, or draw.
    "a buffer in training": (lambda: changing(True), r"buffer 'b' of .*\.1: Layer changes in tra"),
    "a buffer in evaluation": (lambda: changing(False), "changes in evaluation"),
    "spectral norm": (lambda: (parametrizations.spectral_norm(first()), last()), "_SpectralNorm"),
    "clipping of large weights": (
        lambda: after(Layer(cut_off, inner=nn.Linear(WIDTH, WIDTH), most=0.5)),
        r"'representation\.1\.inner\.weight' changes at some weights",
    ),
    "clipping of very large weights": (
        lambda: after(Layer(cut_off, inner=nn.Linear(WIDTH, WIDTH), most=50)),
        r"'representation\.1\.inner\.weight' changes at some weights",
    ),
    "an embedding with max_norm": (
        lambda: embedding(max_norm=20),
        r"'representation\.of\.weight' changes at some weights",
    ),
    "a new layer": (lambda: (Grows(), last()), r"layer representation\.layer: Linear"),
    "its input": (
        lambda: before(Layer(lambda self, x: x.mul_(2))),
        r"the prediction changes its input.* x \* 2 in place",
    ),
    "noise in evaluation": (
        lambda: rows(lambda x: functional.dropout(x, 0.1)),
        r"representation\.1: Layer draws from a global generator in evaluation.*self\.training",
    ),
    "Python's noise": (lambda: rows(lambda x: x * random.random()), "n\\.1: Layer draws fro"),
    "the machine's noise": (
        lambda: rows(lambda x: x + int.from_bytes(os.urandom(3), "big") / 1e5),
        "in a second pass",
    ),
    # Results, gradients and layers that a run cannot use.
    "a dict": (lambda: rows(lambda x: {"x": x}), "got dict; .* return the tensor alone"),
    "classes": (lambda: rows(lambda x: x.argmax(1)), "must give one tensor.*got int64"),
    "not finite": (lambda: rows(lambda x: x / 0), "finite before training, got"),
    "no gradient": (lambda: rows(lambda x: x.detach()), "no parameter of the representation"),
    "a hook's gradient": (
        lambda: with_hook(lambda layer: layer.weight.register_hook(lambda grad: grad * 0)),
        "no hooks, which copies lack, and 'representation.weight' has one",
    ),
    "a hook that keeps features": (
        lambda: with_hook(lambda layer: layer.register_forward_hook(keeping([]))),
        r"hook 0 of representation: Linear changes in training; .* by hooks",
    ),
    "in place on itself": (
        lambda: after(nn.Identity(), residual(on_itself=True)),
        "outputs that PyTorch finds.*change no tensor in place",
    ),
    "a gradient by autograd": (lambda: rows(slope), "`forward` itself takes .* torch.func"),
    "a closure": (lambda: after(by_closure()), r"registered parameters, and .*n\.1: Layer uses"),
    "a closure before a head of zeros": (lambda: zero_head(by_closure()), "n.0: Layer uses oth"),
    "a global layer": (lambda: rows(lambda x: GLOBAL(x)), r"n\.1: Layer uses others"),
    "a closure in training": (
        lambda: after(Layer(lambda self, x: GLOBAL(x) if self.training else x)),
        r"n\.1: Layer uses others",
    ),
    "a parameter's flag": (
        lambda: after(Layer(lambda self, x: x * (1 + self.c.requires_grad), c=scale())),
        "outputs that PyTorch finds.*requires_grad of a parameter",
    ),
    "nothing to train": (
        lambda: tuple(fixed(m).requires_grad_(False) for m in after()),
        "parameters to train",
    ),
    "a sparse gradient": (
        lambda: embedding(sparse=True),
        "'representation.of.weight' is not; leave",
    ),
    "recomputation": (
        lambda: rows(lambda x: checkpoint(torch.tanh, x, use_reentrant=False)),
        r"differentiated by torch\.func\.grad",
    ),
    "in both parts": (
        lambda: tied(between=True),
        r"'prediction\.0\.weight' has those of 'representation\.1\.weight'; give each its own, "
        "or put both in one part",
    ),
    "over one memory": (lambda: tied(transposed=True), "shared only as one"),
    "complex": (
        lambda: (nn.Linear(INPUTS, WIDTH, dtype=torch.complex64), last()),
        "real numbers, and 'representation.weight' is complex64",
    ),
    "lazy": (lambda: (nn.LazyLinear(8), last()), "'representation.weight' has none yet"),
    "compiled": (lambda: (torch.compile(first(), backend="eager"), last()), "and torch.compile"),
    "compiled in place": (lambda: (compiled_in_place(), last()), "compiled; leave out torch.jit"),
    "another input": (
        lambda: (nn.Linear(5, 8), last()),
        r"does not take inputs of shape \(4,\).*sizes by \(shape, outputs\); nn.Flatten makes",
    ),
    "one module": (lambda: nn.Identity(), "two modules"),
    "a pass that fails": (
        lambda: rows(lambda x: {}["key"]),
        r"does not take inputs of shape \(4,\) in representation\.1: Layer: 'key'",
    ),
    "no values": (lambda: (nn.Linear(4, 8, device="meta"), last()), "cannot be used"),
}


def build(network: Callable[[], Pair], x: torch.Tensor = X, **arguments: Any) -> Model:
    return Model.build(network, "classification", x, CLASSES, **arguments)


@pytest.mark.parametrize("which", HONEST)
def test_an_honest_network_has_pytorchs_gradient_mapped_and_alone(which):
    """In float64 too, where it does not name a type of its own."""
    model = build(HONEST[which], X.double(), dtype=torch.float64)
    model = model.holding(model.init_buffers())
    y = torch.arange(6) % CLASSES
    batch = Batch(X.double(), y, torch.tensor([1.0, 1, 1, 1, 0, 1]).double(), y)

    def used(theta):
        return torch.func.grad(model.cost)(theta, batch, KEY), model.predict(theta, batch.x)

    theta = initial_weights(model, [0, 1])
    together = torch.func.vmap(used)(theta)
    alone = used(at(theta, 1))
    torch.testing.assert_close(at(together, 1), alone)
    assert any((leaf != 0).any() for leaf in leaves(alone[0]))
    trained = [p for part in modules_of(model.network) for p in trainable(part).values()]
    assert len(leaves(theta)) == len(trained)


@pytest.mark.parametrize("which", REFUSED)
def test_what_a_run_would_not_take_as_meant_is_refused_by_name(which):
    network, message = REFUSED[which]
    line = complaint(build, network, error=ModelError)
    assert re.search(message, line)
    assert line.endswith(".")
    assert len(line) < 500


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_one_row_is_enough_to_tell(value):
    """Where all rows are equal, others are made up, if the network takes them."""
    example = torch.full((1, INPUTS), value)
    for mixing in (
        lambda: after(batchwise()),
        lambda: rows(lambda x: x - x[0]),
        lambda: rows(lambda x: torch.cat([part - part.mean(0) for part in x.split(4)])),
    ):
        with pytest.raises(ModelError, match="other rows"):
            build(mixing, example)
    for name in ("embedding of whole numbers", "dropout", "a head of zeros", "batch norm"):
        build(HONEST[name], example)


@dataclass(frozen=True, kw_only=True)
class Net(NetworkSettings):
    """One of the networks of this file."""

    which: str = "residual"

    def build(self, shape, outputs):
        refused = {name: network for name, (network, _) in REFUSED.items()}
        return {**HONEST, **LOOPED, **refused, "residual": ordinary}[self.which]()


def ordinary() -> Pair:
    return after(nn.LayerNorm(WIDTH), nn.Dropout(0.1), residual())


def run(which: str, method: str = "dpmcl", **arguments):
    y = np.repeat(np.arange(CLASSES), 15)
    x = np.random.default_rng(0).integers(0, 9, size=(60, INPUTS)).astype("float64")
    settings = {
        "network": f"{__name__}:Net",
        "network.which": which,
        "training.updates": 2,
        "training.batch": 4,
        **({"methods.dpmcl.kappa": 2, "methods.dpmcl.zeta": 1} if method == "dpmcl" else {}),
        "workers": 1,
        **arguments.pop("settings", {}),
    }
    stream = dpmcl.Stream.from_arrays(x, y, classes_per_task=2)
    return dpmcl.run(stream, methods=[method], replicas=2, settings=settings, **arguments)


FROZEN = {
    "residual": "",
    "a frozen weight": "0.weight",
    "a weight frozen by train": "0.weight",
    "a frozen part": "0.bias",
}


@pytest.mark.parametrize("which", FROZEN)
def test_both_engines_train_and_store_what_is_not_frozen(which):
    looped, batched = (
        run(which, engine=engine, settings={"dtype": "float64"}) for engine in ("looped", "batched")
    )
    torch.testing.assert_close(looped.theta["dpmcl"], batched.theta["dpmcl"])
    h = looped.theta["dpmcl"]["representation"]
    assert FROZEN[which] not in h
    assert bool(h) == (which != "a frozen part")


@pytest.mark.parametrize("which", LOOPED)
def test_a_network_that_cannot_be_mapped_is_looped_or_refused(which):
    theta = [run(which, engine=engine).theta["dpmcl"] for engine in ("auto", "looped")]
    assert same_bits(*theta)
    with pytest.raises(ModelError, match=r"cannot be batched.* \(.*\); use engine = 'looped'"):
        run(which, engine="batched")


@pytest.mark.parametrize(
    ("method", "way", "settings"),
    [
        ("dpmcl", "third_term = 'first'", {"methods.dpmcl.third_term": "exact"}),
        ("oml", "order = 1", {"methods.oml.reading": "nested", "methods.oml.order": 2}),
    ],
)
def test_second_derivatives_are_asked_for_where_they_are_needed(method, way, settings):
    run("no second derivative")
    with pytest.raises(ModelError, match=r"needs second derivatives.*no derivative of") as caught:
        run("no second derivative", settings=settings, method=method)
    assert way in str(caught.value)


def half_square(x):
    """x^2 / 2, by a backward function that may be differentiated once."""

    class Once(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x.square() / 2

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0]

    return Once.apply(x)


@pytest.mark.parametrize(
    ("activation", "right"),
    [(half_square, False), (lambda x: x.square() / 2, True), (torch.relu, True)],
)
def test_second_derivatives_that_pytorch_leaves_out_are_reported(activation, right, log_lines):
    """torch.func, and torch.autograd too, take them as 0."""
    spec = {"stream": {"name": "digits", "tasks": 2}, "training": {"updates": 2, "batch": 4}}
    spec |= {"methods": {"dpmcl": {"third_term": "exact", "zeta": 1, "optimiser": "sgd"}}}
    network = (
        nn.Flatten(),
        nn.Sequential(
            nn.Linear(64, WIDTH), Layer(lambda _, x: activation(x)), nn.Linear(WIDTH, 10)
        ),
    )
    dpmcl.run(spec, network=network, replicas=1)
    reported = [line for line in log_lines if "not the changes of its gradient" in line]
    assert len(reported) == (0 if right else 1)
