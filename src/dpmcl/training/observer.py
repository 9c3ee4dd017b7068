"""The contract of an observer: it looks on at a run, at a few places."""

from dataclasses import dataclass

from dpmcl.engine import Feed
from dpmcl.methods._method import Phase
from dpmcl.training.setup import Setup
from dpmcl.training.state import Position, RunState


@dataclass(frozen=True, eq=False)
class Chunk:
    """A chunk of updates that has just been run.

    Attributes:
        before: The state before its first update.
        phase: The phase that the updates belong to.
        feed: Their batches and keys.
    """

    before: RunState
    phase: Phase
    feed: Feed


class Observer:
    """Looks on at a run, and keeps values of its own in `RunState.values`.

    Each call returns the state with which the run goes on: the one given, or one with other values.
    A subclass overrides the calls that it needs.
    """

    def begin(self, setup: Setup, run: RunState) -> RunState:
        """Return the state before the first update of this call of `train`, after a look at it.

        Args:
            setup: Setup of the run.
            run: State of the run.
        """
        return run

    def stop(self, setup: Setup, position: Position, last: int) -> int:
        """Return the update before which a chunk that begins at `position` ends, at most `last`.

        Args:
            setup: Setup of the run.
            position: Where the chunk begins.
            last: Where it ends unless an observer wants it shorter.
        """
        return last

    def before_chunk(self, setup: Setup, run: RunState) -> RunState:
        """Return the state before a chunk of updates, after a look at it.

        Before a phase's first update its work has been counted already, so training may not go on
        from that state.

        Args:
            setup: Setup of the run.
            run: State of the run.
        """
        return run

    def after_chunk(self, setup: Setup, run: RunState, chunk: Chunk) -> RunState:
        """Return the state after a chunk of updates, after a look at it.

        Args:
            setup: Setup of the run.
            run: State of the run.
            chunk: The updates that have just been run.
        """
        return run

    def after_task(self, setup: Setup, run: RunState) -> RunState:
        """Return the state after a task, after a look at it; its position is the next task.

        Args:
            setup: Setup of the run.
            run: State of the run.
        """
        return run
