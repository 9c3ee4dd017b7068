"""Split a user's module into representation and prediction, and freeze layers."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dpmcl.core.network_check import check_layers
from dpmcl.exceptions import ModelError, listed, reason, shown, unknown

_BY_HAND = (
    "give two modules, (representation, prediction), or name the layer that predicts (before=...)"
)


def split_in_two(
    modules: Any, before: str | None, shape: tuple[int, ...]
) -> tuple[nn.Module, nn.Module]:
    """Return the representation and the prediction of one module, or two modules as they are.

    The two parts of one module are compared with it on made-up rows.

    Args:
        modules: One module, which is changed, or two.
        before: Name of the layer that becomes the prediction; None for the last linear layer.
        shape: Shape of one input.

    Raises:
        ModelError: The module cannot be split before this layer.
    """
    if isinstance(modules, tuple | list) and len(modules) == 2:
        return modules[0], modules[1]
    if not isinstance(modules, nn.Module):
        raise ModelError(f"A network is one module or two, got {shown(modules)}.")
    check_layers((modules,))
    like = next(modules.parameters(), torch.zeros(()))
    generator = torch.Generator().manual_seed(0)
    x = torch.rand((4, *shape), generator=generator).to(like)
    original = copy.deepcopy(modules).eval()
    name = before if before is not None else _last_linear(original, x)
    layers = dict(modules.named_modules())
    if name not in layers or not name:
        raise ModelError(
            str(unknown("layer", name, [*layers][1:], f"It has {listed(filter(None, layers))}."))
        )
    prediction = layers[name]
    parent, _, child = name.rpartition(".")
    setattr(layers[parent], child, nn.Identity())
    _check_split(original, (modules, prediction), name, x)
    return modules, prediction


def freeze(
    pair: tuple[nn.Module, nn.Module], modules: Any, names: Sequence[str]
) -> tuple[nn.Module, nn.Module]:
    """Freeze layers of both parts, and return the parts.

    Args:
        pair: Representation and prediction, which are changed.
        modules: The user's module or two modules. Layers of one module have their names in it;
            names for two begin with "representation." or "prediction.".
        names: Names of the layers to freeze.

    Raises:
        ModelError: There is no such layer, or nothing is left to train.
    """
    parts = dict(zip(("representation", "prediction"), pair, strict=True))
    layers = {
        name.removeprefix("representation.") if isinstance(modules, nn.Module) else name: layer
        for part, module in parts.items()
        for name, layer in module.named_modules(prefix=part)
    }
    for name in names:
        if name not in layers:
            raise ModelError(
                str(unknown("layer", name, [*layers], f"It has {listed(filter(None, layers))}."))
            )
        for layer in layers[name].requires_grad_(False).eval().modules():
            layer.train = _stay_in_evaluation
    if names and not any(p.requires_grad for module in pair for p in module.parameters()):
        raise ModelError("Everything is frozen; leave the layers that are to learn out of frozen.")
    return pair


def with_outputs(pair: tuple[nn.Module, nn.Module], outputs: int) -> tuple[nn.Module, nn.Module]:
    """Return the parts with a last linear layer of `outputs` units, new if it has others.

    Args:
        pair: Representation and prediction.
        outputs: Width of the last linear layer.
    """
    representation, prediction = pair
    linear = [(n, m) for n, m in prediction.named_modules() if isinstance(m, nn.Linear)]
    if not linear or linear[-1][1].out_features == outputs:
        return pair
    name, old = linear[-1]
    new = nn.Linear(old.in_features, outputs, bias=old.bias is not None).to(old.weight)
    if not name:
        return representation, new
    parent, _, child = name.rpartition(".")
    setattr(prediction.get_submodule(parent), child, new)
    return pair


def _last_linear(module: nn.Module, x: Tensor) -> str:
    """Return the name of the linear layer whose output is the module's result."""
    results: list[tuple[str, Any]] = []
    hooks = [
        layer.register_forward_hook(lambda _m, _x, out, label=name: results.append((label, out)))
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    try:
        with torch.no_grad():
            out = module(x)
    except Exception as error:  # the user's module may raise anything
        embeds = any(isinstance(layer, nn.Embedding) for layer in module.modules())
        way_out = f"fix it, or {_BY_HAND}"
        raise ModelError(
            f"The network does not take inputs of shape {tuple(x.shape[1:])}: {reason(error)}; "
            f"{'inputs come as floats, so give an embedding x.long()' if embeds else way_out}."
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    if not results:
        raise ModelError(f"The network has no linear layer before which to split it; {_BY_HAND}.")
    name, last = results[-1]
    if last is not out or not name:
        what = f"more is computed after its last linear layer '{name}'" if name else "it is one"
        raise ModelError(f"The network cannot be split by itself, since {what}; {_BY_HAND}.")
    return name


def _check_split(
    original: nn.Module, pair: tuple[nn.Module, nn.Module], name: str, x: Tensor
) -> None:
    """Raise ModelError if the parts together do not compute what the module computes."""
    h, g = (copy.deepcopy(module).eval() for module in pair)
    try:
        with torch.no_grad():
            same = torch.equal(g(h(x)), original(x))
    except Exception:  # the rest of the network does not accept the input of the layer
        same = False
    if not same:
        raise ModelError(
            f"The network cannot be split before '{name}', since that layer is not its last step; "
            f"{_BY_HAND}."
        )


def _stay_in_evaluation(mode: bool = True) -> None:
    """Replace `train` of a frozen layer, so that it stays in evaluation mode."""
