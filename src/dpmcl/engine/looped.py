"""The engine that computes one replica after another."""

from collections.abc import Callable
from typing import Any, ClassVar

from dpmcl.core.tree import at, leaves, stack
from dpmcl.engine.contract import Feed
from dpmcl.engine.stepper import Stepper
from dpmcl.methods._method import State, Update


class Looped:
    """Engine that computes one replica after another, without vmap, so it takes any module.

    Args:
        stepper: Runs the updates; None for a new one.
    """

    name: ClassVar[str] = "looped"

    def __init__(self, stepper: Stepper | None = None) -> None:
        self._stepper = stepper or Stepper()

    def advance(self, update: Update, state: State, feed: Feed) -> State:
        states = []
        for replica in range(feed.key.shape[0]):
            steps = (
                (feed.batches(step, replica), feed.key[replica, step]) for step in range(feed.steps)
            )
            states.append(self._stepper.run(update, at(state, replica), steps))
        return stack(states)

    def map(self, function: Callable[..., Any], *trees: Any) -> Any:
        replicas = leaves(trees)[0].shape[0]
        return stack([function(*at(trees, replica)) for replica in range(replicas)])
