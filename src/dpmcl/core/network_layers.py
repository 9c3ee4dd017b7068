"""The layers of a network: their labels in messages, their state, and what they do in a pass."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import cloudpickle
import torch
from torch import Tensor, nn

from dpmcl.core.generators import states
from dpmcl.core.not_public import pyfunctorch
from dpmcl.core.part import PARTS, Modules, Part
from dpmcl.core.tree import equal
from dpmcl.exceptions import DpmclError, ModelError, reason

Parts = dict[str, Part]

# Attributes of PyTorch itself; recurrent layers rebuild their `_flat_weights` in each pass.
_INTERNAL = {*vars(nn.Module()), "_flat_weights", "_flat_weight_refs"} - {"training"}


def named_layers(modules: Sequence[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers of both parts, as (label for messages, layer).

    Args:
        modules: The two modules of a network, or one module that is not split yet.
    """
    for part, module in zip(PARTS, modules, strict=False):
        for name, layer in module.named_modules(prefix=part):
            kind = type(layer).__name__.removeprefix("Keyed").removeprefix("Masked")
            yield f"{name}: {kind}", layer


def attributes_of(layer: nn.Module) -> dict[str, Any]:
    """Return a layer's attributes, its mode among them, without those of PyTorch itself.

    Args:
        layer: The layer, without its children.
    """
    return {name: value for name, value in vars(layer).items() if name not in _INTERNAL}


def hooks_of(layer: nn.Module) -> list[Any]:
    """Return the functions that are registered as hooks of a layer.

    Args:
        layer: The layer, without its children.
    """
    kinds = [value for name, value in vars(layer).items() if name.endswith("_hooks")]
    return [hook for hooks in kinds if isinstance(hooks, dict) for hook in hooks.values()]


def settings_of(layer: nn.Module) -> dict[str, Any]:
    """Return what a layer has beside values: attributes, hooks, names of frozen parameters.

    Its mode is left out, since a run sets it.

    Args:
        layer: The layer, without its children.
    """
    settings = attributes_of(layer)
    settings.pop("training", None)
    settings["hooks"] = hooks_of(layer)
    settings["frozen"] = [n for n, p in layer.named_parameters() if not p.requires_grad]
    return settings


def modules_by_mode(parts: Parts) -> tuple[Modules, Modules]:
    """Return the modules for training and those for evaluation.

    Args:
        parts: The parts of a model.
    """
    h, g = (parts[name] for name in PARTS)
    return (h.training, g.training), (h.evaluation, g.evaluation)


def state_of(modules: Modules) -> dict[str, Any]:
    """Return copies of what all layers hold, by its label in messages.

    They are parameters, buffers, attributes, and what hooks hold beside the layers.

    Args:
        modules: The two modules of a network.
    """
    copies: dict[str, Any] = {}
    for label, layer in named_layers(modules):
        copies[f"the layer {label}"] = True
        for number, hook in enumerate(hooks_of(layer)):
            if not isinstance(getattr(hook, "__self__", None), nn.Module):  # has attributes itself
                copies[f"hook {number} of {label}"] = _snapshot(hook)
        for kind, values in (
            ("parameter", layer._parameters),
            ("buffer", layer._buffers),
            ("attribute", attributes_of(layer)),
        ):
            for name, value in values.items():
                copies[f"the {kind} '{name}' of {label}"] = _snapshot(value)
    return copies


def _snapshot(value: Any) -> Any:
    """Return a value by which a later change of this one can be detected."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, torch.Generator):
        return value.get_state()
    try:
        return cloudpickle.dumps(value)
    except Exception:  # a file or a lock: only a change of the object can be detected
        return id(value)


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the names of values that differ, or that only one of two dicts has.

    Args:
        before, after: Values by name, as `state_of` returns them.
    """
    names = {**before, **after}
    return [name for name in names if not equal(before.get(name), after.get(name))]


@contextmanager
def name_layer_in_errors(parts: Parts, rule: str, way_out: str) -> Iterator[None]:
    """Turn exceptions of other libraries in a block's passes into a ModelError with the layer.

    Args:
        parts: Parts whose layers are followed; {} for none.
        rule: First words of the message, before the layer.
        way_out: Last words of the message, the remedy.
    """
    entered: list[str] = []
    with record_layers(parts, entered):
        try:
            yield
        except DpmclError:
            raise
        except Exception as error:
            where = f" in {entered[-1]}" if entered else ""
            raise ModelError(f"{rule}{where}: {reason(error)}; {way_out}.") from error


@contextmanager
def record_layers(
    parts: Parts, entered: list[str], callback: Callable[[], None] = lambda: None
) -> Iterator[list[tuple[str, Any]]]:
    """Record the layers that a block's passes go through, and yield a list of (label, result).

    Layers enter the list as they end, except those that are mapped or differentiated by torch.func
    in another layer's `forward`, whose results have no values outside of it. Under these hooks some
    layers compute in another way.

    Args:
        parts: Parts whose layers are recorded; {} for none.
        entered: Filled with the labels of the layers that a pass is in, outermost first.
        callback: Called before a layer is entered and before it is left.
    """
    results: list[tuple[str, Any]] = []
    transformations = pyfunctorch.retrieve_all_functorch_interpreters
    outside = len(transformations())

    def enter(label: str) -> None:
        callback()
        entered.append(label)

    def leave(_layer: nn.Module, _inputs: Any, out: Any) -> None:
        callback()
        label = entered.pop()
        if len(transformations()) == outside:
            results.append((label, out))

    with ExitStack() as hooks:
        for modules in modules_by_mode(parts) if parts else ():
            for label, layer in named_layers(modules):
                before = layer.register_forward_pre_hook(lambda *_, label=label: enter(label))
                hooks.callback(before.remove)
                hooks.callback(layer.register_forward_hook(leave).remove)
        yield results


@contextmanager
def record_draws(parts: Parts) -> Iterator[list[str]]:
    """Record the layers whose own code draws from global generators in the passes of a block.

    Args:
        parts: Parts whose layers are followed.
    """
    entered: list[str] = []
    drawn: list[str] = []
    latest = states()

    def callback() -> None:
        nonlocal latest
        before, latest = latest, states()
        if entered and before != latest:
            drawn.append(entered[-1])

    with record_layers(parts, entered, callback):
        yield drawn
