"""Outputs for more classes: a wider head, in which what was learned stays as it was."""

from typing import Any

from torch import Tensor

from dpmcl.core.memory import Memories
from dpmcl.core.model import Model
from dpmcl.core.tree import at, tree_map
from dpmcl.exceptions import ModelError
from dpmcl.methods._method import State

LEAST = 8
"""Outputs of a head to which classes are added, at first."""

_NEAR = 1e-4
_WAY_OUT = "name all classes at the start (classes=[...])"


def room(classes: int) -> int:
    """Return how many outputs a head for so many classes has, and as many more to come.

    Args:
        classes: How many there are.

    >>> room(3), room(10)
    (8, 32)
    """
    outputs = LEAST
    while outputs < 2 * classes:
        outputs *= 2
    return outputs


def widened(old: Any, new: Any) -> Any:
    """Return a tree of the new shapes that has the old values wherever there were some.

    Args:
        old: A tree of tensors.
        new: The same tree with tensors that are at least as large; their values fill the rest.

    Raises:
        ModelError: The trees are not alike.
    """
    try:
        tree: Any = tree_map(_overlaid, old, new)
    except (KeyError, ValueError, TypeError):
        raise ModelError(f"A network's layers may not depend on its outputs; {_WAY_OUT}.") from None
    return tree


def widened_memories(memories: Memories, like: Memories) -> Memories:
    """Return memories whose notes have the shapes of others; what is added to a note is 0.

    Args:
        memories: Replicas first.
        like: Memories as long, of the wider model.
    """
    return {
        name: memory._replace(notes=widened(dict(memory.notes), dict(like[name].notes)))
        for name, memory in memories.items()
    }


def check_answers(models: tuple[Model, Model], states: tuple[State, State], x: Tensor) -> None:
    """Check that a wider network answers as before, for the classes that were there.

    Args:
        models: The old and the new one.
        states: Of their replicas.
        x: Inputs (n, ...).

    Raises:
        ModelError: It answers otherwise.
    """
    old, new = (
        model.holding(one.buffers).predict(one.theta, x)
        for model, one in zip(models, (at(state, 0) for state in states), strict=True)
    )
    before, after = old, new[:, : old.shape[1]]
    if not (before - after).norm() <= _NEAR * (1 + before.norm()):
        raise ModelError(
            "A network with more outputs must keep the old ones, and this one does not; "
            f"{_WAY_OUT}."
        )


def _overlaid(old: Tensor, new: Tensor) -> Tensor:
    if old.shape == new.shape:
        return old
    if old.dim() != new.dim() or any(a > b for a, b in zip(old.shape, new.shape, strict=True)):
        raise ValueError
    out = new.clone()
    out[tuple(slice(0, size) for size in old.shape)] = old
    return out
