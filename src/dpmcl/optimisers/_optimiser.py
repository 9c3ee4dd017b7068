"""The interface of an optimiser: a pure, differentiable rule.

A rule takes and returns trees: `state = rule.init(theta)`, then
`theta, state = rule.step(theta, gradient, state)`. The state has the structure of theta, with a
dict of slots at each leaf, so a part of theta can be stepped with the same part of the state.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dpmcl import plugins
from dpmcl.core.gradients import gradient
from dpmcl.core.settings import NonNegativeFloat, Rate, Settings
from dpmcl.core.tree import tree_map
from dpmcl.exceptions import SpecError

Slots = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Optimiser(Settings, ABC):
    """A rule that turns a gradient into a change of the parameters.

    Args:
        lr: Learning rate, above 0.
        weight_decay: Factor of the parameter in a term added to its gradient (L2, like
            `weight_decay` of SGD, Adagrad and Adam in torch.optim).
    """

    lr: Rate = 1e-2
    weight_decay: NonNegativeFloat = 0.0

    @abstractmethod
    def slots(self, parameter: Tensor) -> Slots:
        """Return the state of one parameter before the first step.

        Args:
            parameter: One tensor of parameters.
        """

    @abstractmethod
    def rule(self, parameter: Tensor, grad: Tensor, slots: Slots) -> tuple[Tensor, Slots]:
        """Step one parameter, and return it with its new state.

        Args:
            parameter: One tensor of parameters.
            grad: Gradient of the parameter.
            slots: State of the parameter.
        """

    def init(self, theta: Any) -> Any:
        """Return the state of a tree of parameters before the first step.

        Args:
            theta: A tree of parameters.
        """
        return tree_map(self.slots, theta)

    def step(
        self, theta: Any, grads: Any, state: Any, cost: Tensor | None = None
    ) -> tuple[Any, Any]:
        """Step a tree of parameters.

        Args:
            theta: Tree of parameters.
            grads: Gradient by the parameters, a tree of the same structure.
            state: State that `init` or the last step returned.
            cost: Scalar cost whose gradient is `grads`; only some rules need it.

        Returns:
            The new parameters and the new state.
        """
        if isinstance(theta, dict):
            pairs = {k: self.step(v, grads[k], state[k], cost) for k, v in theta.items()}
            return {k: p[0] for k, p in pairs.items()}, {k: p[1] for k, p in pairs.items()}
        if self.weight_decay:
            grads = grads + self.weight_decay * theta
        return self.rule(theta, grads, state)

    def descended(
        self, cost: Callable[[Any, int], Tensor], theta: Any, steps: int, state: Any = None
    ) -> Any:
        """Return the parameters after several steps on a cost, for a look-ahead or an inner loop.

        Args:
            cost: Function cost(theta, step) that returns a scalar; step counts from 0.
            theta: Initial parameters, a tree.
            steps: Number of steps.
            state: Initial state; None for that of `init`.
        """
        state = self.init(theta) if state is None else state
        for step in range(steps):
            grads, J = gradient(cost)(theta, step)
            theta, state = self.step(theta, grads, state, J)
        return theta


def build(setting: str | Mapping[str, Any], lr: float) -> Optimiser:
    """Return the optimiser of a setting.

    Args:
        setting: Name of an optimiser, or a table of a name and its options.
        lr: Learning rate.

    Raises:
        SpecError: There is no such optimiser, or an option breaks a rule.

    >>> build({"name": "sgd", "momentum": 0.9}, lr=0.1)
    SGD(lr=0.1, weight_decay=0.0, momentum=0.9)
    """
    if not isinstance(setting, str) and "lr" in setting:
        raise SpecError("The learning rate is lr, beside optimiser and not inside it.")
    rule: Optimiser = plugins.from_setting("optimiser", setting, lr=lr)
    return rule
