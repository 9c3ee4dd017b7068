"""Streams made in Python."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from dpmcl.data.stream import Stream
from dpmcl.exceptions import DataError, SpecError
from dpmcl.streams._settings import StreamSettings


@dataclass(frozen=True, kw_only=True)
class Python(StreamSettings):
    """Stream that was made in Python and passed to `dpmcl.run`; a spec alone cannot make it.

    Attributes:
        digest: Fingerprint of the stream (`Stream.digest`), which restricts a run folder to the
            same data.
        stream: The stream; None in a spec that was read from a file.
    """

    shared: ClassVar[bool] = True

    digest: str = ""
    stream: Stream | None = field(init=False, repr=False, compare=False, default=None)

    def holding(self, stream: Stream) -> Self:
        """Return a copy of the settings that holds a stream.

        Args:
            stream: Stream that `build` returns.
        """
        settings = replace(self)
        object.__setattr__(settings, "stream", stream)
        return settings

    def build(self, seeds: Sequence[int]) -> Stream:
        if self.stream is None:
            raise DataError(
                "This spec's stream was made in Python, and a spec cannot make it again; call "
                "dpmcl.run(stream, ...) with it."
            )
        known = len(self.stream.tasks)
        if self.tasks is not None and self.tasks > known:
            raise SpecError(f"tasks must be at most {known} for this stream, got {self.tasks}.")
        return self.stream if self.tasks is None else self.stream.first(self.tasks)


plugin = Python
