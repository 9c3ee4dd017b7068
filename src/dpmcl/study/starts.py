"""The data that another process needs to build the trainer of a run."""

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
    """The arguments of a trainer except its stream, which several runs may share.

    Attributes:
        spec: Spec of the run; without the stream's data if all replicas share them.
        digest: Fingerprint of the data.
        folder: The run folder, or None.
        storage: Storage for checkpoints in place of the folder, or None.
    """

    spec: Spec
    digest: str
    folder: Path | None
    storage: Storage | None

    def trainer(self, stream: Stream) -> Trainer:
        """Return the trainer.

        Args:
            stream: Stream of the run.
        """
        return Trainer(
            self.spec, stream, digest=self.digest, folder=self.folder, storage=self.storage
        )


class Starts(Generic[T]):
    """Prepares each run once for other processes, when the first of them needs it.

    Args:
        store: Stores a stream for other processes, and returns its place.
    """

    def __init__(self, store: Callable[[Stream], T]) -> None:
        self._store = store
        self._prepared: dict[Trainer, tuple[bytes, T]] = {}
        self._streams: dict[int, T] = {}

    def prepare(self, trainer: Trainer) -> tuple[bytes, T]:
        """Return the pickled `Start` of a run, and the place of its stream.

        Args:
            trainer: Trainer of the run.

        Raises:
            Exception: A user's object cannot be pickled, or there is no room for the stream.
        """
        if trainer not in self._prepared:
            spec, stream = trainer.spec, trainer.stream
            if id(stream) not in self._streams:  # ids are not reused: trainers hold streams
                self._streams[id(stream)] = self._store(stream)
            if spec.stream.shared:  # `replace` drops data that the settings hold
                spec = replace(spec, stream=replace(spec.stream))
            folder = None if trainer.folder is None else trainer.folder.resolve()
            start = cloudpickle.dumps(Start(spec, trainer.digest, folder, trainer.storage))
            self._prepared[trainer] = start, self._streams[id(stream)]
        return self._prepared[trainer]
