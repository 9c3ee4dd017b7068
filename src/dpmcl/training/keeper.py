"""When a run is saved, and when it stops: asked between chunks of updates and after each task."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real

from dpmcl.exceptions import SpecError, Stopped, shown
from dpmcl.training.checkpoints import Checkpoints, Origin, Snapshot

_SHARE = 0.1
"""Of the time, what checkpoints after tasks may take; short tasks go without one then."""


@dataclass(frozen=True)
class Keeping:
    """How runs are kept. seconds: between checkpoints within a task.

    stop: asked between chunks of updates; True ends the run after a checkpoint.
    """

    seconds: float = 60.0
    stop: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        if not (isinstance(self.seconds, Real) and self.seconds >= 0):
            raise SpecError(
                f"Seconds between checkpoints must be a number from 0, got {shown(self.seconds)}."
            )


class Keeper:
    """Saves one method's run. checkpoints: None keeps nothing, and only heeds `stop`."""

    def __init__(
        self, keeping: Keeping, checkpoints: Checkpoints | None = None, origin: Origin | None = None
    ) -> None:
        self._keeping, self._checkpoints, self._origin = keeping, checkpoints, origin
        self._began = self._last = time.monotonic()
        self._spent = 0.0

    def load(self, like: Snapshot) -> Snapshot | None:
        """Where to go on from; None for the beginning."""
        return None if self._checkpoints is None else self._checkpoints.load(like)

    def after_chunk(self, snapshot: Callable[[], Snapshot]) -> None:
        """Saves if it is time to. Raises Stopped, after a checkpoint, if the run is to stop."""
        stop = self._keeping.stop()
        if stop or time.monotonic() - self._last >= self._keeping.seconds:
            self._save(snapshot)
        if stop:
            raise Stopped("The run was stopped; what it had done is kept.")

    def after_task(self, snapshot: Callable[[], Snapshot]) -> None:
        """Saves, unless checkpoints have taken too much of the time. Raises Stopped likewise."""
        stop = self._keeping.stop()
        if stop or self._spent <= _SHARE * (time.monotonic() - self._began):
            self._save(snapshot)
        if stop:
            raise Stopped("The run was stopped; what it had done is kept.")

    def _save(self, snapshot: Callable[[], Snapshot]) -> None:
        start = time.monotonic()
        if self._checkpoints is not None:
            assert self._origin is not None
            self._checkpoints.save(snapshot(), self._origin)
        self._last = time.monotonic()
        self._spent += self._last - start
