"""Reports the progress of a run."""

from collections.abc import Callable
from dataclasses import dataclass

from dpmcl.training.observer import Observer, Segment
from dpmcl.training.setup import Setup
from dpmcl.training.state import Position, RunState

ProgressCallback = Callable[[int, int], None]
"""on_progress(done, total), in updates of all replicas."""


@dataclass(frozen=True)
class Progress(Observer):
    """Reports progress before the first update and after each segment of updates.

    Attributes:
        on_progress: Called with the updates done and the updates of the run, of all replicas.
    """

    on_progress: ProgressCallback

    def begin(self, setup: Setup, run: RunState) -> RunState:
        self._report(setup, run)
        return run

    def after_segment(self, setup: Setup, run: RunState, segment: Segment) -> RunState:
        self._report(setup, run)
        return run

    def _report(self, setup: Setup, run: RunState) -> None:
        replicas = len(setup.seeds)
        done = setup.updates_before(run.position)
        total = setup.updates_before(Position(setup.tasks))
        self.on_progress(done * replicas, total * replicas)
