"""Estimates ||J_x|| ||dx||, which the step size of Theorem 1 needs, before segments of updates."""

from dataclasses import replace

import torch
from torch import Tensor

from dpmcl.core.batch import Batch
from dpmcl.data.sampling import Draw, Moved
from dpmcl.methods._method import State
from dpmcl.optimisers.theorem import Theorem
from dpmcl.theory.terms import reach
from dpmcl.training.observer import Observer
from dpmcl.training.setup import Setup
from dpmcl.training.state import RunState

ROWS = 32
"""Rows of the new task on which ||J_x|| and ||dx|| are estimated."""

EVERY = 50
"""Number of updates of a phase between two estimates."""


class StepSize(Observer):
    """Estimates ||J_x|| ||dx|| for the optimiser `theorem`, and warns where the theorem fails.

    Args:
        rule: The optimiser.
    """

    def __init__(self, rule: Theorem) -> None:
        self._rule = rule

    def before_segment(self, setup: Setup, run: RunState) -> RunState:
        if run.position.update % EVERY:
            return run
        reached = self._estimate_reach(setup, run)
        self._warn_of_failures(setup, run, reached)
        state = run.replicas
        state = state._replace(optimiser=self._rule.with_reach(state.optimiser, reached))
        return replace(run, replicas=state)

    def _warn_of_failures(self, setup: Setup, run: RunState, reached: Tensor) -> None:
        """Warn once, with the number of replicas to which the theorem does not apply."""
        fails, task = (reached >= 1) & run.alive, run.position.task
        if not fails.any():
            return
        ignores = self._rule.otherwise == "ignore"
        instead = "steps are taken as if dx were 0" if ignores else "no steps are taken"
        setup.warn(
            f"theorem 1 does not apply at task {task} ('{setup.stream.tasks[task]}'): ||J_x|| "
            f"||dx|| = {float(reached[fails].max()):.3g} is not below 1 in {int(fails.sum())} of "
            f"{len(reached)} replicas; {instead} there, and where it is so again.",
            once="theorem",
        )

    def _estimate_reach(self, setup: Setup, run: RunState) -> Tensor:
        """Return ||J_x|| ||dx|| of each replica, (replicas,)."""
        moved: Moved = "exact" if self._rule.drift == "exact" else "estimated"
        draws = {"new": Draw("new", ROWS), "next": Draw("new", ROWS, like="new", moved=moved)}
        rows = setup.probe(draws, run)

        features = self._rule.drift == "features"

        def measure(state: State, b_N: Batch, b_next: Batch) -> Tensor:
            model = setup.model.holding(state.buffers)
            return reach(model, state.theta, b_N, b_next, features=features)

        with torch.no_grad():
            reached: Tensor = setup.engine.map(measure, run.replicas, rows["new"], rows["next"])
        return reached
