"""Decides when a run writes a checkpoint, and when it stops."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real

from dpmcl.exceptions import SpecError, Stopped, shown
from dpmcl.training.checkpoints import Checkpoints
from dpmcl.training.observer import Observer, Segment
from dpmcl.training.setup import Setup
from dpmcl.training.state import RunState

_SHARE = 0.1
"""Largest share of the run time that checkpoints after tasks may use.

Above it the checkpoint is skipped: tasks may be as short as a checkpoint takes.
"""


@dataclass(frozen=True)
class Keeping:
    """When runs write checkpoints and stop.

    Attributes:
        seconds: Minimum number of seconds between checkpoints within a task.
        stop: Called between segments of updates; True ends the run after a checkpoint.
    """

    seconds: float = 60.0
    stop: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        if not (isinstance(self.seconds, Real) and self.seconds >= 0):
            raise SpecError(
                f"Seconds between checkpoints must be a number from 0, got {shown(self.seconds)}."
            )


class Keeper(Observer):
    """Writes the checkpoints of a job, loads the newest, and ends the job if asked to stop.

    Args:
        keeping: When to write checkpoints and when to stop.
        checkpoints: The job's checkpoints; None writes none, and only `keeping.stop` has an effect.
    """

    def __init__(self, keeping: Keeping, checkpoints: Checkpoints | None = None) -> None:
        self._keeping, self._checkpoints = keeping, checkpoints
        self._start = self._last_save = time.monotonic()
        self._spent = 0.0
        self.resumed, self.exact = False, True

    def resume(self, setup: Setup, run: RunState) -> RunState:
        """Return the state from which the job resumes: of its newest checkpoint, or else `run`.

        Args:
            setup: Setup of the job.
            run: State before the first task.
        """
        checkpoints = self._checkpoints
        if checkpoints is None or (saved := checkpoints.newest()) is None:
            return run
        before, now = saved.about.origin, checkpoints.origin
        if (before.seeds, before.digest) != (now.seeds, now.digest):
            setup.warn(
                "its checkpoint is of other data, or of version 0.1, which did not record them; it "
                "begins anew."
            )
            return run
        state = saved.state(run, setup.tasks)
        if state is None:
            return run
        self.resumed, self.exact = True, before == now
        task, phase, update = state.position
        another = (
            "; another engine, device or version of PyTorch or dpmcl made it, so it is equal to "
            "rounding at best"
        )
        setup.warn(
            f"goes on from its last checkpoint (task {task}, phase {phase}, update {update})"
            f"{another * (not self.exact)}."
        )
        return state

    def after_segment(self, setup: Setup, run: RunState, segment: Segment) -> RunState:
        due = time.monotonic() - self._last_save >= self._keeping.seconds
        self._save_or_stop(run, due)
        return run

    def after_task(self, setup: Setup, run: RunState) -> RunState:
        due = self._spent <= _SHARE * (time.monotonic() - self._start)
        self._save_or_stop(run, due)
        return run

    def _save_or_stop(self, run: RunState, due: bool) -> None:
        stop = self._keeping.stop()
        if due or stop:
            self._save(run)
        if stop:
            raise Stopped()

    def _save(self, run: RunState) -> None:
        start = time.monotonic()
        if self._checkpoints is not None:
            self._checkpoints.save(run)
        self._last_save = time.monotonic()
        self._spent += self._last_save - start
