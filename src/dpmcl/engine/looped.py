"""One replica after another."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from dpmcl.core.tree import at, leaves, stack
from dpmcl.data.sampling import Chunk
from dpmcl.data.stream import Stream
from dpmcl.engine.stepper import Stepper
from dpmcl.methods._method import State, Update


class Looped:
    """One replica after another: no mapping, so any module will do.

    stepper: how updates are run.
    """

    name: ClassVar[str] = "looped"

    def __init__(self, stepper: Stepper | None = None) -> None:
        self._stepper = stepper or Stepper()

    def advance(
        self, update: Update, state: State, chunk: Chunk, stream: Stream, dtype: torch.dtype
    ) -> State:
        done = []
        for replica in range(chunk.key.shape[0]):
            feed = (
                (chunk.batches(stream, dtype, step, replica), chunk.key[replica, step])
                for step in range(chunk.steps)
            )
            done.append(self._stepper.run(update, at(state, replica), feed))
        stacked: State = stack(done)
        return stacked

    def map(self, function: Callable[..., Any], *trees: Any) -> Any:
        replicas = leaves(trees)[0].shape[0]
        return stack([function(*at(trees, replica)) for replica in range(replicas)])

    def release(self) -> None:
        """Nothing is captured here."""

    def at_once(self, replicas: int) -> int:
        return 1
