"""Adagrad (Duchi et al., 2011), the paper's optimiser."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dpmcl.core.settings import NonNegativeFloat
from dpmcl.optimisers._optimiser import Optimiser, Slots


@dataclass(frozen=True, kw_only=True)
class Adagrad(Optimiser):
    """The paper's optimiser (appendix B.3): theta - lr g / (sqrt(sum of g^2) + eps).

    With an initial accumulator of 0, the first step is lr times the sign of the gradient.
    """

    eps: NonNegativeFloat = 1e-10
    initial_accumulator: NonNegativeFloat = 0.0

    def slots(self, parameter: Tensor) -> Slots:
        # Not 0, where the infinite derivative of the root times a dead unit's gradient 0 is NaN.
        smallest = torch.finfo(parameter.dtype).tiny
        return {"sum": torch.full_like(parameter, max(self.initial_accumulator, smallest))}

    def rule(self, parameter: Tensor, grad: Tensor, slots: Slots) -> tuple[Tensor, Slots]:
        total = torch.addcmul(slots["sum"], grad, grad)
        scale = torch.sqrt(total) + self.eps
        return torch.addcdiv(parameter, grad, scale, value=-self.lr), {"sum": total}


plugin = Adagrad
