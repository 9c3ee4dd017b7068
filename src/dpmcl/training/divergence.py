"""Divergence: freeze replicas whose numbers are no longer finite, without effect on the others."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from dpmcl.core.tree import at, leaves, stack, tree_map
from dpmcl.engine import Feed
from dpmcl.exceptions import DivergenceError, reason
from dpmcl.methods._method import State, Update
from dpmcl.results.record import Divergence
from dpmcl.training.observer import Observer, Segment
from dpmcl.training.setup import Setup
from dpmcl.training.state import RunState

LinAlgError = torch.linalg.LinAlgError  # type: ignore[attr-defined]
"""Raised by operations of torch.linalg, as for numbers that are not finite or a singular matrix."""

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
"""Two parts of a message by cause of divergence: what happened, and a remedy besides lower lr."""


@dataclass(frozen=True)
class FreezeNonFinite(Observer):
    """Freezes a replica that is not finite after a segment in its last finite state.

    Attributes:
        on_divergence: Whether the run continues without the replica ("freeze") or ends ("stop").
    """

    on_divergence: Literal["freeze", "stop"] = "freeze"

    def begin(self, setup: Setup, run: RunState) -> RunState:
        report_divergence(setup, run.diverged, "not finite", stop=self.on_divergence == "stop")
        return run

    def after_segment(self, setup: Setup, run: RunState, segment: Segment) -> RunState:
        alive, is_finite = run.alive, finite_replicas(run.replicas)
        if not (alive & ~is_finite).any():
            return run

        frozen, failed_at = _rerun_segment(setup, segment, alive)
        task, phase, first = segment.before.position
        # A replica that is finite again at the segment's end stays: alone it would have stayed.
        diverged = {
            replica: Divergence(task, phase, first + step + 1)
            for replica, step in failed_at.items()
            if not is_finite[replica]
        }
        report_divergence(setup, diverged, "not finite", stop=self.on_divergence == "stop")
        state = choose_state(alive & is_finite, run.replicas, frozen)
        return replace(run, replicas=state, diverged={**run.diverged, **diverged})


def advanced(setup: Setup, update: Update, state: State, feed: Feed) -> State:
    """Return the state after updates.

    Linear algebra raises an exception for numbers that are not finite, and for all replicas at
    once. Then all of them are NaN in the result, and `FreezeNonFinite` finds those that diverged.

    Args:
        setup: Setup of the run.
        update: The update, as `Setup.update` returns it.
        state: State before the updates, with a leading replica dimension.
        feed: Their batches and keys.
    """
    try:
        return setup.engine.advance(update, state, feed)
    except LinAlgError as error:
        setup.warn(f"an update fails, as of numbers that diverge: {reason(error)}.", once="algebra")
        return _nan(state)


def report_divergence(
    setup: Setup, diverged: Mapping[int, Divergence], cause: str, *, stop: bool
) -> None:
    """Log which replicas are frozen for a cause, or end the run.

    Args:
        setup: Setup of the run.
        diverged: Divergence of each replica, by its index.
        cause: Cause to report; replicas that diverged for another one are ignored.
        stop: Whether to end the run if there is such a replica.

    Raises:
        DivergenceError: There is such a replica, and `stop` is True.
    """
    problem, remedy = _CAUSES[cause]
    for replica, event in diverged.items():
        if event.cause != cause:
            continue
        message = (
            f"seed {setup.seeds[replica]} {problem} after update {event.update} of phase "
            f"{event.phase} of task {event.task} ('{setup.stream.tasks[event.task]}')"
        )
        if stop:
            name = f"{setup.name}: " if setup.name else ""
            raise DivergenceError(
                f"{name}{message}; take smaller steps (training.lr), or {remedy}."
            )
        setup.warn(f"{message}; it is frozen there, and its errors from then on are missing.")


def finite_replicas(state: State) -> Tensor:
    """Return which replicas have a finite state: bool (replicas,).

    A cost that is not finite makes the state non-finite as soon as a step is made by its gradient.

    Args:
        state: State with a leading replica dimension.
    """
    finite = [
        leaf.isfinite().unsqueeze(1).flatten(1).all(1)
        for leaf in leaves(tuple(state))
        if leaf.is_floating_point()
    ]
    return torch.stack(finite).all(0)


def choose_state(alive: Tensor, new: State, old: State) -> State:
    """Return the new state of the replicas alive, and the old one of the others.

    Args:
        alive: Mask of the replicas that get the new state, bool (replicas,).
        new, old: States with a leading replica dimension.
    """

    def pick(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(alive.view(-1, *[1] * (a.dim() - 1)), a, b)

    return tree_map(pick, new, old)


def _rerun_segment(setup: Setup, segment: Segment, alive: Tensor) -> tuple[State, dict[int, int]]:
    """Run a segment's steps again one by one, and freeze each replica in its last finite state.

    Updates are repeatable, so the replicas that stay finite make the same steps again. Returns the
    last finite state of each replica, and the step (from 0) at which a replica was no longer
    finite, by replica.
    """
    state, update = segment.before.replicas, setup.update(segment.phase)
    failed_at: dict[int, int] = {}
    for step in range(segment.feed.steps):
        one_step = segment.feed.only(step)
        new = advanced(setup, update, state, one_step)
        if not finite_replicas(new).any():
            new = _one_by_one(update, state, one_step)
        still_alive = alive & finite_replicas(new)
        for replica in (alive & ~still_alive).nonzero().flatten().tolist():
            failed_at[replica] = step
        state = choose_state(still_alive, new, state)
        alive = still_alive
    return state, failed_at


def _one_by_one(update: Update, state: State, feed: Feed) -> State:
    """Return the state after one update; replicas for which linear algebra fails are NaN."""
    states = []
    for replica in range(len(feed.key)):
        alone = at(state, replica)
        try:
            states.append(update(alone, feed.batches(0, replica), feed.key[replica, 0]))
        except LinAlgError:
            states.append(_nan(alone))
    return stack(states)


def _nan(state: State) -> State:
    """Return a state in which every float is NaN."""

    def nan(leaf: Tensor) -> Tensor:
        return torch.full_like(leaf, torch.nan) if leaf.is_floating_point() else leaf

    return tree_map(nan, state)
