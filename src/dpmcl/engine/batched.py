"""All replicas at once: the update of one, mapped by torch.func.vmap."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from dpmcl.data.sampling import Chunk
from dpmcl.data.stream import Stream
from dpmcl.engine.captured import Cell, on_gpu
from dpmcl.engine.looped import Looped
from dpmcl.engine.stepper import Stepper
from dpmcl.methods._method import State, Update

_CELLS = 4  # captured at the same time; a task of the paper's methods has one phase or two


class Batched:
    """All replicas at once. Shapes are fixed and nothing branches on a tensor's value.

    On a GPU an update is captured at its first chunk and replayed, on a CPU it is traced. static:
    whether to work in a capture's fixed buffers, None for a GPU alone (on a CPU they gain nothing);
    tests set it. stepper: how updates are run where they are not captured. apart: whether `map`
    takes one replica after another: with many rows that is faster for convolutions on a CPU.
    """

    name: ClassVar[str] = "batched"

    def __init__(
        self, static: bool | None = None, stepper: Stepper | None = None, apart: bool = False
    ) -> None:
        self._static, self._apart = static, apart
        self._stepper = stepper or Stepper(torch.func.vmap)
        self._cells: list[Cell] = []
        self._pool: Any = None

    def advance(
        self, update: Update, state: State, chunk: Chunk, stream: Stream, dtype: torch.dtype
    ) -> State:
        if on_gpu(chunk) if self._static is None else self._static:
            return self._cell(update, state, chunk, stream, dtype).run(state, chunk)
        feed = (
            (chunk.batches(stream, dtype, step, slice(None)), chunk.key[:, step])
            for step in range(chunk.steps)
        )
        return self._stepper.run(update, state, feed)

    def release(self) -> None:
        """Gives back the memory of what was captured."""
        self._cells.clear()
        self._pool = None

    def _cell(
        self, update: Update, state: State, chunk: Chunk, stream: Stream, dtype: torch.dtype
    ) -> Cell:
        """The buffers of an update: those of an earlier one that does the same, or new ones."""
        for place, cell in enumerate(self._cells):
            if cell.fits(update, state, chunk, stream, dtype):
                self._cells.append(self._cells.pop(place))
                return cell
        del self._cells[: len(self._cells) + 1 - _CELLS]  # their memory goes before the new comes
        if self._pool is None and on_gpu(chunk):
            self._pool = torch.cuda.graph_pool_handle()
        self._cells.append(Cell(update, state, chunk, stream, dtype, self._pool))
        return self._cells[-1]

    def map(self, function: Callable[..., Any], *trees: Any) -> Any:
        if self._apart:
            return Looped().map(function, *trees)
        return torch.func.vmap(function)(*trees)

    def at_once(self, replicas: int) -> int:
        return replicas
