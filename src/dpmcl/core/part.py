"""One module of a network as a pure function of its parameters, inputs, row weights and a key."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dpmcl.core import keys
from dpmcl.core.batch_norm import STATISTICS, MaskedBatchNorm, mask_batch_norm, take_statistics
from dpmcl.core.convolution import Convolutions, with_patches
from dpmcl.core.generators import forked
from dpmcl.core.process_lock import ProcessLock
from dpmcl.exceptions import DpmclError, ModelError, reason

Parameters = dict[str, Tensor]
Theta = dict[str, Parameters]
Buffers = dict[str, Parameters]
"""Running statistics of normalisation layers: part -> name -> tensor."""

Modules = tuple[nn.Module, nn.Module]
Network = Callable[[], Modules]
PARTS = ("representation", "prediction")

_lock = ProcessLock()


class KeyedDropout(nn.Module):
    """Dropout whose mask is a function of a key: the same under vmap, in a loop, on CPU and GPU.

    A layer that is called several times in a pass draws a new mask each time.

    Args:
        p: Share of values that are set to 0.
        mask_dimensions: Number of leading dimensions of the input along which masks differ (2 for
            the channel-wise forms); None for all.
        input_dimensions: Number of dimensions of an input with rows; None for any.
        lane: Number of the layer, so that layers that get the same key draw different masks.
    """

    key: Tensor

    def __init__(
        self, p: float, mask_dimensions: int | None, input_dimensions: int | None, *, lane: int
    ) -> None:
        super().__init__()
        self.p, self.mask_dimensions, self.lane = p, mask_dimensions, lane
        self.input_dimensions = input_dimensions
        self.calls = 0  # in this pass
        self.register_buffer("key", torch.zeros(2, dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if self.input_dimensions not in (None, x.dim()):
            raise ModelError(
                f"nn.Dropout{self.input_dimensions - 2}d drops channels of inputs with "
                f"{self.input_dimensions} dimensions, but whole rows of one with {x.dim()}; use "
                "nn.Dropout, or keep (rows, channels, ...)."
            )
        dimensions = x.dim() if self.mask_dimensions is None else self.mask_dimensions
        shape = [*x.shape[:dimensions], *[1] * (x.dim() - dimensions)]
        mask = keys.uniform(self.key, shape, self.lane + (self.calls << 32)) >= self.p
        self.calls += 1
        return x * mask.to(x.dtype) / (1 - self.p) if self.p < 1 else x * 0


_DROPOUT: dict[type[nn.Module], tuple[int | None, int | None]] = {
    nn.Dropout: (None, None),
    nn.Dropout1d: (2, 3),
    nn.Dropout2d: (2, None),
    nn.Dropout3d: (2, 5),
}
"""`mask_dimensions` and `input_dimensions` of our class for each of PyTorch's."""


