"""One replica after another."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from dpmcl.method import State, Update
from dpmcl.sampling import Chunk
from dpmcl.stream import Stream
from dpmcl.tree import at, leaves, stack


class Looped:
    """One replica after another: no mapping, so any module will do."""

    name: ClassVar[str] = "looped"

    def advance(
        self, update: Update, state: State, chunk: Chunk, stream: Stream, dtype: torch.dtype
    ) -> State:
        replicas = chunk.key.shape[0]
        done = []
        for replica in range(replicas):
            one: State = at(state, replica)
            for step in range(chunk.steps):
                batches = chunk.batches(stream, dtype, step, replica)
                one = update(one, batches, chunk.key[replica, step])
            done.append(one)
        stacked: State = stack(done)
        return stacked

    def map(self, function: Callable[..., Any], *trees: Any) -> Any:
        replicas = leaves(trees)[0].shape[0]
        return stack([function(*at(trees, replica)) for replica in range(replicas)])

    def at_once(self, replicas: int) -> int:
        return 1
