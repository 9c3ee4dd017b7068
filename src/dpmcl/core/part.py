"""One module as a pure function of its parameters and a key."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpmcl.core import keys
from dpmcl.core.convolution import Convolutions, with_patches
from dpmcl.exceptions import DpmclError, ModelError, reason

Parameters = dict[str, Tensor]
Theta = dict[str, Parameters]
Modules = tuple[nn.Module, nn.Module]
Network = Callable[[], Modules]
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
    """One module as a pure function: apply(parameters, x, key), key None for evaluation.

    tied: for each further name of a parameter that several layers share, its first name.
    """

    training: nn.Module
    evaluation: nn.Module
    key_names: tuple[str, ...]
    tied: dict[str, str]

    def apply(self, parameters: Parameters, x: Tensor, key: Tensor | None) -> Tensor:
        values = {**parameters, **{name: parameters[of] for name, of in self.tied.items()}}
        module = self.evaluation
        if key is not None:
            module = self.training
            values |= dict.fromkeys(self.key_names, key)
        # Left to tie by itself, it would not put back a layer that is used in two places.
        out: Tensor = torch.func.functional_call(module, values, (x,), tie_weights=False)
        return out


def own(parts: dict[str, Part]) -> Theta:
    """Return the parameters that the parts themselves hold."""
    return {name: dict(part.training.named_parameters()) for name, part in parts.items()}


def modules_of(network: Network) -> Modules:
    """Build the two modules of a network: (representation, prediction).

    Raises ModelError where that fails or gives something else.
    """
    try:
        modules = network()
    except DpmclError:
        raise
    except Exception as error:
        raise ModelError(
            f"The network cannot be built: {type(error).__name__}: {reason(error)}; mend its "
            "`build`, or use another network (`dpmcl list`)."
        ) from error
    pair = isinstance(modules, tuple | list) and len(modules) == len(PARTS)
    if not pair or not all(isinstance(m, nn.Module) for m in modules):
        raise ModelError(
            f"A network must return (representation, prediction), two modules, got {modules!r:.80}."
        )
    return modules


def part_of(
    module: nn.Module,
    lanes: Iterator[int],
    convolutions: Convolutions,
    dtype: torch.dtype,
    device: torch.device,
) -> Part:
    """Return a part made of a copy of a module.

    In the copy dropout is keyed, convolutions are as asked for, and no activation works in place:
    its input may be needed again (DPMCL uses features several times).
    """
    module = copy.deepcopy(module).to(device=device, dtype=dtype)
    training = _with_keyed_dropout(module, lanes).train()
    if convolutions == "patches":
        training = with_patches(training)
    for layer in training.modules():
        if getattr(layer, "inplace", False) is True:
            layer.inplace = False  # type: ignore[assignment]
    training.requires_grad_(False)
    names = tuple(
        f"{name}.key" if name else "key"
        for name, layer in training.named_modules()
        if isinstance(layer, KeyedDropout)
    )
    return Part(training, copy.deepcopy(training).eval(), names, _tied(training))


def _tied(module: nn.Module) -> dict[str, str]:
    first: dict[Tensor, str] = {}
    tied = {}
    for prefix, layer in module.named_modules():
        for name, parameter in layer.named_parameters(prefix, recurse=False):
            known = first.setdefault(parameter, name)
            if known != name:
                tied[name] = known
    return tied


def _with_keyed_dropout(module: nn.Module, lanes: Iterator[int]) -> nn.Module:
    if type(module) in _DROPOUT:
        p = float(module.p)  # type: ignore[arg-type]
        device = next(module.parameters(), torch.zeros(())).device
        return KeyedDropout(p, _DROPOUT[type(module)], next(lanes)).to(device)
    for name, child in module._modules.items():  # named_children would skip a repeated layer
        if child is not None:
            setattr(module, name, _with_keyed_dropout(child, lanes))
    return module
