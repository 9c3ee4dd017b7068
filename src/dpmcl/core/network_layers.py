"""The layers of a network: what a message calls them, what they hold, what they do in a pass."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import cloudpickle
import torch
from torch import Tensor, nn

from dpmcl.core.generators import states
from dpmcl.core.part import PARTS, Modules, Part
from dpmcl.exceptions import DpmclError, ModelError, reason

Parts = dict[str, Part]

# What PyTorch itself keeps in a layer; recurrent ones look up their weights anew in each pass.
_INTERNAL = {*vars(nn.Module()), "_flat_weights", "_flat_weight_refs"} - {"training"}


def named_layers(modules: Sequence[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers of both parts, by what a message calls them.

    Args:
        modules: The two modules of a network, or one that has both.
    """
    for part, module in zip(PARTS, modules, strict=False):
        for name, layer in module.named_modules(prefix=part):
            kind = type(layer).__name__.removeprefix("Keyed").removeprefix("Masked")
            yield f"{name}: {kind}", layer


def forms(parts: Parts) -> tuple[Modules, Modules]:
    """Return the modules of training and those of evaluation.

    Args:
        parts: The parts of a model.
    """
    h, g = (parts[name] for name in PARTS)
    return (h.training, g.training), (h.evaluation, g.evaluation)


def held(modules: Modules) -> dict[str, Any]:
    """Return copies of all that two modules hold, by what a message calls it.

    Args:
        modules: The two modules of a network.
    """
    copies: dict[str, Any] = {}
    for label, layer in named_layers(modules):
        copies[f"the layer {label}"] = True
        own = {name: value for name, value in vars(layer).items() if name not in _INTERNAL}
        for kind, values in (
            ("parameter", layer._parameters),
            ("buffer", layer._buffers),
            ("attribute", own),
        ):
            for name, value in values.items():
                copies[f"the {kind} '{name}' of {label}"] = _copied(value)
    return copies


def _copied(value: Any) -> Any:
    """Return a value that tells later whether this one has changed."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, torch.Generator):
        return value.get_state()
    try:
        return cloudpickle.dumps(value)
    except Exception:  # a file, a lock: only which one it is can be told
        return id(value)


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the names of values that differ, or are missing in one.

    Args:
        before: What was held before a pass.
        after: What is held after it.
    """
    names = {**before, **after}
    return [name for name in names if not equal(before.get(name), after.get(name))]


def equal(a: Any, b: Any) -> bool:
    """Return a == b; for tensors, True for the same type, shape and values, NaN included.

    Args:
        a, b: Values of any kind.
    """
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return type(a) is type(b) and bool(a == b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())


@contextmanager
def traced(parts: Parts, rule: str, way: str) -> Iterator[None]:
    """Name the layer where the passes of a block fail.

    Args:
        parts: Whose layers; {} for none.
        rule, way: Of the ModelError, naming the layer, that another library's exception becomes.
    """
    entered: list[str] = []
    with entering(parts, entered):
        try:
            yield
        except DpmclError:
            raise
        except Exception as error:
            where = f" in {entered[-1]}" if entered else ""
            raise ModelError(f"{rule}{where}: {reason(error)}; {way}.") from error


@contextmanager
def entering(
    parts: Parts, entered: list[str], look: Callable[[], None] = lambda: None
) -> Iterator[list[tuple[str, Any]]]:
    """Record the layers that the passes of a block go through, and their results, as they end.

    Some layers compute in another way where they are recorded.

    Args:
        parts: Whose layers; {} for none.
        entered: Filled with the layers that a pass is in, outermost first.
        look: Called before a layer is entered and before it is left.
    """
    left: list[tuple[str, Any]] = []

    def enter(label: str) -> None:
        look()
        entered.append(label)

    def leave(_layer: nn.Module, _inputs: Any, out: Any) -> None:
        look()
        left.append((entered.pop(), out))

    with ExitStack() as hooks:
        for modules in forms(parts) if parts else ():
            for label, layer in named_layers(modules):
                before = layer.register_forward_pre_hook(lambda *_, own=label: enter(own))
                hooks.callback(before.remove)
                hooks.callback(layer.register_forward_hook(leave).remove)
        yield left


@contextmanager
def drawn_in(parts: Parts) -> Iterator[list[str]]:
    """Record the layers whose own code draws from global generators in the passes of a block.

    Args:
        parts: Whose layers.
    """
    entered: list[str] = []
    drawn: list[str] = []
    seen = states()

    def look() -> None:
        nonlocal seen
        before, seen = seen, states()
        if entered and before != seen:
            drawn.append(entered[-1])

    with entering(parts, entered, look):
        yield drawn
