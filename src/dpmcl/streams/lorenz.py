"""The Lorenz system: a cloud of points that moves along a chaotic attractor."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import annotated_types as at
import numpy as np
from torch import Tensor

from dpmcl.core.settings import Rate
from dpmcl.streams._dynamics import Array, DynamicsSettings, integrate, uniform

TRANSIENT = 5.0
"""Time before t = 0 in which a random point reaches the attractor."""


@dataclass(frozen=True, kw_only=True)
class Lorenz(DynamicsSettings):
    """A cloud of points on the Lorenz attractor: twenty tasks, each a window of time.

    x' = sigma (y - x), y' = x (rho - z) - y, z' = x y - beta z (Lorenz, 1963).

    Input (3,): x, y and z - (rho - 1), in units of sqrt(beta (rho - 1)), the distance of the two
    fixed points from x = 0. Target (3,): their mean rates of change, in that unit times sigma.
    At t = 0 the points are at most `radius`, in each coordinate, from a point of the attractor that
    the replica draws. Chaos makes the cloud grow about e-fold per unit of time.
    """

    equation: ClassVar[str] = "the Lorenz system"

    window: Rate = 0.1
    step: Rate = 0.02
    sigma: Rate = 10.0
    rho: Annotated[float, at.Gt(1)] = 28.0
    beta: Rate = 8 / 3
    radius: Annotated[float, at.Ge(0)] = 1.0

    @property
    def length(self) -> float:
        """Unit of length, sqrt(beta (rho - 1))."""
        return float(np.sqrt(self.beta * (self.rho - 1)))

    def start(self, key: Tensor) -> Array:
        anywhere = self.length * uniform(key, (1, 3), 0) + [0.0, 0.0, self.rho - 1]
        point = integrate(self.rate, anywhere, np.array([TRANSIENT]), 1.0)[0]
        cloud: Array = point + self.radius * uniform(key, (self.trajectories, 3), 1)
        return cloud

    def rate(self, t: float, state: Array) -> Array:
        x, y, z = state.T
        return np.stack(
            [self.sigma * (y - x), x * (self.rho - z) - y, x * y - self.beta * z], axis=1
        )

    def seen(self, t: Array, state: Array) -> Array:
        seen: Array = (state - [0.0, 0.0, self.rho - 1]) / self.length
        return seen

    def unit(self) -> Array:
        return np.array(self.sigma * self.length)


plugin = Lorenz
