"""The exponential discount."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dpmcl.core.settings import Rate
from dpmcl.discounts._discount import Discount


@dataclass(frozen=True, kw_only=True)
class Exponential(Discount):
    """gamma(s) = exp(-rate s): the weight falls by a factor e every 1 / rate tasks.

    The setting is a rate, since equation (1) integrates over continuous time; for a factor f per
    task, use rate = -log(f).
    """

    rate: Rate = 0.1

    def weights(self, s: Tensor) -> Tensor:
        return torch.exp(-self.rate * s)

    @property
    def total(self) -> float:
        return -1 / math.expm1(-self.rate)


plugin = Exponential
