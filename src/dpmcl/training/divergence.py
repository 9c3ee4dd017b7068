"""Divergence: replicas whose numbers stop being finite are frozen, and the others never know."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from dpmcl.core.tree import leaves, tree_map
from dpmcl.exceptions import DivergenceError
from dpmcl.methods._method import State
from dpmcl.results.record import Divergence
from dpmcl.training.observer import Chunk, Observer
from dpmcl.training.setup import Setup
from dpmcl.training.state import RunState

_CAUSES = {
    "not finite": (
        "is not finite",
        "go on without that replica with on_divergence = 'freeze'",
    ),
    "cost": (
        "has J above beta for too long",
        "raise monitor.beta, or go on without that replica with monitor.exceeding = 'freeze'",
    ),
}
"""By cause of a divergence, the replica's fault, and what one can do besides smaller steps."""


@dataclass(frozen=True)
class FreezeNonFinite(Observer):
    """Freezes a replica that is not finite after a chunk in the last state in which it was.

    Attributes:
        then: Whether the run goes on without the replica ("freeze") or ends ("stop").
    """

    then: Literal["freeze", "stop"] = "freeze"

    def begin(self, setup: Setup, run: RunState) -> RunState:
        tell(setup, run.diverged, "not finite", stop=self.then == "stop")
        return run

    def after_chunk(self, setup: Setup, run: RunState, chunk: Chunk) -> RunState:
        alive, fine = run.alive, finite(run.replicas)
        if not (alive & ~fine).any():
            return run

        frozen, fell = _replayed(setup, chunk, alive)
        task, phase, first = chunk.before.position
        diverged = {
            replica: Divergence(task, phase, first + step + 1)
            for replica, step in fell.items()
            if not fine[replica]  # else it has come back since, and alone nobody would have looked
        }
        tell(setup, diverged, "not finite", stop=self.then == "stop")
        state = choose_state(alive & fine, run.replicas, frozen)
        return replace(run, replicas=state, diverged={**run.diverged, **diverged})


def tell(setup: Setup, diverged: Mapping[int, Divergence], cause: str, *, stop: bool) -> None:
    """Log which replicas are frozen for a cause, or end the run there.

    Args:
        setup: The run's.
        diverged: The last update of each replica, by its index.
        cause: Replicas with another cause are passed over.
        stop: Whether they end the run.

    Raises:
        DivergenceError: There is such a replica, and it ends the run.
    """
    what, instead = _CAUSES[cause]
    for replica, where in diverged.items():
        if where.cause != cause:
            continue
        line = (
            f"seed {setup.seeds[replica]} {what} after update {where.update} of phase "
            f"{where.phase} of task {where.task} ('{setup.stream.tasks[where.task]}')"
        )
        if stop:
            name = f"{setup.name}: " if setup.name else ""
            raise DivergenceError(f"{name}{line}; take smaller steps (training.lr), or {instead}.")
        setup.say(f"{line}; it is frozen there, and its errors from then on are missing.")


def finite(state: State) -> Tensor:
    """Return which replicas have finite parameters, optimiser states and extras: bool (replicas,).

    A cost that is not finite shows there as soon as its gradient has been stepped on.

    Args:
        state: Replicas first.
    """
    alive: Tensor | None = None
    for leaf in leaves(tuple(state)):
        if leaf.is_floating_point():
            fine: Tensor = leaf.isfinite().flatten(1).all(1) if leaf.dim() > 1 else leaf.isfinite()
            alive = fine if alive is None else alive & fine
    assert alive is not None
    return alive


def choose_state(alive: Tensor, new: State, old: State) -> State:
    """Return the new state of the replicas alive, and the old one of the others.

    Args:
        alive: Which replicas take the new state, bool (replicas,).
        new, old: States, replicas first.
    """

    def pick(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(alive.view(-1, *[1] * (a.dim() - 1)), a, b)

    chosen: State = tree_map(pick, new, old)
    return chosen


def _replayed(setup: Setup, chunk: Chunk, alive: Tensor) -> tuple[State, dict[int, int]]:
    """Run the steps of a chunk one by one, and freeze each replica before it is not finite.

    Updates are repeatable, so the replicas that stay finite take the same steps again. Returns the
    last states in which the replicas were finite, and by replica the step (from 0) at which it
    newly was not.
    """
    state, update = chunk.before.replicas, setup.update(chunk.phase)
    fell: dict[int, int] = {}
    for step in range(chunk.feed.steps):
        new = setup.engine.advance(update, state, chunk.feed.only(step))
        good = alive & finite(new)
        for replica in (alive & ~good).nonzero().flatten().tolist():
            fell[replica] = step
        state = choose_state(good, new, state)
        alive = good
    return state, fell
