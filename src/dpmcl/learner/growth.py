"""More outputs for new classes: a wider head that leaves the outputs learned so far unchanged."""

from typing import Any

from torch import Tensor

from dpmcl.core.memory import Memories
from dpmcl.core.model import Model
from dpmcl.core.row_check import is_near
from dpmcl.core.tree import at, tree_map
from dpmcl.exceptions import ModelError
from dpmcl.methods._method import State

MIN_OUTPUTS = 8
"""Initial number of outputs of a head to which classes are added."""

_WAY_OUT = "name all classes at the start (classes=[...])"


def outputs_with_room(classes: int) -> int:
    """Return the number of outputs of a head: at least twice the number of classes, for new ones.

    Args:
        classes: Number of classes.

    >>> outputs_with_room(3), outputs_with_room(10)
    (8, 32)
    """
    outputs = MIN_OUTPUTS
    while outputs < 2 * classes:
        outputs *= 2
    return outputs


def widened(old: Any, new: Any) -> Any:
    """Copy the values of a tree of tensors into a tree of larger ones.

    Args:
        old: A tree of tensors.
        new: A tree of the same structure, with tensors at least as large.

    Returns:
        A tree with the shapes of `new`: the values of `old` in the leading part of each tensor,
        those of `new` in the rest.

    Raises:
        ModelError: The trees differ in structure, or a tensor of `new` is smaller.
    """
    try:
        tree: Any = tree_map(_overlay, old, new)
    except (KeyError, ValueError, TypeError):
        raise ModelError(f"A network's layers may not depend on its outputs; {_WAY_OUT}.") from None
    return tree


def widened_memories(memories: Memories, like: Memories) -> Memories:
    """Return memories with notes widened to the shapes of a wider model.

    Args:
        memories: Memories with a leading replica dimension.
        like: Empty memories of the same capacity for the wider model; their notes, all 0, fill the
            new part.
    """
    return {
        name: memory._replace(notes=widened(dict(memory.notes), dict(like[name].notes)))
        for name, memory in memories.items()
    }


def check_answers(models: tuple[Model, Model], states: tuple[State, State], x: Tensor) -> None:
    """Check that a wider network gives the same outputs for the old classes.

    Args:
        models: The old and the wider model.
        states: The states of their replicas, in the same order.
        x: Inputs (n, ...).

    Raises:
        ModelError: The outputs differ.
    """
    old, new = (
        model.holding(state.buffers).predict(state.theta, x)
        for model, state in zip(models, (at(state, 0) for state in states), strict=True)
    )
    if not is_near(new[:, : old.shape[1]], old, old):
        raise ModelError(
            "A network with more outputs must keep the old ones, and this one does not; "
            f"{_WAY_OUT}."
        )


def _overlay(old: Tensor, new: Tensor) -> Tensor:
    """Return a tensor with the shape of `new` and the values of `old` in its leading part."""
    if old.shape == new.shape:
        return old
    if old.dim() != new.dim() or any(a > b for a, b in zip(old.shape, new.shape, strict=True)):
        raise ValueError
    out = new.clone()
    out[tuple(slice(0, size) for size in old.shape)] = old
    return out
