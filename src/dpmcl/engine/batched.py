"""All replicas at once: the update of one, mapped by torch.func.vmap."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from dpmcl.method import State, Update
from dpmcl.sampling import Chunk
from dpmcl.stream import Stream


class Batched:
    """All replicas at once. Shapes are fixed and nothing branches on a tensor's value."""

    name: ClassVar[str] = "batched"

    def advance(
        self, update: Update, state: State, chunk: Chunk, stream: Stream, dtype: torch.dtype
    ) -> State:
        mapped = torch.func.vmap(update)
        for step in range(chunk.steps):
            batches = chunk.batches(stream, dtype, step, slice(None))
            state = mapped(state, batches, chunk.key[:, step])
        return state

    def map(self, function: Callable[..., Any], *trees: Any) -> Any:
        return torch.func.vmap(function)(*trees)