@dataclass(frozen=True)
class Part:
    """One module as a pure function of its parameters.

    Frozen parameters and constant buffers stay in the module.

    Attributes:
        training: Copy that runs if `apply` gets a key, with dropout and batch statistics.
        evaluation: Copy that runs without a key, without dropout and with running statistics.
        parameters: Initial values of the trainable parameters, by name.
        statistics: Initial running statistics, by name.
        tied: Maps each further name of a trainable parameter that layers share to its first name.
        keyed: Dropout layers of `training`, by the name of the buffer that holds their key.
        w_names: Names of the buffers of `training` from which layers read the rows' weights.
        draws: Layers of the network that draw from global generators in training. If there are
            any, training passes seed these generators by the key, so that all draws are functions
            of the key.
        lane: Number of the part, so that parts that get the same key draw different numbers.
    """

    training: nn.Module
    evaluation: nn.Module
    parameters: Parameters
    statistics: Parameters
    tied: dict[str, str]
    keyed: dict[str, KeyedDropout]
    w_names: tuple[str, ...]
    draws: tuple[str, ...] = ()
    lane: int = 0

    def apply(
        self,
        parameters: Parameters,
        x: Tensor,
        key: Tensor | None,
        *,
        w: Tensor | None = None,
        statistics: Parameters | None = None,
    ) -> tuple[Tensor, Parameters]:
        """Return the module's output, and the running statistics after this pass.

        Args:
            parameters: Trainable parameters by name.
            x: Inputs (n, ...).
            key: Key of the random draws of a training pass, int64 (2,); None for evaluation.
            w: Weights of the rows (n,); in training, rows of weight 0 do not enter the statistics
                of BatchNorm. None if all rows are present.
            statistics: Running statistics that evaluation uses (None for the initial ones), or that
                training updates (None to update none).
        """
        statistics = statistics or {}
        values = {**parameters, **statistics}
        module = self.evaluation
        seeded: AbstractContextManager[None] = nullcontext()
        if key is not None:
            module = self.training
            values.update(dict.fromkeys(self.keyed, key))
            if self.draws:
                seeded = forked(keys.as_seed(keys.bits(key, 2, self.lane)), x.device)
            if w is not None:
                values.update(dict.fromkeys(self.w_names, w))
        for name, first in self.tied.items():
            values[name] = values[first]
        # functional_call puts `values` into the module during the pass, so only one thread at a
        # time can be in it. It writes buffers that the pass replaces into `values`. With
        # tie_weights=True it would not restore a layer that is used in two places. Seeding comes
        # first, since a thread may enter a module while it has seeded.
        with seeded, _lock.current:
            try:
                out: Tensor = torch.func.functional_call(module, values, (x,), tie_weights=False)
            finally:
                for layer in self.keyed.values():
                    layer.calls = 0
        return out, {name: values[name] for name in statistics}


def parameters_of(parts: dict[str, Part]) -> Theta:
    """Return the initial trainable parameters of the parts.

    Args:
        parts: The parts of a model.
    """
    return {name: part.parameters for name, part in parts.items()}


def with_seeded_draws(parts: dict[str, Part], layers: Sequence[str]) -> dict[str, Part]:
    """Return copies of the parts whose training passes seed the global generators by the key.

    Args:
        parts: The parts of a model.
        layers: Labels of the layers that draw from global generators in training; if there are
            none, the passes seed nothing.
    """
    return {
        name: replace(part, draws=tuple(layers), lane=(1 << 21) + number)
        for number, (name, part) in enumerate(parts.items())
    }


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of a module that are not frozen (requires_grad), by name.

    Args:
        module: The module.
    """
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def modules_of(network: Network) -> Modules:
    """Build a network and return its two modules, (representation, prediction).

    Args:
        network: Builds the two modules.

    Raises:
        ModelError: The network raises an exception, or does not return two modules.
    """
    try:
        modules = network()
    except DpmclError:
        raise
    except Exception as error:
        raise ModelError(
            f"The network cannot be built: {type(error).__name__}: {reason(error)}; fix its "
            "`build`, or use another network (`dpmcl list`)."
        ) from error
    pair = isinstance(modules, tuple | list) and len(modules) == len(PARTS)
    if not pair or not all(isinstance(m, nn.Module) for m in modules):
        raise ModelError(
            f"A network must return (representation, prediction), two modules, got {modules!r:.80}."
        )
    with modes_restored(modules):
        for module in modules:
            module.train()  # it may freeze parameters
    return modules


@contextmanager
def modes_restored(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Restore the modes of all layers, training or evaluation, after a block.

    Args:
        modules: The modules whose layers the block may set to other modes.
    """
    modes = [(layer, layer.training) for module in modules for layer in module.modules()]
    try:
        yield
    finally:
        for layer, mode in modes:
            layer.training = mode


