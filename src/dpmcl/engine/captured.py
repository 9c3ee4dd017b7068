"""An update in fixed buffers, so that a GPU can record it once and replay it.

The update of a small network is hundreds of small kernels, and launching them from Python takes
longer than they run. A CUDA graph launches all of them at once, always on the same memory. A cell
therefore owns this memory, and state and draws are copied into it. On a CPU a cell does the same
without a graph.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dpmcl.core.tree import leaves, shapes, tree_map
from dpmcl.data.sampling import Drawn
from dpmcl.engine.contract import Feed
from dpmcl.engine.same_function import is_same
from dpmcl.exceptions import ModelError
from dpmcl.methods._method import State, Update

_WARM_UPS = 3  # as PyTorch's notes on CUDA graphs advise, so that libraries initialise before


class Cell:
    """Buffers of all replicas for one update, and the update on these buffers.

    `run` does not change its arguments, and its result shares no memory with the buffers.

    Args:
        update: Update of one replica.
        state, feed: State and feed whose shapes the buffers have; a later segment may have fewer
            steps, but not more.
        pool: Memory pool of the graph (torch.cuda.graph_pool_handle); None for a new one. Cells can
            share a pool, since no data in it is needed between two replays.
    """

    def __init__(self, update: Update, state: State, feed: Feed, pool: Any = None) -> None:
        self._pool = pool
        self.update, self.stream, self.dtype = update, feed.stream, feed.dtype
        self._state = tree_map(torch.Tensor.clone, state)
        self._drawn = tree_map(torch.Tensor.clone, feed.drawn)
        self._counter = torch.zeros(1, dtype=torch.int64, device=feed.key.device)
        self._run_step: Callable[[], None] | None = None

    def fits(self, update: Update, state: State, feed: Feed) -> bool:
        """Return True if this cell can run an update: same update, stream, shapes, no more steps.

        Args:
            update: Update of one replica.
            state: State of all replicas.
            feed: Batches and keys of all replicas.
        """
        return (
            self.stream is feed.stream
            and self.dtype == feed.dtype
            and is_same(self.update, update)
            and shapes(self._state) == shapes(state)
            and shapes(self._drawn.first(1)) == shapes(feed.drawn.first(1))
            and feed.steps <= self._drawn.steps
        )

    def run(self, state: State, drawn: Drawn) -> State:
        """Return the state after the updates of a segment.

        Args:
            state: State of all replicas before the updates.
            drawn: Row numbers, weights and keys of the updates.

        Raises:
            ModelError: The update cannot be captured.
        """
        self._load(state, drawn)
        if self._run_step is None:
            self._run_step = self._capture() if is_on_gpu(drawn) else self.step
            self._load(state, drawn)  # the warm-up has changed the state
        for _ in range(drawn.steps):
            self._run_step()
        return tree_map(torch.Tensor.clone, self._state)

    def step(self) -> None:
        """Run one update on the buffers, for the step of the segment that the counter holds.

        Raises:
            ModelError: The update changes the shapes or types of its state.
        """

        def at_counter(leaf: Tensor) -> Tensor:
            return leaf.index_select(1, self._counter).squeeze(1)

        current = tree_map(at_counter, self._drawn)
        batches = current.to_batches(self.stream, self.dtype)
        new = torch.func.vmap(self.update)(self._state, batches, current.key)
        if shapes(new) != shapes(self._state):
            raise ModelError(
                "An update may not change the shapes or types of its state, and this one does; "
                "keep them as `start` makes them."
            )
        # A leaf of the new state may share memory with the buffers, if a method keeps the old
        # theta. Such leaves are copied before any buffer is overwritten.
        pointers = {leaf.untyped_storage().data_ptr() for leaf in leaves(self._state)}
        values = [
            leaf.clone() if leaf.untyped_storage().data_ptr() in pointers else leaf
            for leaf in leaves(new)
        ]
        for buffer, value in zip(leaves(self._state), values, strict=True):
            buffer.copy_(value)
        self._counter.add_(1)

    def _load(self, state: State, drawn: Drawn) -> None:
        """Copy both into the buffers, and reset the counter to the first step."""
        buffers = leaves((self._state, self._drawn.first(drawn.steps)))
        for buffer, value in zip(buffers, leaves((state, drawn)), strict=True):
            buffer.copy_(value)
        self._counter.zero_()

    def _capture(self) -> Callable[[], None]:
        """Record a step, and return a function that replays it. Changes the state's buffers."""
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
            # Ending a failed capture raises as well; the original error is in __context__.
            cause = str(error.__context__ or error).split("\n")[0].rstrip(".")
            raise ModelError(
                f"This update cannot be captured on a GPU ({cause}); use engine = 'looped'."
            ) from error
        replay: Callable[[], None] = graph.replay
        return replay


def is_on_gpu(drawn: Feed | Drawn) -> bool:
    """Return True if draws are on a GPU; all tensors of the run are on the same device.

    Args:
        drawn: Feed, or what was drawn.
    """
    return drawn.key.is_cuda
