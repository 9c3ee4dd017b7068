"""The engine that computes all replicas at once, by torch.func.vmap over the update of one."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from dpmcl.engine.captured import Cell, is_on_gpu
from dpmcl.engine.contract import Feed
from dpmcl.engine.looped import Looped
from dpmcl.engine.stepper import Stepper
from dpmcl.methods._method import State, Update

_MAX_CELLS = 4  # captured updates kept; a task of the paper's methods has one or two phases


class Batched:
    """Engine that computes all replicas at once.

    Functions must have fixed shapes and no branch on a tensor's value. On a GPU an update is
    captured at its first segment and replayed; on a CPU it is traced.

    Args:
        static: Whether to run updates in the fixed buffers of a capture; None for only on a GPU,
            since they gain nothing on a CPU. Tests set it.
        stepper: Runs updates that are not captured; None for a new one.
        apart: Whether `map` computes one replica after another, which is faster for convolutions
            of many rows on a CPU.
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
        if is_on_gpu(feed) if self._static is None else self._static:
            return self._cell(update, state, feed).run(state, feed.drawn)
        steps = ((feed.batches(step, slice(None)), feed.key[:, step]) for step in range(feed.steps))
        return self._stepper.run(update, state, steps)

    def _cell(self, update: Update, state: State, feed: Feed) -> Cell:
        """Return the cell of an update, that of an earlier equal update if it fits."""
        for number, cell in enumerate(self._cells):
            if cell.fits(update, state, feed):
                self._cells.append(self._cells.pop(number))
                return cell
        # Free the memory of the oldest cells before the new one allocates its own.
        del self._cells[: len(self._cells) + 1 - _MAX_CELLS]
        if self._pool is None and is_on_gpu(feed):
            self._pool = torch.cuda.graph_pool_handle()
        self._cells.append(Cell(update, state, feed, self._pool))
        return self._cells[-1]

    def map(self, function: Callable[..., Any], *trees: Any) -> Any:
        if self._apart:
            return Looped().map(function, *trees)
        return torch.func.vmap(function)(*trees)
