"""The discount that counts only a window of tasks."""

from dataclasses import dataclass

from torch import Tensor

from dpmcl.core.settings import Positive
from dpmcl.discounts._discount import Discount


@dataclass(frozen=True, kw_only=True)
class Window(Discount):
    """gamma(s) = 1 for s < width, else 0; by age, the window includes the newest task."""

    width: Positive = 10

    def weights(self, s: Tensor) -> Tensor:
        return (s < self.width).to(s.dtype)

    @property
    def total(self) -> float:
        return float(self.width)


plugin = Window
