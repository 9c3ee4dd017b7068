"""Runs an update many times on a CPU: as it is at first, traced once that pays."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from dpmcl.core.batch import Batch
from dpmcl.core.tree import shapes, tree_map
from dpmcl.engine.same import same
from dpmcl.engine.traced import traced
from dpmcl.exceptions import reason
from dpmcl.methods._method import State, Update

Feed = Iterable[tuple[dict[str, Batch], torch.Tensor]]
"""The batches and the keys of one update after another."""

_TRACE_AFTER = 200  # updates; a trace takes as long as about a hundred of them save
_KEPT = 8
_LOG = logging.getLogger("dpmcl")


@dataclass
class _Known:
    """An update, the shapes it met, how often it ran, and what it was traced to."""

    update: Update
    shapes: Any
    runs: int = 0
    traced: Callable[..., State] | None = None


class Stepper:
    """Runs updates, and keeps what is known of them. Traced or not, results are the same bytes.

    Args:
        mapped: Makes of an update what is to be run (torch.func.vmap for many replicas).
        trace_after: Updates before one is traced; None for never.
    """

    def __init__(
        self,
        mapped: Callable[[Update], Callable[..., State]] = lambda update: update,
        trace_after: int | None = _TRACE_AFTER,
    ) -> None:
        self._mapped, self._after = mapped, trace_after
        self._known: list[_Known] = []

    def run(self, update: Update, state: State, feed: Feed) -> State:
        """Return the state after the updates of a feed, whose batches all have the same shapes.

        Args:
            update: Of one replica.
            state: Before the updates.
            feed: Batches and keys of one update after another.
        """
        plain, known = self._mapped(update), None
        state = _own(state)  # a traced update writes into it, and where it lies decides nothing
        for batches, key in feed:
            if known is None:
                known = self._find(update, shapes((state, batches, key)))
            if known.runs == self._after and key.device.type == "cpu":
                known.traced = _try(plain, state, batches, key)
                state = _own(state)  # what a plain update gave may be shared
            known.runs += 1
            if known.traced is None:
                state = plain(state, batches, key)
            else:
                state = known.traced(state, batches, key)
        dense: State = tree_map(torch.Tensor.contiguous, state)
        return dense

    def _find(self, update: Update, met: Any) -> _Known:
        for number, known in enumerate(self._known):
            if known.shapes == met and same(known.update, update):
                self._known.append(self._known.pop(number))
                return known
        self._known = [*self._known[1 - _KEPT :], _Known(update, met)]
        return self._known[-1]


def _try(
    plain: Callable[..., State], state: State, batches: dict[str, Batch], key: torch.Tensor
) -> Callable[..., State] | None:
    """Return the traced update, or None for one that cannot be: it runs as it is."""
    try:
        quick: Callable[..., State] = traced(
            plain, tree_map(torch.Tensor.clone, state), batches, key
        )
        once = quick(tree_map(torch.Tensor.clone, state), batches, key)
        if shapes(once) != shapes(state):
            raise ValueError("it changes the shapes of its state")
    except Exception as error:  # a fault of the update itself shows again
        _LOG.info("An update is not traced, and runs slower: %s", reason(error))
        return None
    return quick


def _own(tree: Any) -> Any:
    """Return a copy of a tree, laid out as if it came from a checkpoint."""
    return tree_map(lambda leaf: leaf.clone(memory_format=torch.contiguous_format), tree)
