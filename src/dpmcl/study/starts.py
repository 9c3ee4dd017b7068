"""What another process needs to build the trainer of a run."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import cloudpickle

from dpmcl.data.stream import Stream
from dpmcl.training.job import Trainer

T = TypeVar("T")


def starts(
    trainers: Iterable[Trainer], store: Callable[[Stream], T]
) -> dict[Trainer, tuple[bytes, T]]:
    """Return what another process needs to build each trainer.

    Args:
        trainers: Trainers of runs, which may share streams.
        store: Stores a stream for other processes, and returns its place; called once a stream.

    Returns:
        By trainer, a pickled function that returns the trainer of a stream, and the stream's place.

    Raises:
        Exception: A user's object cannot be pickled, or there is no room for the stream.
    """
    out: dict[Trainer, tuple[bytes, T]] = {}
    places: dict[int, T] = {}
    for trainer in dict.fromkeys(trainers):
        spec, stream = trainer.spec, trainer.stream
        if id(stream) not in places:  # ids are not reused: trainers hold streams
            places[id(stream)] = store(stream)
        if spec.stream.shared:  # `replace` drops data that the settings hold
            spec = replace(spec, stream=replace(spec.stream))
        folder = None if trainer.folder is None else trainer.folder.resolve()
        trainer_of = partial(
            Trainer, spec, digest=trainer.digest, folder=folder, storage=trainer.storage
        )
        out[trainer] = cloudpickle.dumps(trainer_of), places[id(stream)]
    return out
