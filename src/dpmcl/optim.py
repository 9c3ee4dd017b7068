"""Optimisers as pure, differentiable rules that agree with torch.optim step for step.

A rule takes trees and returns trees: `state = rule.init(theta)`, then
`theta, state = rule.step(theta, gradient, state)`. The state has the shape of theta, with a dict of
slots at each leaf, so a part of theta is stepped with the same part of the state.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import annotated_types as at
import torch
from torch import Tensor

from dpmcl.exceptions import SpecError, unknown
from dpmcl.settings import Rate, Settings, Share
from dpmcl.tree import tree_map

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

    def step(self, theta: Any, grads: Any, state: Any) -> tuple[Any, Any]:
        """One step of a tree of parameters: (theta, state)."""

        if isinstance(theta, dict):
            pairs = {k: self.step(v, grads[k], state[k]) for k, v in theta.items()}
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


OPTIMISERS: Mapping[str, type[Optimiser]] = {"adagrad": Adagrad, "sgd": SGD, "adam": Adam}


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
