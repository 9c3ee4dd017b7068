"""Fewer replicas at a time once the device's memory has run out."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from dpmcl.engine.batched import Batched
from dpmcl.exceptions import DeviceError
from dpmcl.method import State, Update
from dpmcl.sampling import Chunk
from dpmcl.stream import Stream
from dpmcl.tree import leaves, tree_map

_CPU = ("can't allocate memory", "not enough memory", "Cannot allocate memory")


class Grouped:
    """The batched engine, over all replicas while they fit, then over halves, quarters, ...

    Results are those of the batched engine, once it works on groups to rounding.
    """

    name: ClassVar[str] = "batched"

    def __init__(self, inner: Batched | None = None) -> None:
        self._inner = inner or Batched()
        self._at_once: int | None = None
        self._streams: dict[tuple[int, int], tuple[Stream, Stream]] = {}

    def advance(
        self, update: Update, state: State, chunk: Chunk, stream: Stream, dtype: torch.dtype
    ) -> State:
        def one(first: int, last: int) -> Any:
            part = Chunk(*_part(tuple(chunk), first, last))
            own = self._of(stream, first, last)
            return self._inner.advance(update, _part(state, first, last), part, own, dtype)

        def whole() -> Any:
            return self._inner.advance(update, state, chunk, stream, dtype)

        done: State = self._in_groups(chunk.key.shape[0], whole, one)
        return done

    def map(self, function: Callable[..., Any], *trees: Any) -> Any:
        def one(first: int, last: int) -> Any:
            return self._inner.map(function, *_part(trees, first, last))

        return self._in_groups(
            leaves(trees)[0].shape[0], lambda: self._inner.map(function, *trees), one
        )

    def at_once(self, replicas: int) -> int:
        return min(replicas, self._at_once or replicas)

    def _in_groups(
        self, replicas: int, whole: Callable[[], Any], one: Callable[[int, int], Any]
    ) -> Any:
        while True:
            size = self.at_once(replicas)
            try:
                if size == replicas:
                    return whole()
                parts = [
                    one(first, min(first + size, replicas)) for first in range(0, replicas, size)
                ]
                return tree_map(lambda *leaf: torch.cat(leaf), parts[0], *parts[1:])
            except RuntimeError as error:
                if not _is_out_of_memory(error):
                    raise
            if size == 1:
                raise DeviceError(
                    "The device's memory does not hold even one replica; use a smaller network, "
                    "batch or memory, or device = 'cpu'."
                )
            self._at_once = -(-size // 2)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _of(self, stream: Stream, first: int, last: int) -> Stream:
        """The stream as some replicas see it; the same object each time, for captured updates."""
        if stream.scale is None:
            return stream
        known = self._streams.get((first, last))
        if known is None or known[0] is not stream:
            known = stream, stream.of_replicas(first, last)
            self._streams[first, last] = known
        return known[1]


def _part(tree: Any, first: int, last: int) -> Any:
    return tree_map(lambda leaf: leaf[first:last], tree)


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in _CPU)
