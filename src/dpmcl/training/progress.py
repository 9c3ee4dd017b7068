"""Reports how far a run is."""

from collections.abc import Callable
from dataclasses import dataclass

from dpmcl.training.observer import Chunk, Observer
from dpmcl.training.setup import Setup
from dpmcl.training.state import Position, RunState

Tell = Callable[[int, int], None]
"""tell(done, total): updates of all replicas."""


@dataclass(frozen=True)
class Progress(Observer):
    """Reports the updates done, of all replicas, after each chunk.

    Attributes:
        tell: Called with the updates done and the updates of the whole run.
    """

    tell: Tell

    def begin(self, setup: Setup, run: RunState) -> RunState:
        self._report(setup, run)
        return run

    def after_chunk(self, setup: Setup, run: RunState, chunk: Chunk) -> RunState:
        self._report(setup, run)
        return run

    def _report(self, setup: Setup, run: RunState) -> None:
        replicas = len(setup.seeds)
        done = setup.updates_before(run.position)
        total = setup.updates_before(Position(setup.tasks))
        self.tell(done * replicas, total * replicas)
