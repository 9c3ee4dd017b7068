"""A model: a representation h(x; theta_1), a prediction g(.; theta_2), and the cost of a row.

Any `torch.nn.Module`s, used as pure functions of their parameters. `theta` is a dict of parts,
{"representation": theta_1, "prediction": theta_2}, each a dict of tensors by parameter name.

At the door (`Model.build`) a module is copied, its dropout replaced by a keyed one, for a GPU its
convolutions by those of `dpmcl.convolution`, and checked: it may not draw from the global
generator, nor keep running statistics that a forward pass changes.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpmcl import keys
from dpmcl.batch import Batch, weighted_mean
from dpmcl.convolution import Convolutions, preferred, with_patches
from dpmcl.exceptions import ModelError
from dpmcl.gradients import count_rows
from dpmcl.precision import Precision, products
from dpmcl.tree import stack

Gate = Literal["features", "outputs"]
Kind = Literal["classification", "regression"]
Parameters = dict[str, Tensor]
Theta = dict[str, Parameters]
Network = Callable[[], tuple[nn.Module, nn.Module]]
PARTS = ("representation", "prediction")


class KeyedDropout(nn.Module):
    """Dropout whose mask is a function of a key: same mask alone, batched, on a CPU or a GPU.

    p: share of values set to 0. kept_dimensions: how many leading dimensions of the input get a
    draw of their own (2 for the channel-wise forms), None for all. lane: tells layers apart.
    """

    key: Tensor

    def __init__(self, p: float, kept_dimensions: int | None, lane: int) -> None:
        super().__init__()
        self.p, self.kept_dimensions, self.lane = p, kept_dimensions, lane
        self.register_buffer("key", torch.zeros(2, dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        kept = x.dim() if self.kept_dimensions is None else self.kept_dimensions
        shape = [*x.shape[:kept], *[1] * (x.dim() - kept)]
        keep = keys.uniform(self.key, shape, self.lane) >= self.p
        return x * keep.to(x.dtype) / (1 - self.p) if self.p < 1 else x * 0


_DROPOUT: dict[type[nn.Module], int | None] = {
    nn.Dropout: None,
    nn.Dropout1d: 2,
    nn.Dropout2d: 2,
    nn.Dropout3d: 2,
}


@dataclass(frozen=True)
class Part:
    """One module as a pure function: apply(parameters, x, key), key None for evaluation."""

    training: nn.Module
    evaluation: nn.Module
    key_names: tuple[str, ...]

    def apply(self, parameters: Parameters, x: Tensor, key: Tensor | None) -> Tensor:
        if key is None:
            plain: Tensor = torch.func.functional_call(self.evaluation, parameters, (x,))
            return plain
        keyed = dict.fromkeys(self.key_names, key)
        out: Tensor = torch.func.functional_call(self.training, {**parameters, **keyed}, (x,))
        return out


@dataclass(frozen=True)
class Model:
    """h, g and the cost, as pure functions for one replica.

    kind: "classification" (cross entropy on logits) or "regression" (mean squared error).
    convolutions, precision: how h and g are computed (`dpmcl.convolution`, `dpmcl.precision`).
    """

    network: Network
    kind: Kind
    parts: dict[str, Part]
    dtype: torch.dtype
    device: torch.device
    gate: Gate | None = None
    convolutions: Convolutions = "native"
    precision: Precision | None = None

    @classmethod
    def build(
        cls,
        network: Network,
        kind: Kind,
        example: Tensor,
        outputs: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
        *,
        convolutions: Convolutions | None = None,
        precision: Precision | None = None,
    ) -> "Model":
        """A checked model.

        network: makes (representation, prediction) with new initial weights at each call.
        example: inputs (n, ...) as the stream delivers them. outputs: width of g's output.
        convolutions: "patches" replaces plain nn.Conv2d layers by equal ones whose weight gradient
        is a product of matrices, "native" keeps them; None is "patches" on a GPU and "native" on a
        CPU. precision: of products in h and g.
        Raises ModelError for a module that cannot be used, with the way out.
        """
        device = device or example.device
        convolutions = convolutions or preferred(device)
        with forked(0):
            modules = _modules(network)
        lanes = iter(range(1 << 20))
        parts = {
            name: _part(copy.deepcopy(module).to(device=device, dtype=dtype), lanes, convolutions)
            for name, module in zip(PARTS, modules, strict=True)
        }
        model = cls(
            network,
            kind,
            parts,
            dtype,
            device,
            convolutions=convolutions,
            precision=precision,
        )
        _check(model, example.to(device=device, dtype=dtype), outputs)
        return model

    @property
    def mixes_rows(self) -> bool:
        """Whether a row's outputs depend on the batch's other rows, as with batch statistics."""
        return any(
            isinstance(layer, nn.modules.batchnorm._BatchNorm)
            for part in self.parts.values()
            for layer in part.training.modules()
        )

    def init(self, seed: int) -> Theta:
        """Initial weights of one replica: the network's own, drawn under a generator of its own."""
        key = keys.derive(seed, keys.Purpose.WEIGHTS)
        with forked(int((key[0] << 31) | (key[1] >> 1))):
            modules = dict(zip(PARTS, _modules(self.network), strict=True))
            if self.gate:
                modules["gate"] = _gate_module(self.network, self.gate)
        return {
            name: {
                k: p.detach().to(device=self.device, dtype=self.dtype, copy=True)
                for k, p in module.named_parameters()
            }
            for name, module in modules.items()
        }

    def gated(self, gate: Gate) -> "Model":
        """The same model with a second network, part "gate" of theta, that multiplies the first.

        gate: "features", a network of h's shape whose sigmoid multiplies h's features; "outputs",
        one of the shape of g(h(.)) whose outputs multiply the model's. The other parts start from
        the same weights as without a gate.
        """
        lanes = iter(range(1 << 20, 1 << 21))
        with forked(0):
            module = _gate_module(self.network, gate)
        module = copy.deepcopy(module).to(device=self.device, dtype=self.dtype)
        part = _part(module, lanes, self.convolutions)
        return replace(self, parts={**self.parts, "gate": part}, gate=gate)

    def features(self, theta_1: Parameters, x: Tensor, key: Tensor | None = None) -> Tensor:
        """h(x; theta_1): features (n, ...). key None: evaluation, without dropout."""
        return self._apply("representation", theta_1, x, key)

    def outputs(self, theta_2: Parameters, features: Tensor, key: Tensor | None = None) -> Tensor:
        """g(features; theta_2): logits (n, classes), or values (n, outputs)."""
        return self._apply("prediction", theta_2, features, key)

    def predict(self, theta: Theta, x: Tensor, key: Tensor | None = None) -> Tensor:
        """g(h(x; theta_1); theta_2); gated, if the model has a gate."""
        return self.answer(theta, self.seen(theta, x, key), x, key)

    def seen(self, theta: Theta, x: Tensor, key: Tensor | None = None) -> Tensor:
        """What g sees of x: h(x; theta_1), multiplied by a gate of features if there is one."""
        features = self.features(theta["representation"], x, key)
        if self.gate != "features":
            return features
        return features * torch.sigmoid(self._apply("gate", theta["gate"], x, key))

    def answer(self, theta: Theta, seen: Tensor, x: Tensor, key: Tensor | None = None) -> Tensor:
        """g of what it sees, multiplied by a gate of outputs if there is one."""
        outputs = self.outputs(theta["prediction"], seen, key)
        if self.gate != "outputs":
            return outputs
        return outputs * self._apply("gate", theta["gate"], x, key)

    def _apply(self, part: str, parameters: Parameters, x: Tensor, key: Tensor | None) -> Tensor:
        with products(self.precision, self.device):
            out = self.parts[part].apply(parameters, x, key)
        return out.to(self.dtype) if out.dtype == torch.bfloat16 else out

    def cost(self, theta: Theta, batch: Batch, key: Tensor | None = None) -> Tensor:
        """J: the weighted mean of the losses of a batch, 0 for a batch without rows; a scalar.

        J_N, J_P and J_PN of the paper are this cost on b_N, b_P and b_PN.
        """
        return weighted_mean(self.losses(self.predict(theta, batch.x, key), batch.y), batch.w)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The cost of each row (n,): cross entropy on logits, or squared error's mean."""
        count_rows(outputs.shape[0])
        if self.kind == "classification":
            return functional.cross_entropy(outputs, y, reduction="none")
        return (outputs - y).square().flatten(1).mean(1)

    def errors(self, outputs: Tensor, y: Tensor, within: Tensor | None = None) -> Tensor:
        """The error of each row (n,), float64: 0 or 1 for a class, the mean squared error else.

        within: bool (n, classes), the classes that the answer is looked for in; None for all.
        Outputs that are not finite are wrong, whatever an argmax would make of them.
        """
        if self.kind == "classification":
            finite = outputs.isfinite().all(-1)
            if within is not None:
                outputs = torch.where(within, outputs, -torch.inf)
            right = (outputs.argmax(-1) == y) & finite
            return 1.0 - right.to(torch.float64)
        return (outputs.to(torch.float64) - y).square().flatten(1).mean(1)


