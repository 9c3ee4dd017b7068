"""What an engine does, whichever form it has."""

from collections.abc import Callable
from typing import Any, Protocol

import torch

from dpmcl.data.sampling import Chunk
from dpmcl.data.stream import Stream
from dpmcl.methods._method import State, Update


class Engine(Protocol):
    """Runs functions of one replica over R replicas; trees have a leading replica dimension."""

    @property
    def name(self) -> str:
        """The form: "batched" or "looped"."""
        ...

    def advance(
        self, update: Update, state: State, chunk: Chunk, stream: Stream, dtype: torch.dtype
    ) -> State:
        """The state of all replicas after the chunk's updates."""
        ...

    def map(self, function: Callable[..., Any], *trees: Any) -> Any:
        """function(*one replica's trees) for each replica, results stacked."""
        ...

    def at_once(self, replicas: int) -> int:
        """Of so many replicas, how many are worked on, and held in memory, at the same time."""
        ...
