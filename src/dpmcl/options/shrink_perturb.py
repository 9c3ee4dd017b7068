"""Shrink and perturb: before each task the weights are shrunk, and noise is added."""

from dataclasses import dataclass

from torch import Tensor

from dpmcl.core import keys
from dpmcl.core.model import Theta
from dpmcl.core.settings import NonNegativeFloat, UnitInterval
from dpmcl.core.tree import leaves, rebuilt
from dpmcl.options._option import Option


@dataclass(frozen=True, kw_only=True)
class ShrinkPerturb(Option):
    """Shrink and perturb: at each task theta <- shrink theta + noise e, e standard normal.

    Source: Ash and Adams, "On warm-starting neural network training", 2020, who do it when new
    data arrive. For the variants that shrink in each step, without their noise, use `weight_decay`.

    Deviations: the first task begins with it too. The noise has the same size for all weights,
    however they were initialised.
    """

    shrink: UnitInterval = 0.6
    noise: NonNegativeFloat = 0.01

    def begin_task(self, theta: Theta, key: Tensor) -> Theta:
        moved = [
            self.shrink * leaf + self.noise * keys.normal(key, leaf.shape, lane).to(leaf)
            for lane, leaf in enumerate(leaves(theta))
        ]
        return rebuilt(theta, moved)


plugin = ShrinkPerturb
