"""Replicas in groups: of a fixed size on a CPU, and ever smaller once memory has run out."""

import pickle
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dpmcl.core.tree import leaves, part, tree_map
from dpmcl.data.sampling import Chunk
from dpmcl.data.stream import Stream
from dpmcl.engine.batched import Batched
from dpmcl.engine.crew import Crew, Span
from dpmcl.engine.looped import Looped
from dpmcl.exceptions import DeviceError
from dpmcl.methods._method import State, Update

_CPU = ("can't allocate memory", "not enough memory", "Cannot allocate memory")
_WORTH_SECONDS = 3.0  # of work, before processes are started, which take as long to come up


One = Callable[[Span], Any]
There = Callable[[Crew, Sequence[Span]], Any]


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
            own_chunk = Chunk(*part(tuple(chunk), *span))
            own = self._of(stream, span)
            return self._inner.advance(update, part(state, *span), own_chunk, own, dtype)

        def there(crew: Crew, spans: Sequence[Span]) -> Any:
            return crew.advance(update, state, chunk, stream, dtype, spans)

        done: State = self._in_groups(replicas, one, there)
        return done

    def map(self, function: Callable[..., Any], *trees: Any) -> Any:
        def one(span: Span) -> Any:
            return self._inner.map(function, *part(trees, *span))

        def there(crew: Crew, spans: Sequence[Span]) -> Any:
            return _joined(crew.map(function, trees, spans))

        return self._in_groups(leaves(trees)[0].shape[0], one, there)

    def at_once(self, replicas: int) -> int:
        many = self._crew.size if self._crew else 1
        return min(replicas, self._inner.at_once(self._size or replicas) * many)

    def _in_groups(self, replicas: int, one: One, there: There) -> Any:
        """What is made of groups of replicas, which are halved while memory runs out.

        one: makes a group's part here. there: has a crew make all of them.
        """
        while True:
            size = min(replicas, self._size or replicas)
            spans = [(a, min(a + size, replicas)) for a in range(0, replicas, size)]
            begin = time.monotonic()
            try:
                return self._together(spans, one, there)
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

    def _together(self, spans: Sequence[Span], one: One, there: There) -> Any:
        """What workers give; what this process does, without them or where nothing can be sent."""
        if crew := self._workers(spans):
            try:
                return there(crew, spans)
            except (pickle.PicklingError, TypeError, AttributeError, OSError):
                self._crew = None
        return _joined([one(span) for span in spans])

    def _of(self, stream: Stream, span: Span) -> Stream:
        """The stream as some replicas see it; the same object each time, for captured updates."""
        if stream.scale is None:
            return stream
        known = self._streams.get(span)
        if known is None or known[0] is not stream:
            known = stream, stream.of_replicas(*span)
            self._streams[span] = known
        return known[1]


def _joined(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else tree_map(lambda *leaf: torch.cat(leaf), *parts)


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in _CPU)
