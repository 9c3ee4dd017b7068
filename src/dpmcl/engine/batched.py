"""All replicas at once: the update of one, mapped by torch.func.vmap."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from dpmcl.engine.captured import Cell, on_gpu
from dpmcl.method import State, Update
from dpmcl.sampling import Chunk
from dpmcl.stream import Stream


class Batched:
    """All replicas at once. Shapes are fixed and nothing branches on a tensor's value.

    On a GPU an update is captured at a phase's first chunk and replayed. static: whether to work
    in such fixed buffers, None for a GPU alone (on a CPU they gain nothing); tests set it.
    """

    name: ClassVar[str] = "batched"

    def __init__(self, static: bool | None = None) -> None:
        self._static = static
        self._cell: Cell | None = None

    def advance(
        self, update: Update, state: State, chunk: Chunk, stream: Stream, dtype: torch.dtype
    ) -> State:
        if on_gpu(chunk) if self._static is None else self._static:
            if self._cell is None or not self._cell.fits(update, state, chunk, stream, dtype):
                self._cell = None  # its memory goes before the next one's comes
                self._cell = Cell(update, state, chunk, stream, dtype)
            return self._cell.run(state, chunk)
        mapped = torch.func.vmap(update)
        for step in range(chunk.steps):
            batches = chunk.batches(stream, dtype, step, slice(None))
            state = mapped(state, batches, chunk.key[:, step])
        return state

    def map(self, function: Callable[..., Any], *trees: Any) -> Any:
        return torch.func.vmap(function)(*trees)

    def at_once(self, replicas: int) -> int:
        return replicas
