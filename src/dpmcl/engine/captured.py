"""One update in fixed buffers, so that a GPU can record it once and replay it.

A small network's update is hundreds of small kernels, and starting them from Python takes longer
than they run. A CUDA graph starts all of them at once, always on the same memory: so a cell owns
that memory, and state and draws are copied into it. On a CPU a cell does the same without a graph.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dpmcl.core.tree import leaves, shapes, tree_map
from dpmcl.data.sampling import Chunk
from dpmcl.engine.contract import Feed
from dpmcl.engine.same import same
from dpmcl.exceptions import ModelError
from dpmcl.methods._method import State, Update

_WARM_UPS = 3  # as PyTorch's notes on CUDA graphs advise: libraries set themselves up in them


class Cell:
    """The buffers of one update, of all replicas, and the update on them.

    Nothing that comes in is changed, and nothing that goes out shares memory with the buffers.

    Args:
        update: Of one replica.
        state, feed: Their shapes fix the buffers'; a later chunk may have fewer steps, not more.
        pool: Where the graph's own memory comes from (torch.cuda.graph_pool_handle), None for a
            new one. Cells may share it: between two replays nothing in it is of use.
    """

    def __init__(self, update: Update, state: State, feed: Feed, pool: Any = None) -> None:
        self._pool = pool
        self.update, self.stream, self.dtype = update, feed.stream, feed.dtype
        self._state: State = tree_map(torch.Tensor.clone, state)
        self._chunk = Chunk(*tree_map(torch.Tensor.clone, tuple(feed.chunk)))
        self._counter = torch.zeros(1, dtype=torch.int64, device=feed.key.device)
        self._go: Callable[[], None] | None = None

    def fits(self, update: Update, state: State, feed: Feed) -> bool:
        """Return True if `run` will do for these: same update, stream, shapes, no more steps.

        Args:
            update: Of one replica.
            state: All replicas.
            feed: Batches and keys.
        """
        return (
            self.stream is feed.stream
            and self.dtype == feed.dtype
            and same(self.update, update)
            and shapes(self._state) == shapes(state)
            and shapes(_first(self._chunk, 1)) == shapes(_first(feed.chunk, 1))
            and feed.steps <= self._chunk.steps
        )

    def run(self, state: State, chunk: Chunk) -> State:
        """Return the state after the chunk's updates.

        Args:
            state: All replicas, before.
            chunk: The updates' draws.

        Raises:
            ModelError: The update cannot be captured.
        """
        self._load(state, chunk)
        if self._go is None:
            self._go = self._capture() if on_gpu(chunk) else self.step
            self._load(state, chunk)  # warming up moved the state
        for _ in range(chunk.steps):
            self._go()
        after: State = tree_map(torch.Tensor.clone, self._state)
        return after

    def step(self) -> None:
        """Run one update on the buffers alone; the counter says which of the chunk's steps it is.

        Raises:
            ModelError: The update changes the shapes or types of its state.
        """

        def now(leaf: Tensor) -> Tensor:
            return leaf.index_select(1, self._counter).squeeze(1)

        one = Chunk(*tree_map(now, tuple(self._chunk)))
        batches = one.delivered(self.stream, self.dtype)
        new = torch.func.vmap(self.update)(self._state, batches, one.key)
        if shapes(new) != shapes(self._state):
            raise ModelError(
                "An update may not change the shapes or types of its state, and this one does; "
                "keep them as `start` makes them."
            )
        # A new leaf may be an old one (a method that keeps what theta was): copy those first.
        held = {leaf.untyped_storage().data_ptr() for leaf in leaves(self._state)}
        values = [
            leaf.clone() if leaf.untyped_storage().data_ptr() in held else leaf
            for leaf in leaves(new)
        ]
        for buffer, value in zip(leaves(self._state), values, strict=True):
            buffer.copy_(value)
        self._counter.add_(1)

    def _load(self, state: State, chunk: Chunk) -> None:
        """Copy state and chunk into the buffers, and go back to the first step."""
        pairs = zip(leaves(self._state), leaves(state), strict=True)
        front = _first(self._chunk, chunk.steps)
        for buffer, value in [*pairs, *zip(leaves(front), leaves(tuple(chunk)), strict=True)]:
            buffer.copy_(value)
        self._counter.zero_()

    def _capture(self) -> Callable[[], None]:
        """Return what replays a recorded step. The state is moved."""
        side, current = torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                self._counter.zero_()
                self.step()
        current.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                self.step()
        except RuntimeError as error:
            # Ending a broken capture raises too; what broke it is the context.
            line = str(error.__context__ or error).split("\n")[0].rstrip(".")
            raise ModelError(
                f"This update cannot be captured on a GPU ({line}); use engine = 'looped'."
            ) from error
        replay: Callable[[], None] = graph.replay
        return replay


def on_gpu(drawn: Feed | Chunk) -> bool:
    """Return True if draws, and so all that goes with them, are on a GPU that records graphs.

    Args:
        drawn: Batches and keys, or row numbers and keys.
    """
    return drawn.key.is_cuda


def _first(chunk: Chunk, steps: int) -> Any:
    """Return the chunk's first steps, as views."""
    return tree_map(lambda leaf: leaf[:, :steps], tuple(chunk))
