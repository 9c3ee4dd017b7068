"""Optimisers as pure, differentiable rules that agree with torch.optim step for step.

A rule takes trees and returns trees: `state = rule.init(theta)`, then
`theta, state = rule.step(theta, gradient, state)`. The state has the shape of theta, with a dict of
slots at each leaf, so a part of theta is stepped with the same part of the state.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import annotated_types as at
import torch
from torch import Tensor

from dpmcl.core.settings import Rate, Settings, Share
from dpmcl.core.tree import leaves, tree_map
from dpmcl.exceptions import ModelError, SpecError, unknown

Slots = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Optimiser(Settings, ABC):
    """A rule: how a gradient changes the parameters. lr is the learning rate, above 0."""

    lr: Rate = 1e-2

    @abstractmethod
    def slots(self, parameter: Tensor) -> Slots:
        """The state of one parameter before the first step."""

    @abstractmethod
    def rule(self, parameter: Tensor, grad: Tensor, slots: Slots) -> tuple[Tensor, Slots]:
        """One step of one parameter."""

    def init(self, theta: Any) -> Any:
        """The fresh state of a tree of parameters."""
        return tree_map(self.slots, theta)

    def step(
        self, theta: Any, grads: Any, state: Any, cost: Tensor | None = None
    ) -> tuple[Any, Any]:
        """One step of a tree of parameters: (theta, state).

        cost: what the gradient is of, for the rules that need it.
        """
        if isinstance(theta, dict):
            pairs = {k: self.step(v, grads[k], state[k], cost) for k, v in theta.items()}
            return {k: p[0] for k, p in pairs.items()}, {k: p[1] for k, p in pairs.items()}
        return self.rule(theta, grads, state)


@dataclass(frozen=True, kw_only=True)
class SGD(Optimiser):
    """Gradient descent: theta - lr g; with momentum m: theta - lr b, b = m b + g."""

    momentum: Share = 0.0

    def slots(self, parameter: Tensor) -> Slots:
        return {"momentum": torch.zeros_like(parameter)} if self.momentum else {}

    def rule(self, parameter: Tensor, grad: Tensor, slots: Slots) -> tuple[Tensor, Slots]:
        if not self.momentum:
            return parameter - self.lr * grad, {}
        buffer = self.momentum * slots["momentum"] + grad
        return parameter - self.lr * buffer, {"momentum": buffer}


@dataclass(frozen=True, kw_only=True)
class Adagrad(Optimiser):
    """The paper's optimiser (appendix B.3): theta - lr g / (sqrt(sum of g^2) + eps).

    Without an initial accumulator the first step is lr times the gradient's sign.
    """

    eps: Annotated[float, at.Ge(0)] = 1e-10
    initial_accumulator: Annotated[float, at.Ge(0)] = 0.0

    def slots(self, parameter: Tensor) -> Slots:
        # Not 0: the square root's derivative there, times a dead unit's zero gradient, is NaN.
        least = torch.finfo(parameter.dtype).tiny
        return {"sum": torch.full_like(parameter, max(self.initial_accumulator, least))}

    def rule(self, parameter: Tensor, grad: Tensor, slots: Slots) -> tuple[Tensor, Slots]:
        total = torch.addcmul(slots["sum"], grad, grad)
        scale = torch.sqrt(total) + self.eps
        return torch.addcdiv(parameter, grad, scale, value=-self.lr), {"sum": total}


@dataclass(frozen=True, kw_only=True)
class Adam(Optimiser):
    """Adam with bias correction (Kingma and Ba, 2015)."""

    beta1: Share = 0.9
    beta2: Share = 0.999
    eps: Annotated[float, at.Ge(0)] = 1e-8

    def slots(self, parameter: Tensor) -> Slots:
        # The step count is float64 in every run: 1 - beta2^t loses digits in float32.
        count = torch.zeros((), dtype=torch.float64, device=parameter.device)
        return {
            "mean": torch.zeros_like(parameter),
            "square": torch.zeros_like(parameter),
            "step": count,
        }

    def rule(self, parameter: Tensor, grad: Tensor, slots: Slots) -> tuple[Tensor, Slots]:
        step = slots["step"] + 1
        mean = torch.lerp(slots["mean"], grad, 1 - self.beta1)
        square = torch.addcmul(self.beta2 * slots["square"], grad, grad, value=1 - self.beta2)
        bias1 = (1 - self.beta1**step).to(parameter.dtype)
        bias2 = torch.sqrt(1 - self.beta2**step).to(parameter.dtype)
        change = (
            (self.lr / bias1)
            * mean
            / (torch.sqrt(square.clamp(min=torch.finfo(square.dtype).tiny)) / bias2 + self.eps)
        )
        return parameter - change, {"mean": mean, "square": square, "step": step}


Drift = Literal["none", "inputs", "features", "exact"]
"""How ||dx|| is known: not at all, from means of inputs or features, or from the dynamics."""


@dataclass(frozen=True, kw_only=True)
class Theorem(Optimiser):
    """The step size of Theorem 1 and equation 4, alpha(k) in place of a learning rate.

    alpha = (1 - ||J_x|| ||dx||) / (beta ||J_theta||^2 + eps), the norm over all parameters that
    step together. lr is the largest alpha, since equation 4 asks for one at most so large: without
    it, a vanishing gradient makes alpha enormous.

    form: "J_theta", equation 4, theta - alpha J_theta; "V_theta", the theorem's own update, theta +
    alpha V_theta with V_theta = -J J_theta: Polyak's step times (1 - ||J_x|| ||dx||) / beta.
    drift: which ||J_x|| ||dx|| it is; the runner measures it before each phase and every 50 updates
    (`step_size`). A fresh state, as inner updates of a method start with, has none.
    otherwise: where 1 - ||J_x|| ||dx|| <= 0 the theorem does not apply; "ignore" steps as if dx
    were 0, which section 3.1 does for all practical purposes, "stay" does not step.
    """

    beta: Rate = 1000.0
    eps: Rate = 1e-8
    form: Literal["J_theta", "V_theta"] = "J_theta"
    drift: Drift = "inputs"
    otherwise: Literal["ignore", "stay"] = "ignore"

    def slots(self, parameter: Tensor) -> Slots:
        return {"drift": parameter.new_zeros(())}

    def rule(self, parameter: Tensor, grad: Tensor, slots: Slots) -> tuple[Tensor, Slots]:
        raise NotImplementedError  # it has no meaning for one parameter alone

    def step(
        self, theta: Any, grads: Any, state: Any, cost: Tensor | None = None
    ) -> tuple[Any, Any]:
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

    def alpha(self, square: Tensor, drift: Tensor) -> Tensor:
        """alpha before its bound lr. square: ||J_theta||^2. drift: ||J_x|| ||dx||; both scalars."""
        room = 1 - drift
        instead = 1.0 if self.otherwise == "ignore" else 0.0
        return torch.where(room > 0, room, instead) / (self.beta * square + self.eps)

    @staticmethod
    def informed(state: Any, drift: Tensor) -> Any:
        """The optimiser state of all replicas, told ||J_x|| ||dx||. drift: (replicas,)."""
        return tree_map(lambda leaf: drift.to(leaf.dtype).clone(), state)


OPTIMISERS: Mapping[str, type[Optimiser]] = {
    "adagrad": Adagrad,
    "sgd": SGD,
    "adam": Adam,
    "theorem": Theorem,
}


def build(setting: str | Mapping[str, Any], lr: float) -> Optimiser:
    """The optimiser of a setting: a name, or a table of a name and its options.

    >>> build({"name": "sgd", "momentum": 0.9}, lr=0.1)
    SGD(lr=0.1, momentum=0.9)
    """
    table = {"name": setting} if isinstance(setting, str) else dict(setting)
    name = table.pop("name", None)
    if not isinstance(name, str):
        raise SpecError("optimiser needs a name, as in optimiser = 'adagrad'.")
    if name not in OPTIMISERS:
        raise unknown("optimiser", name, OPTIMISERS, f"There are: {', '.join(OPTIMISERS)}.")
    if "lr" in table:
        raise SpecError("The learning rate is lr, beside optimiser and not inside it.")
    return OPTIMISERS[name].from_table({"lr": lr, **table}, f"optimiser '{name}'")
