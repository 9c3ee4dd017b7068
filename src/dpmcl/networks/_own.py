"""Split a user's module into representation and prediction, and freeze layers."""

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import torch
from torch import Tensor, nn

from dpmcl.core.generators import forked
from dpmcl.core.network_check import check_layers, made_up_inputs
from dpmcl.core.network_layers import hooks_of
from dpmcl.core.part import PARTS
from dpmcl.exceptions import ModelError, listed, reason, shown, unknown

_BY_HAND = (
    "give two modules, (representation, prediction), or name the layer that predicts (before=...)"
)


def members_of(modules: Any) -> tuple[nn.Module, ...]:
    """Return one module or two as a tuple.

    Args:
        modules: Object of any type.

    Raises:
        ModelError: It is neither.
    """
    members = tuple(modules) if isinstance(modules, tuple | list) else (modules,)
    if len(members) not in (1, 2) or not all(isinstance(m, nn.Module) for m in members):
        raise ModelError(
            "A network of your own is a module, two modules (representation, prediction), or a "
            f"function of (shape, outputs) that returns either, got {shown(modules)}."
        )
    return members


def split_in_two(
    members: tuple[nn.Module, ...], before: str | None, shape: tuple[int, ...]
) -> tuple[nn.Module, nn.Module]:
    """Return the representation and the prediction of one module, or two modules as they are.

    The two parts of one module are compared with it on made-up rows.

    Args:
        members: One module, which is changed, or two.
        before: Name of the layer that becomes the prediction; None for the last linear layer.
        shape: Shape of one input.

    Raises:
        ModelError: The module cannot be split before this layer.
    """
    if len(members) == 2:
        return members
    check_layers(members)
    (module,) = members
    if before is None and isinstance(module, nn.Linear):
        return nn.Identity(), module
    like = next(module.parameters(), torch.zeros(()))
    x = made_up_inputs(4, shape).to(like)
    original = copy.deepcopy(module)
    original.eval()
    name = before if before is not None else _last_linear(original, x)
    layers = dict(module.named_modules())
    prediction = _layer(layers, name)
    parent, _, child = name.rpartition(".")
    setattr(layers[parent], child, nn.Identity())
    _check_split(original, (module, prediction), name, x)
    return module, prediction


def freeze(members: tuple[nn.Module, ...], names: Sequence[str]) -> None:
    """Freeze layers, in place.

    Args:
        members: One module, or representation and prediction. Layers of one module have their
            names in it; names for two begin with "representation" or "prediction".
        names: Names of the layers to freeze.

    Raises:
        ModelError: There is no such layer, or nothing is left to train.
    """
    parts = zip(PARTS if len(members) == 2 else ("",), members, strict=True)
    layers = {
        name: layer for part, module in parts for name, layer in module.named_modules(prefix=part)
    }
    for name in names:
        frozen = _layer(layers, name)
        frozen.eval()
        for layer in frozen.requires_grad_(False).modules():
            layer.train = _stay_in_evaluation
    if not any(p.requires_grad for m in layers.values() for p in m.parameters()):
        raise ModelError("Everything is frozen; leave the layers that are to learn out of frozen.")


def with_outputs(
    pair: tuple[nn.Module, nn.Module], outputs: int, shape: tuple[int, ...]
) -> tuple[nn.Module, nn.Module]:
    """Return the parts with `outputs` outputs, by a new last linear layer if they have others.

    Args:
        pair: Representation and prediction.
        outputs: Width of the prediction's result.
        shape: Shape of one input.

    Raises:
        ModelError: A new layer would not do what the last one does.
    """
    representation, prediction = pair
    linear = [n for n, m in prediction.named_modules() if isinstance(m, nn.Linear)]
    is_last_step = True
    h, g = whole = nn.Sequential(*copy.deepcopy(pair))
    whole.eval()
    with suppress(Exception):  # the check of the network names the layer that fails
        like = next(whole.parameters(), torch.zeros(()))
        with torch.no_grad():
            out, results = _linear_results(g, h(made_up_inputs(4, shape).to(like)))
        if out.shape == (4, outputs):
            return pair
        linear = [n for n, _ in results]  # in the order of their use
        is_last_step = bool(results) and results[-1][1] is out
    if not linear:
        return pair
    name = linear[-1]
    old: Any = prediction.get_submodule(name)
    if old.out_features == outputs:
        return pair
    everywhere = [p for m in pair for _, p in m.named_parameters(remove_duplicate=False)]
    shared = any(sum(p is other for other in everywhere) > 1 for p in old.parameters())
    frozen = not old.weight.requires_grad and any(p.requires_grad for p in everywhere)
    plain = type(old) is nn.Linear and not hooks_of(old)
    if not plain or shared or frozen or not is_last_step:
        raise ModelError(
            f"A plain nn.Linear replaces a last layer whose width is not {outputs}, and this one "
            f"({shown(old)}) is of another class, frozen, shared, has hooks or is not the last "
            "step; name as many classes as it has outputs (classes=[...]), or give a function of "
            "(shape, outputs)."
        )
    new = nn.Linear(old.in_features, outputs, bias=old.bias is not None).to(old.weight)
    if not name:
        return representation, new
    parent, _, child = name.rpartition(".")
    setattr(prediction.get_submodule(parent), child, new)
    return pair


