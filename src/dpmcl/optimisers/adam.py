"""Adam (Kingma and Ba, 2015)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dpmcl.core.settings import NonNegativeFloat, Share
from dpmcl.optimisers._optimiser import Optimiser, Slots


@dataclass(frozen=True, kw_only=True)
class Adam(Optimiser):
    """Adam with bias correction (Kingma and Ba, 2015)."""

    beta1: Share = 0.9
    beta2: Share = 0.999
    eps: NonNegativeFloat = 1e-8

    def slots(self, parameter: Tensor) -> Slots:
        # The step count is always float64, since 1 - beta2^t loses digits in float32.
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


plugin = Adam
