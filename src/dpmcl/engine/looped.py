"""One replica after another."""

from collections.abc import Callable
from typing import Any, ClassVar

from dpmcl.core.tree import at, leaves, stack
from dpmcl.engine.contract import Feed
from dpmcl.engine.stepper import Stepper
from dpmcl.methods._method import State, Update


class Looped:
    """Takes one replica after another: no mapping, so any module will do.

    Args:
        stepper: Runs the updates.
    """

    name: ClassVar[str] = "looped"

    def __init__(self, stepper: Stepper | None = None) -> None:
        self._stepper = stepper or Stepper()

    def advance(self, update: Update, state: State, feed: Feed) -> State:
        done = []
        for replica in range(feed.key.shape[0]):
            steps = (
                (feed.batches(step, replica), feed.key[replica, step]) for step in range(feed.steps)
            )
            done.append(self._stepper.run(update, at(state, replica), steps))
        stacked: State = stack(done)
        return stacked

    def map(self, function: Callable[..., Any], *trees: Any) -> Any:
        replicas = leaves(trees)[0].shape[0]
        return stack([function(*at(trees, replica)) for replica in range(replicas)])