def initial(model: Model, seeds: Sequence[int]) -> Theta:
    """Initial weights of many replicas, stacked: leaf (replicas, ...)."""
    theta: Theta = stack([model.init(seed) for seed in seeds])
    return theta


@contextmanager
def forked(seed: int) -> Iterator[None]:
    """Seeds PyTorch's, NumPy's and Python's global generators for a block, and puts them back."""
    import random

    import numpy as np

    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)


def _modules(network: Network) -> tuple[nn.Module, nn.Module]:
    modules = network()
    pair = isinstance(modules, tuple | list) and len(modules) == len(PARTS)
    if not pair or not all(isinstance(m, nn.Module) for m in modules):
        raise ModelError(
            f"A network must return (representation, prediction), two modules, got {modules!r:.80}."
        )
    return modules


def _gate_module(network: Network, gate: Gate) -> nn.Module:
    modules = _modules(network)
    return modules[0] if gate == "features" else nn.Sequential(*modules)


def _part(module: nn.Module, lanes: Iterator[int], convolutions: Convolutions) -> Part:
    training = _with_keyed_dropout(module, lanes).train()
    if convolutions == "patches":
        training = with_patches(training)
    for name, layer in training.named_modules():
        if getattr(layer, "track_running_stats", False):
            raise ModelError(
                f"A network may not keep running statistics, got {type(layer).__name__} "
                f"'{name}'; use GroupNorm or LayerNorm, or track_running_stats=False."
            )
    training.requires_grad_(False)
    names = tuple(
        f"{name}.key" if name else "key"
        for name, layer in training.named_modules()
        if isinstance(layer, KeyedDropout)
    )
    return Part(training, copy.deepcopy(training).eval(), names)


