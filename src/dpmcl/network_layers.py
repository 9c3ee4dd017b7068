"""Which layer of a network a message names: where a pass changes something, or fails."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

from dpmcl.exceptions import DpmclError, ModelError, reason
from dpmcl.part import Part

Parts = dict[str, Part]


class Visit(NamedTuple):
    """A layer that a pass went through: a reading before and after it, and what it gave."""

    layer: str
    before: Any
    after: Any
    out: Any


def visits(
    parts: Parts, run: Callable[[], Any], read: Callable[[Any], Any] = lambda given: None
) -> tuple[list[Visit], list[str]]:
    """Return the layers of a pass in the order in which it left them, and those it did not leave.

    read: takes a layer's inputs. Hooks change the way some layers compute, so this only says where.
    """
    left: list[Visit] = []
    entered: list[tuple[str, Any]] = []

    def enter(label: str, _layer: nn.Module, given: Any) -> None:
        entered.append((label, read(given)))

    def leave(_layer: nn.Module, given: Any, out: Any) -> None:
        label, before = entered.pop()
        left.append(Visit(label, before, read(given), out))

    with ExitStack() as hooks:
        for part, forms in parts.items():
            for form in (forms.training, forms.evaluation):
                for name, layer in form.named_modules(prefix=part):
                    label = f"{name}: {type(layer).__name__}"
                    before = layer.register_forward_pre_hook(partial(enter, label))
                    hooks.callback(before.remove)
                    hooks.callback(layer.register_forward_hook(leave).remove)
        try:
            run()
        except Exception:
            return left, [label for label, _ in entered]
    return left, []


def first_changing(parts: Parts, run: Callable[[], Any], read: Callable[[Any], Any]) -> str:
    """Return the innermost layer that changes a reading."""
    left, _ = visits(parts, run, read)
    return next((visit.layer for visit in left if visit.before != visit.after), "the network")


def versions(given: Any) -> list[int]:
    """Return how often each of a layer's inputs was changed in place."""
    return [value._version for value in given if isinstance(value, Tensor)]


def failing(parts: Parts, run: Callable[[], Any]) -> str:
    """Return the layer in which a pass fails, for a message."""
    _, entered = visits(parts, run)
    return f" in {entered[-1]}" if entered else ""


@contextmanager
def told(
    rule: str, way: str, parts: Parts | None = None, run: Callable[[], Any] = lambda: None
) -> Iterator[None]:
    """Turns an exception of another library into a ModelError; a second run names the layer."""
    try:
        yield
    except DpmclError:
        raise
    except Exception as error:
        where = failing(parts, run) if parts else ""
        raise ModelError(f"{rule}{where}: {reason(error)}; {way}.") from error