def part_of(
    module: nn.Module,
    lanes: Iterator[int],
    *,
    convolutions: Convolutions,
    dtype: torch.dtype,
    device: torch.device,
) -> Part:
    """Return a part made from a copy of a module.

    In the copy, the masks of dropout follow from a key, BatchNorm leaves absent rows out, and no
    activation works in place, since its input may be used again (DPMCL uses features several
    times).

    Args:
        module: One of the two modules of a network; it is not changed.
        lanes: Yields a number for each dropout layer, different for all layers of a model.
        convolutions: How plain nn.Conv2d layers compute ("native" or "patches").
        dtype: Type of floating-point parameters and buffers.
        device: Device of parameters and buffers.
    """
    training = copy.deepcopy(module).to(device=device, dtype=dtype)
    training.train()
    training = _with_keyed_dropout(training, lanes)
    if convolutions == "patches":
        training = with_patches(training)
    for layer in training.modules():
        if getattr(layer, "inplace", False) is True:
            layer.inplace = False  # type: ignore[assignment]
    names = list(trainable(training))
    tied = {name: first for name, first in _tied_names(training).items() if first in names}
    training = mask_batch_norm(training.requires_grad_(False))
    parameters = dict(training.named_parameters())
    evaluation = copy.deepcopy(training)
    evaluation.eval()
    return Part(
        evaluation=evaluation,
        training=training,
        parameters={name: parameters[name] for name in names},
        statistics=take_statistics(training),
        tied=tied,
        keyed=_layers_by_buffer(training, KeyedDropout, "key"),
        w_names=tuple(_layers_by_buffer(training, MaskedBatchNorm, "w")),
    )


def quiet_copy(part: Part, dtype: torch.dtype, device: torch.device | None = None) -> Part:
    """Return a copy of a part in whose training passes no row affects another.

    Dropout drops nothing and BatchNorm uses the initial running statistics.

    Args:
        part: The part to copy.
        dtype: Type of floating-point parameters and buffers.
        device: Device of the copy; None for that of the part.
    """
    copied = converted(part, dtype, device)
    for layer, twin in zip(copied.training.modules(), copied.evaluation.modules(), strict=True):
        if isinstance(layer, KeyedDropout):
            layer.p = 0.0
        elif isinstance(layer, MaskedBatchNorm):
            layer.eval()
            for name in STATISTICS:
                layer.register_buffer(name, twin.get_buffer(name))
    return replace(copied, draws=())


def converted(part: Part, dtype: torch.dtype, device: torch.device | None = None) -> Part:
    """Return a copy of a part that computes in another type.

    Args:
        part: The part to copy.
        dtype: Type of floating-point parameters and buffers.
        device: Device of the copy; None for that of the part.
    """
    training, evaluation = (
        copy.deepcopy(module).to(device=device, dtype=dtype)
        for module in (part.training, part.evaluation)
    )
    named_parameters = dict(training.named_parameters())
    return replace(
        part,
        training=training,
        evaluation=evaluation,
        parameters={name: named_parameters[name] for name in part.parameters},
        statistics={
            name: value.to(device=device, dtype=dtype if value.is_floating_point() else None)
            for name, value in part.statistics.items()
        },
        keyed=_layers_by_buffer(training, KeyedDropout, "key"),
    )


def _layers_by_buffer(module: nn.Module, kind: type[nn.Module], buffer: str) -> dict[str, Any]:
    """Return the layers of a class, by the full name of their buffer `buffer`."""
    return {
        f"{name}.{buffer}" if name else buffer: layer
        for name, layer in module.named_modules()
        if isinstance(layer, kind)
    }


def _tied_names(module: nn.Module) -> dict[str, str]:
    """Map each further name of a parameter that several layers share to its first name."""
    names: dict[Tensor, str] = {}
    tied = {}
    for prefix, layer in module.named_modules():
        for name, parameter in layer.named_parameters(prefix, recurse=False):
            first = names.setdefault(parameter, name)
            if first != name:
                tied[name] = first
    return tied


def _with_keyed_dropout(module: nn.Module, lanes: Iterator[int]) -> nn.Module:
    """Replace the dropout layers of a module that are in training mode, in place, and return it."""
    if type(module) in _DROPOUT and module.training:
        p = float(module.p)  # type: ignore[arg-type]
        device = next(module.parameters(), torch.zeros(())).device
        return KeyedDropout(p, *_DROPOUT[type(module)], lane=next(lanes)).to(device)
    for name, child in module._modules.items():  # named_children would skip a repeated layer
        if child is not None:
            setattr(module, name, _with_keyed_dropout(child, lanes))
    return module
