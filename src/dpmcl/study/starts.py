"""What another process needs to know of a run before its first job."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

import cloudpickle

from dpmcl.data.stream import Stream
from dpmcl.training.job import Trainer
from dpmcl.training.spec import Spec
from dpmcl.training.storage import Storage

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Start:
    """All of a trainer but its stream, which several runs may share.

    Attributes:
        spec: That of the run, without shared data.
        digest: Fingerprint of the data.
        folder: The run folder, or None.
        storage: Storage in which jobs are kept instead.
    """

    spec: Spec
    digest: str
    folder: Path | None
    storage: Storage | None

    def trainer(self, stream: Stream) -> Trainer:
        """Return the trainer.

        Args:
            stream: Its data.
        """
        return Trainer(
            self.spec, stream, digest=self.digest, folder=self.folder, storage=self.storage
        )


class Starts(Generic[T]):
    """Prepares each run for other processes once, when the first of them needs it.

    Args:
        keep: Puts a stream where other processes find it, and returns where.
    """

    def __init__(self, keep: Callable[[Stream], T]) -> None:
        self._keep = keep
        self._lock = threading.Lock()
        self._known: dict[Trainer, tuple[bytes, T]] = {}
        self._streams: dict[int, T] = {}

    def of(self, trainer: Trainer) -> tuple[bytes, T]:
        """Return the pickled `Start` of a run, and where its stream is.

        Args:
            trainer: Of the run.

        Raises:
            Exception: A user's object cannot be sent, or there is no room for the stream.
        """
        with self._lock:
            if trainer not in self._known:
                spec, stream = trainer.spec, trainer.stream
                if id(stream) not in self._streams:  # trainers keep theirs, so ids are not reused
                    self._streams[id(stream)] = self._keep(stream)
                if spec.stream.shared:  # its settings may hold the data
                    spec = replace(spec, stream=replace(spec.stream))
                folder = None if trainer.folder is None else trainer.folder.resolve()
                start = cloudpickle.dumps(Start(spec, trainer.digest, folder, trainer.storage))
                self._known[trainer] = start, self._streams[id(stream)]
            return self._known[trainer]
