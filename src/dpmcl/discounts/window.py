"""The discount that counts a window of tasks and no others."""

from dataclasses import dataclass

from torch import Tensor

from dpmcl.core.settings import Positive
from dpmcl.discounts._discount import Discount


@dataclass(frozen=True, kw_only=True)
class Window(Discount):
    """gamma(s) = 1 for s < width, else 0; by age, the newest task is one of the width."""

    width: Positive = 10

    def weights(self, s: Tensor) -> Tensor:
        return (s < self.width).to(s.dtype)

    @property
    def total(self) -> float:
        return float(self.width)


plugin = Window
