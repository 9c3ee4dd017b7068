"""L2-Init: a penalty towards the initial weights, against the loss of plasticity."""

from dataclasses import dataclass

from dpmcl.core.model import Theta
from dpmcl.core.settings import NonNegativeFloat
from dpmcl.core.tree import tree_map
from dpmcl.options._option import Option


@dataclass(frozen=True, kw_only=True)
class L2Init(Option):
    """L2-Init: adds strength ||theta - theta_0||^2 to the cost, theta_0 the initial weights.

    Its gradient, 2 strength (theta - theta_0), is added to the method's gradient in each step of
    theta, for the parts that step. Source: Kumar et al., "Maintaining plasticity in continual
    learning via regenerative regularization", 2023.

    Deviation: an optimiser that uses the cost gets that of the method, without the penalty.
    """

    strength: NonNegativeFloat = 1e-3

    def gradient(self, theta: Theta, grads: Theta, start: Theta) -> Theta:
        return tree_map(lambda g, p, p_0: g + 2 * self.strength * (p - p_0), grads, theta, start)


plugin = L2Init
