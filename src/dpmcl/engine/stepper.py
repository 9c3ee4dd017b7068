"""Run an update many times on a CPU; trace it once it has run often enough for that to pay."""

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from dpmcl.core.batch import Batch
from dpmcl.core.tree import equal, leaves, shapes, tree_map
from dpmcl.engine.same_function import is_same
from dpmcl.engine.traced import trace
from dpmcl.exceptions import reason
from dpmcl.methods._method import State, Update

Steps = Iterable[tuple[dict[str, Batch], torch.Tensor]]
"""Batches and key of each update, in order."""

_TRACE_AFTER = 10  # updates; tracing costs as much time as a trace saves in six to twelve
_MAX_KNOWN = 8
T = TypeVar("T")
_UNTRACED = "An update is not traced, and runs slower: %s."
_LOG = logging.getLogger("dpmcl")


@dataclass
class _Known:
    """An update, the shapes of its arguments, the number of its runs, and its traced form."""

    update: Update
    shapes: Any
    runs: int = 0
    traced: Callable[..., State] | None = None


class Stepper:
    """Runs updates, and traces those that run often. Tracing does not change a bit of the results.

    Args:
        mapped: Returns the function to run for an update (torch.func.vmap for many replicas).
        trace_after: Number of runs of an update after which it is traced; None for never.
    """

    def __init__(
        self,
        mapped: Callable[[Update], Callable[..., State]] = lambda update: update,
        trace_after: int | None = _TRACE_AFTER,
    ) -> None:
        self._mapped = mapped
        self._trace_after = math.inf if trace_after is None else trace_after
        self._known: list[_Known] = []

    def run(self, update: Update, state: State, steps: Steps) -> State:
        """Return the state after several updates, whose batches all have the same shapes.

        Args:
            update: Update of one replica.
            state: State before the updates.
            steps: Batches and key of each update, in order.
        """
        plain, known = self._mapped(update), None
        # A copy, since a traced update writes into it, and its memory layout must not matter.
        state = _copied(state)
        for batches, key in steps:
            if known is None:
                known = self._find(update, shapes((state, batches, key)))
            age = known.runs - self._trace_after
            known.runs += 1
            if age == 0 and key.device.type == "cpu":
                known.traced = _traced_or_none(plain, state, batches, key)
            if age <= 0 or known.traced is None:
                state = plain(state, batches, key)
            elif age == 1:
                state = _checked(known, plain, state, batches, key)
            else:
                state = known.traced(state, batches, key)
        return tree_map(torch.Tensor.contiguous, state)

    def _find(self, update: Update, argument_shapes: Any) -> _Known:
        for number, known in enumerate(self._known):
            if known.shapes == argument_shapes and is_same(known.update, update):
                self._known.append(self._known.pop(number))
                return known
        self._known = [*self._known[1 - _MAX_KNOWN :], _Known(update, argument_shapes)]
        return self._known[-1]


def _traced_or_none(
    plain: Callable[..., State], state: State, batches: dict[str, Batch], key: torch.Tensor
) -> Callable[..., State] | None:
    """Return the traced update, or None if it cannot be traced and must run as it is."""

    def keeping_shapes(state: State, batches: dict[str, Batch], key: torch.Tensor) -> State:
        after = plain(state, batches, key)
        if shapes(after) != shapes(state):
            raise ValueError("it changes the shapes of its state")
        return after

    try:
        return trace(keeping_shapes, tree_map(torch.Tensor.clone, state), batches, key)
    except Exception as error:  # an error of the update itself is raised when it runs untraced
        _LOG.info(_UNTRACED, reason(error))
        return None


def _checked(known: _Known, plain: Callable[..., State], state: State, *arguments: Any) -> State:
    """Return the state after an update, and drop the update's trace if it gives another state.

    It does if the update reads values without an operation that a recorder sees (`x.tolist()`), and
    these differ from those of the step that was traced.
    """
    assert known.traced is not None
    expected = plain(state, *arguments)
    try:
        traced = known.traced(_copied(state), *arguments)
        if not all(map(equal, leaves(expected), leaves(traced))):
            raise ValueError("its operations depend on values")
    except Exception as error:
        known.traced = None
        _LOG.info(_UNTRACED, reason(error))
    return _copied(expected)


def _copied(tree: T) -> T:
    """Return a copy of a tree with contiguous tensors, as a checkpoint holds them."""
    return tree_map(lambda leaf: leaf.clone(memory_format=torch.contiguous_format), tree)
