"""The power-law discount."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dpmcl.discounts._discount import Discount


@dataclass(frozen=True, kw_only=True)
class Power(Discount):
    """gamma(s) = (1 + s)^-p: its sum is finite for p > 1; constant for p = 0, growing for p < 0."""

    p: float = 2.0

    def weights(self, s: Tensor) -> Tensor:
        return (1 + s) ** -self.p

    @property
    def total(self) -> float:
        if self.p <= 1:
            return math.inf
        p = torch.tensor(self.p, dtype=torch.float64)
        return float(torch.special.zeta(p, torch.ones_like(p)))


plugin = Power