def _with_keyed_dropout(module: nn.Module, lanes: Iterator[int]) -> nn.Module:
    if type(module) in _DROPOUT:
        p = float(module.p)  # type: ignore[arg-type]
        device = next(module.parameters(), torch.zeros(())).device
        return KeyedDropout(p, _DROPOUT[type(module)], next(lanes)).to(device)
    for name, child in module._modules.items():  # named_children would skip a repeated layer
        if child is not None:
            setattr(module, name, _with_keyed_dropout(child, lanes))
    return module


def _check(model: Model, example: Tensor, outputs: int) -> None:
    """Runs the network once in training mode, and says what is wrong with it."""
    theta: Theta = {
        name: dict(part.training.named_parameters()) for name, part in model.parts.items()
    }
    key = keys.derive(0, keys.Purpose.DROPOUT).to(example.device)
    calls: Counter[Any] = Counter()
    hooks = [
        layer.register_forward_hook(lambda layer, *_: calls.update([layer]))
        for part in model.parts.values()
        for layer in part.training.modules()
        if isinstance(layer, KeyedDropout)
    ]
    with forked(0):
        before = _global_state()
        try:
            out = model.predict(theta, example, key)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            reason = str(error).split("\n")[0]
            raise ModelError(
                f"The network does not take inputs of shape {tuple(example.shape[1:])}: {reason}."
            ) from None
        finally:
            for hook in hooks:
                hook.remove()
        untouched = _same_state(before, _global_state())
    for layer, count in calls.items():
        if count > 1:
            raise ModelError(
                f"A dropout layer may be called once a pass, or its masks would repeat, and "
                f"{type(layer).__name__}(p={layer.p}) is called {count} times; "
                "use one nn.Dropout a place."
            )
    if not untouched:
        raise ModelError(
            "A network may not draw from PyTorch's global generator (torch.nn.functional.dropout, "
            "attention dropout); use nn.Dropout layers, which are made reproducible."
        )
    if out.shape != (example.shape[0], outputs):
        raise ModelError(
            f"The prediction network must give {outputs} outputs a row, "
            f"got the shape {tuple(out.shape[1:])}; set the size of its last layer."
        )


def _global_state() -> list[Tensor]:
    states = [torch.random.get_rng_state()]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state())
    return states


def _same_state(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=False))


def has_convolution(model: Model) -> bool:
    """Whether any layer is a convolution: under vmap on a CPU they become slow grouped ones."""
    convolutions: Any = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.modules.conv._ConvTransposeNd)
    return any(
        isinstance(layer, convolutions)
        for part in model.parts.values()
        for layer in part.training.modules()
    )
