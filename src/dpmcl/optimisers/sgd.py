"""Gradient descent, with or without momentum."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dpmcl.core.settings import Share
from dpmcl.optimisers._optimiser import Optimiser, Slots


@dataclass(frozen=True, kw_only=True)
class SGD(Optimiser):
    """Gradient descent: theta - lr g; with momentum m, theta - lr b with b <- m b + g."""

    momentum: Share = 0.0

    def slots(self, parameter: Tensor) -> Slots:
        return {"momentum": torch.zeros_like(parameter)} if self.momentum else {}

    def rule(self, parameter: Tensor, grad: Tensor, slots: Slots) -> tuple[Tensor, Slots]:
        if not self.momentum:
            return parameter - self.lr * grad, {}
        buffer = self.momentum * slots["momentum"] + grad
        return parameter - self.lr * buffer, {"momentum": buffer}


plugin = SGD
