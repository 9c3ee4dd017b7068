"""Divergence: replicas whose numbers stop being finite are frozen, and the others never know."""

from collections.abc import Callable

import torch
from torch import Tensor

from dpmcl.core.tree import leaves, tree_map
from dpmcl.methods._method import State


def finite(state: State) -> Tensor:
    """Which replicas have finite parameters, optimiser states and extras: bool (replicas,).

    A cost that is not finite shows there as soon as its gradient has been stepped on.
    """
    alive: Tensor | None = None
    for leaf in leaves(tuple(state)):
        if leaf.is_floating_point():
            own: Tensor = leaf.isfinite().flatten(1).all(1) if leaf.dim() > 1 else leaf.isfinite()
            alive = own if alive is None else alive & own
    assert alive is not None
    return alive


def choose_state(alive: Tensor, new: State, old: State) -> State:
    """The new state of the replicas alive, the old one of the others."""

    def pick(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(alive.view(-1, *[1] * (a.dim() - 1)), a, b)

    chosen: State = tree_map(pick, new, old)
    return chosen


def replayed(
    state: State, steps: int, advance: Callable[[State, int], State], alive: Tensor
) -> tuple[State, dict[int, int]]:
    """The states in which replicas froze, and the step (from 0) at which each newly did.

    state: before the steps. advance(state, step): the state after one. alive: those that had not
    diverged before. Updates are repeatable, so the others take the same steps again.
    """
    fell: dict[int, int] = {}
    for step in range(steps):
        new = advance(state, step)
        good = alive & finite(new)
        for replica in (alive & ~good).nonzero().flatten().tolist():
            fell[replica] = step
        state = choose_state(good, new, state)
        alive = good
    return state, fell
