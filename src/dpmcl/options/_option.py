"""The interface of an option: a change of training that any method can have."""

from abc import ABC
from dataclasses import dataclass

from torch import Tensor

from dpmcl.core.model import Theta
from dpmcl.core.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Option(Settings, ABC):
    """A penalty on the parameters, or a perturbation of them; pure functions of one replica."""

    def gradient(self, theta: Theta, grads: Theta, start: Theta) -> Theta:
        """Return the gradient to descend on, a tree of the form of `grads`.

        Args:
            theta: The parts of the parameters that step.
            grads: Gradient of the method by these parts.
            start: The same parts at the start of the run.
        """
        return grads

    def begin_task(self, theta: Theta, key: Tensor) -> Theta:
        """Return the parameters with which a task begins.

        Args:
            theta: Parameters after the last task, or the initial ones.
            key: Random key of this seed, task and option, int64 (2,).
        """
        return theta
