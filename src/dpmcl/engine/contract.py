"""The interface of an engine, and the feed of batches and keys that it takes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from dpmcl.core.batch import Batch
from dpmcl.data.sampling import Drawn
from dpmcl.data.stream import Stream
from dpmcl.methods._method import State, Update


@dataclass(frozen=True, eq=False)
class Feed:
    """Batches and keys of consecutive updates, for all replicas.

    Attributes:
        drawn: Row numbers, weights and keys.
        stream: Stream whose rows the numbers refer to.
        dtype: Type of the inputs.
    """

    drawn: Drawn
    stream: Stream
    dtype: torch.dtype

    @property
    def steps(self) -> int:
        """Return the number of updates."""
        return self.drawn.steps

    @property
    def key(self) -> Tensor:
        """Return the keys of the updates, int64 (replicas, steps, keys, 2)."""
        return self.drawn.key

    def batches(self, step: int, replica: int | slice) -> dict[str, Batch]:
        """Return the batches of one step by name, of one replica or of a slice of replicas.

        Args:
            step: Number of the step.
            replica: Number of a replica; or a slice, for batches with a leading replica dimension.
        """
        return self.drawn.batches(self.stream, self.dtype, step, replica)

    def only(self, step: int) -> "Feed":
        """Return the feed of one step.

        Args:
            step: Number of the step.
        """
        return replace(self, drawn=self.drawn.only(step))


class Engine(Protocol):
    """Runs functions of one replica over R replicas; trees have a leading replica dimension.

    Attributes:
        name: "batched" or "looped".
    """

    name: ClassVar[str]

    def advance(self, update: Update, state: State, feed: Feed) -> State:
        """Return the state of all replicas after the updates of a feed.

        Args:
            update: Update of one replica.
            state: State of all replicas before the updates.
            feed: Batches and keys of all replicas.
        """
        ...

    def map(self, function: Callable[..., Any], *trees: Any) -> Any:
        """Apply a function to the trees of each replica, and return the results stacked.

        Args:
            function: Function of one replica's trees.
            trees: Arguments of the function, with a leading replica dimension.
        """
        ...
