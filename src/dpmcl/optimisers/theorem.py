"""The step size of Theorem 1."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from dpmcl.core.settings import Rate
from dpmcl.core.tree import leaves, tree_map
from dpmcl.exceptions import ModelError, SpecError
from dpmcl.optimisers._optimiser import Optimiser, Slots

Drift = Literal["none", "inputs", "features", "exact"]
"""Source of dx: none, the change of the mean inputs, the change that it makes in the inputs of g,
or the dynamics of the stream."""


@dataclass(frozen=True, kw_only=True)
class Theorem(Optimiser):
    """The step size of Theorem 1 and equation 4, alpha(k) in place of a learning rate.

    alpha = (1 - ||J_x|| ||dx||) / (beta ||J_theta||^2 + eps), where the norm of J_theta is over all
    parameters that step together. lr bounds alpha from above, as equation 4 does; without a bound,
    a vanishing gradient makes alpha enormous. There is no weight decay, since the theorem's alpha
    is for the gradient of J alone.

    Args:
        lr: Largest alpha.
        weight_decay: Must be 0.
        beta: Bound on J of the theorem.
        eps: Keeps alpha finite if the gradient vanishes.
        form: "J_theta" for equation 4, theta - alpha J_theta; "V_theta" for the update of the
            theorem, theta + alpha V_theta with V_theta = -J J_theta, which is Polyak's step times
            (1 - ||J_x|| ||dx||) / beta.
        drift: Source of ||dx||; ||J_x|| ||dx|| is measured before each phase and every 50 updates
            (`training.step_size`). It is 0 in a fresh state, with which inner updates start.
        otherwise: What to do if 1 - ||J_x|| ||dx|| <= 0, so that the theorem does not apply:
            "ignore" takes the step as if dx were 0, which section 3.1 does for all practical
            purposes; "stay" takes no step.
    """

    beta: Rate = 1000.0
    eps: Rate = 1e-8
    form: Literal["J_theta", "V_theta"] = "J_theta"
    drift: Drift = "inputs"
    otherwise: Literal["ignore", "stay"] = "ignore"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight_decay:
            raise SpecError(
                f"weight_decay must be 0, got {self.weight_decay}: the step of Theorem 1 is for "
                "the gradient of J alone; use another optimiser."
            )

    def slots(self, parameter: Tensor) -> Slots:
        return {"reach": parameter.new_zeros(())}

    def rule(self, parameter: Tensor, grad: Tensor, slots: Slots) -> tuple[Tensor, Slots]:
        raise NotImplementedError  # alpha depends on all parameters together

    def step(
        self, theta: Any, grads: Any, state: Any, cost: Tensor | None = None
    ) -> tuple[Any, Any]:
        if not leaves(theta):  # of a part whose parameters are all frozen
            return theta, state
        square = sum(grad.square().sum() for grad in leaves(grads))
        alpha = self.alpha(square, leaves(state)[0])
        if self.form == "V_theta":
            if cost is None:
                raise ModelError(
                    "form = 'V_theta' needs the cost beside its gradient: "
                    "self.descend(state, grads, cost)."
                )
            alpha = alpha * cost.clamp(min=0)
        alpha = alpha.clamp(max=self.lr)
        return tree_map(lambda p, g: p - alpha * g, theta, grads), state

    def alpha(self, square: Tensor, reach: Tensor) -> Tensor:
        """Return alpha before it is bounded by lr.

        Args:
            square: ||J_theta||^2, a scalar.
            reach: ||J_x|| ||dx||, a scalar.
        """
        fallback = 1.0 if self.otherwise == "ignore" else 0.0
        return torch.where(reach < 1, 1 - reach, fallback) / (self.beta * square + self.eps)

    @staticmethod
    def with_reach(state: Any, reach: Tensor) -> Any:
        """Return an optimiser state of all replicas in which ||J_x|| ||dx|| is set.

        Args:
            state: Optimiser state with a leading replica dimension.
            reach: ||J_x|| ||dx|| of each replica, (replicas,).
        """
        return tree_map(lambda leaf: reach.to(leaf.dtype).clone(), state)


plugin = Theorem
