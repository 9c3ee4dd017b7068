"""All replicas at once: the update of one, mapped by torch.func.vmap."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from dpmcl.engine.captured import Cell, on_gpu
from dpmcl.engine.contract import Feed
from dpmcl.engine.looped import Looped
from dpmcl.engine.stepper import Stepper
from dpmcl.methods._method import State, Update

_CELLS = 4  # captured at the same time; a task of the paper's methods has one phase or two


class Batched:
    """Takes all replicas at once. Shapes are fixed and nothing branches on a tensor's value.

    On a GPU an update is captured at its first chunk and replayed, on a CPU it is traced.

    Args:
        static: Whether to work in a capture's fixed buffers, None for a GPU alone (on a CPU they
            gain nothing); tests set it.
        stepper: Runs updates where they are not captured.
        apart: Whether `map` takes one replica after another: with many rows that is faster for
            convolutions on a CPU.
    """

    name: ClassVar[str] = "batched"

    def __init__(
        self, static: bool | None = None, stepper: Stepper | None = None, apart: bool = False
    ) -> None:
        self._static, self._apart = static, apart
        self._stepper = stepper or Stepper(torch.func.vmap)
        self._cells: list[Cell] = []
        self._pool: Any = None

    def advance(self, update: Update, state: State, feed: Feed) -> State:
        if on_gpu(feed) if self._static is None else self._static:
            return self._cell(update, state, feed).run(state, feed.chunk)
        steps = ((feed.batches(step, slice(None)), feed.key[:, step]) for step in range(feed.steps))
        return self._stepper.run(update, state, steps)

    def _cell(self, update: Update, state: State, feed: Feed) -> Cell:
        """Return the buffers of an update: those of an earlier one that does the same, or new."""
        for number, cell in enumerate(self._cells):
            if cell.fits(update, state, feed):
                self._cells.append(self._cells.pop(number))
                return cell
        del self._cells[: len(self._cells) + 1 - _CELLS]  # their memory goes before the new comes
        if self._pool is None and on_gpu(feed):
            self._pool = torch.cuda.graph_pool_handle()
        self._cells.append(Cell(update, state, feed, self._pool))
        return self._cells[-1]

    def map(self, function: Callable[..., Any], *trees: Any) -> Any:
        if self._apart:
            return Looped().map(function, *trees)
        return torch.func.vmap(function)(*trees)
