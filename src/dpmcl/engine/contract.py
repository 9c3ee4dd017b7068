"""The contract of an engine, and what it is fed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from dpmcl.core.batch import Batch
from dpmcl.data.sampling import Chunk
from dpmcl.data.stream import Stream
from dpmcl.methods._method import State, Update


@dataclass(frozen=True, eq=False)
class Feed:
    """Batches and keys of a run of updates, all replicas.

    Attributes:
        chunk: Row numbers, weights and keys.
        stream: The pool of rows that the numbers mean.
        dtype: Of the inputs.
    """

    chunk: Chunk
    stream: Stream
    dtype: torch.dtype

    @property
    def steps(self) -> int:
        """Return the number of updates."""
        return self.chunk.steps

    @property
    def key(self) -> Tensor:
        """Return the updates' own keys, int64 (replicas, steps, keys, 2)."""
        return self.chunk.key

    def batches(self, step: int, replica: int | slice) -> dict[str, Batch]:
        """Return the batches of one step, for one replica or (slice) for all, replicas first.

        Args:
            step: Which of the steps.
            replica: One replica, or a slice for all.
        """
        return self.chunk.batches(self.stream, self.dtype, step, replica)

    def only(self, step: int) -> "Feed":
        """Return the feed of one of the steps.

        Args:
            step: Which of the steps.
        """
        return replace(self, chunk=self.chunk.only(step))


class Engine(Protocol):
    """Runs functions of one replica over R replicas; trees have a leading replica dimension."""

    @property
    def name(self) -> str:
        """Return the form: "batched" or "looped"."""
        ...

    def advance(self, update: Update, state: State, feed: Feed) -> State:
        """Return the state of all replicas after the updates of a feed.

        Args:
            update: Of one replica.
            state: All replicas, before.
            feed: Batches and keys.
        """
        ...

    def map(self, function: Callable[..., Any], *trees: Any) -> Any:
        """Return function(*one replica's trees) of each replica, results stacked.

        Args:
            function: Of one replica.
            trees: Its arguments, replicas first.
        """
        ...
