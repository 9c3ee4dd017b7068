"""Viscous Burgers' equation by the method of lines; without advection, the heat equation."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import annotated_types as at
import numpy as np
from torch import Tensor

from dpmcl.core.settings import Rate
from dpmcl.streams._dynamics import Array, DynamicsSettings, uniform

MODES = 3
"""Number of waves in an initial field, with 1, 2 and 3 periods on the circle."""


@dataclass(frozen=True, kw_only=True)
class Burgers(DynamicsSettings):
    """Fields of viscous Burgers' equation on a circle: twenty tasks, each a window of time.

    The equation is u_t + advection u u_x = viscosity u_xx, at `points` values of x in [0, 2 pi). It
    uses central differences, with (u^2 / 2)_x for u u_x. advection = 0 gives the heat equation.
    Points are 2 pi / points apart; if u times that is well above 2 viscosity, fields get ripples.
    The integrator is explicit, so the time to build the stream grows with viscosity points^2.

    Input (points,): u. Target (points,): its mean rate of change. Both are of order one without
    scaling. At t = 0 a field is 1 + a + b; the 1 carries it round the circle. Each replica draws
    one a, and each trajectory its own b, `spread` times as large. Each is a sum of three waves with
    k = 1, 2, 3 periods on the circle, uniform phases, and amplitudes from 1 / (2 k) to 1 / k.
    """

    equation: ClassVar[str] = "viscous Burgers' equation"

    window: Rate = 0.2
    step: Rate = 0.05
    points: Annotated[int, at.Ge(4)] = 32
    viscosity: Annotated[float, at.Ge(0)] = 0.2
    advection: float = 1.0
    spread: Annotated[float, at.Ge(0)] = 0.5

    def start(self, key: Tensor) -> Array:
        shared, each = self._waves(key, 1, 0), self._waves(key, self.trajectories, 1)
        field: Array = 1 + shared + self.spread * each
        return field

    def _waves(self, key: Tensor, fields: int, lane: int) -> Array:
        """Return sums of waves, (fields, points)."""
        size, phase = uniform(key, (2, fields, MODES, 1), lane)
        k = np.arange(1, MODES + 1)[:, None]
        x = 2 * math.pi * np.arange(self.points) / self.points
        waves: Array = ((3 + size) / 4 / k * np.cos(k * x + math.pi * phase)).sum(1)
        return waves

    def rate(self, t: float, state: Array) -> Array:
        space = 2 * math.pi / self.points
        left, right = np.roll(state, 1, 1), np.roll(state, -1, 1)
        diffusion = self.viscosity * (right - 2 * state + left) / space**2
        change: Array = diffusion - self.advection * (right**2 - left**2) / (4 * space)
        return change

    def seen(self, t: Array, state: Array) -> Array:
        return state

    def unit(self) -> Array:
        return np.array(1.0)


plugin = Burgers