def _layer(layers: Mapping[str, Any], name: str) -> Any:
    """Return the layer of a name; raise ModelError if there is none."""
    if name not in layers or not name:
        names = [*filter(None, layers)]
        raise ModelError(str(unknown("layer", name, names, f"It has {listed(names)}.")))
    return layers[name]


def _last_linear(module: nn.Module, x: Tensor) -> str:
    """Return the name of the linear layer whose output is the module's result."""
    try:
        with torch.no_grad():
            out, results = _linear_results(module, x)
    except Exception as error:  # the user's module may raise anything
        embeds = any(isinstance(layer, nn.Embedding) for layer in module.modules())
        way_out = f"fix it, or {_BY_HAND}"
        raise ModelError(
            f"The network does not take inputs of shape {tuple(x.shape[1:])}: {reason(error)}; "
            f"{'inputs come as floats, so give an embedding x.long()' if embeds else way_out}."
        ) from error
    if not isinstance(out, Tensor):
        raise ModelError(
            f"The network must return one tensor, (rows, outputs), got a {type(out).__name__}; "
            "wrap it in a module that returns the tensor."
        )
    if not results:
        raise ModelError(f"The network has no linear layer before which to split it; {_BY_HAND}.")
    name, last = results[-1]
    if last is not out:
        raise ModelError(
            "The network cannot be split by itself, since more is computed after its last linear "
            f"layer '{name}' (leave out a softmax or sigmoid: costs take logits); {_BY_HAND}."
        )
    return name


def _linear_results(module: nn.Module, x: Tensor) -> tuple[Any, list[tuple[str, Any]]]:
    """Return a module's result, and the name and the result of each linear layer that it uses."""
    results: list[tuple[str, Any]] = []
    with ExitStack() as hooks:
        for name, layer in module.named_modules():
            if isinstance(layer, nn.Linear):
                record = layer.register_forward_hook(
                    lambda _m, _x, out, label=name: results.append((label, out))
                )
                hooks.callback(record.remove)
        return module(x), results


def _check_split(
    original: nn.Module, pair: tuple[nn.Module, nn.Module], name: str, x: Tensor
) -> None:
    """Raise ModelError if the parts together do not compute what the module computes."""

    def results(forward: Callable[[Tensor], Any]) -> Any:
        with torch.no_grad(), forked(0):
            return forward(x.clone())

    for mode in ("in training", "in evaluation"):
        whole, h, g = copies = copy.deepcopy((original, *pair))
        for module in copies:
            module.train(mode == "in training")
        try:
            expected = results(whole)
            if not torch.equal(results(whole), expected):
                continue
        except Exception:  # as in the line above, the check of the network names the layer
            continue
        why = f"that layer is not its last step {mode}"
        try:
            same = torch.equal(results(nn.Sequential(h, g)), expected)
        except Exception as error:  # the rest of the network does not do without the layer
            same = False
            if isinstance(error, AttributeError):
                why = f"the rest of it uses that layer ({reason(error)})"
        if not same:
            raise ModelError(
                f"The network cannot be split before '{name}', since {why}; {_BY_HAND}."
            )


def _stay_in_evaluation(mode: bool = True) -> None:
    """Replace `train` of a frozen layer, so that it stays in evaluation mode."""
