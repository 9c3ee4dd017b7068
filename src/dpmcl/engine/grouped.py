"""Replicas in groups: of a fixed size on a CPU, and ever smaller once memory has run out."""

import pickle
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dpmcl.engine.batched import Batched
from dpmcl.engine.crew import Crew, Span
from dpmcl.engine.looped import Looped
from dpmcl.exceptions import DeviceError
from dpmcl.method import State, Update
from dpmcl.sampling import Chunk
from dpmcl.stream import Stream
from dpmcl.tree import leaves, tree_map

_CPU = ("can't allocate memory", "not enough memory", "Cannot allocate memory")
_WORTH_SECONDS = 3.0  # of work, before processes are started, which take as long to come up


class Grouped:
    """An engine on all replicas while they fit, then on halves, quarters, ...

    size: replicas a group from the start, None for all of them; a group's results are the same
    bytes wherever it runs, and those of another size to rounding. crew: workers that share the
    groups once the work has taken a while; None for none.
    """

    def __init__(
        self,
        inner: Batched | Looped | None = None,
        size: int | None = None,
        crew: Crew | None = None,
        worth: float = _WORTH_SECONDS,
    ) -> None:
        self._inner = inner or Batched()
        self.name = self._inner.name
        self._size = size
        self._crew, self._worth, self._spent = crew, worth, 0.0
        self._streams: dict[Span, tuple[Stream, Stream]] = {}

    def advance(
        self, update: Update, state: State, chunk: Chunk, stream: Stream, dtype: torch.dtype
    ) -> State:
        replicas = chunk.key.shape[0]

        def one(span: Span) -> Any:
            if span == (0, replicas):
                return self._inner.advance(update, state, chunk, stream, dtype)
            part = Chunk(*_part(tuple(chunk), span))
            own = self._of(stream, span)
            return self._inner.advance(update, _part(state, span), part, own, dtype)

        def together(spans: Sequence[Span]) -> Any:
            if crew := self._workers(spans):
                return self._sent(
                    lambda: crew.advance(update, state, chunk, stream, dtype, spans),
                    lambda: _joined([one(span) for span in spans]),
                )
            return _joined([one(span) for span in spans])

        done: State = self._in_groups(replicas, together)
        return done

    def map(self, function: Callable[..., Any], *trees: Any) -> Any:
        def one(span: Span) -> Any:
            return self._inner.map(function, *_part(trees, span))

        def together(spans: Sequence[Span]) -> Any:
            if crew := self._workers(spans):
                return self._sent(
                    lambda: _joined(crew.map(function, trees, spans)),
                    lambda: _joined([one(span) for span in spans]),
                )
            return _joined([one(span) for span in spans])

        return self._in_groups(leaves(trees)[0].shape[0], together)

    def at_once(self, replicas: int) -> int:
        many = self._crew.size if self._crew else 1
        return min(replicas, self._inner.at_once(self._size or replicas) * many)

    def _in_groups(self, replicas: int, together: Callable[[Sequence[Span]], Any]) -> Any:
        """What `together` makes of groups of replicas, which are halved while memory runs out."""
        while True:
            size = min(replicas, self._size or replicas)
            spans = [(a, min(a + size, replicas)) for a in range(0, replicas, size)]
            begin = time.monotonic()
            try:
                return together(spans)
            except RuntimeError as error:
                if not _is_out_of_memory(error):
                    raise
            finally:
                self._spent += time.monotonic() - begin
            if size == 1:
                raise DeviceError(
                    "The device's memory does not hold even one replica; use a smaller network, "
                    "batch or memory, or device = 'cpu'."
                )
            self._size = -(-size // 2)
            self._inner.release()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _workers(self, spans: Sequence[Span]) -> Crew | None:
        """The crew, where it is there and there is work for it.

        This looks at a clock, and may: it decides where a group runs, not what comes out.
        """
        if self._crew is None or len(spans) < 2 or self._spent < self._worth:
            return None
        return self._crew if self._crew.ready() else None

    def _sent(self, there: Callable[[], Any], here: Callable[[], Any]) -> Any:
        """What workers give; what this process does, where the function cannot be sent."""
        try:
            return there()
        except (pickle.PicklingError, TypeError, AttributeError, OSError):
            self._crew = None
            return here()

    def _of(self, stream: Stream, span: Span) -> Stream:
        """The stream as some replicas see it; the same object each time, for captured updates."""
        if stream.scale is None:
            return stream
        known = self._streams.get(span)
        if known is None or known[0] is not stream:
            known = stream, stream.of_replicas(*span)
            self._streams[span] = known
        return known[1]


def _part(tree: Any, span: Span) -> Any:
    return tree_map(lambda leaf: leaf[span[0] : span[1]], tree)


def _joined(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else tree_map(lambda *leaf: torch.cat(leaf), *parts)


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in _CPU)
