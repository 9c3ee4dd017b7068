"""The contract of an observer, which a run calls at fixed points."""

from dataclasses import dataclass

from dpmcl.engine import Feed
from dpmcl.methods._method import Phase
from dpmcl.training.setup import Setup
from dpmcl.training.state import Position, RunState


@dataclass(frozen=True, eq=False)
class Segment:
    """A segment of updates that has just been run.

    Attributes:
        before: The state before its first update.
        phase: The phase that the updates belong to.
        feed: Their batches and keys.
    """

    before: RunState
    phase: Phase
    feed: Feed


class Observer:
    """Base class of observers, which measure a run and keep results in `RunState.values`.

    Each call returns the state with which the run continues: the state that it received, or a
    changed copy. A subclass overrides the calls that it needs.
    """

    def begin(self, setup: Setup, run: RunState) -> RunState:
        """Observe the state before the first update of a call of `train`, and return it.

        Args:
            setup: Setup of the run.
            run: State of the run.
        """
        return run

    def stop(self, setup: Setup, position: Position, last: int) -> int:
        """Return the update before which a segment ends, at most `last`.

        Args:
            setup: Setup of the run.
            position: Position of the first update of the segment.
            last: The update before which the segment ends if this observer does not shorten it.
        """
        return last

    def before_segment(self, setup: Setup, run: RunState) -> RunState:
        """Observe the state before a segment of updates, and return it.

        Do not save this state to resume from: before the first update of a phase, the work of the
        phase is already counted in it.

        Args:
            setup: Setup of the run.
            run: State of the run.
        """
        return run

    def after_segment(self, setup: Setup, run: RunState, segment: Segment) -> RunState:
        """Observe the state after a segment of updates, and return it.

        Args:
            setup: Setup of the run.
            run: State of the run.
            segment: The updates that have just been run.
        """
        return run

    def after_task(self, setup: Setup, run: RunState) -> RunState:
        """Observe the state after a task, whose position is the next task, and return it.

        Args:
            setup: Setup of the run.
            run: State of the run.
        """
        return run
