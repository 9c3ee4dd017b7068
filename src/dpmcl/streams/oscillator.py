"""A damped driven oscillator that grows stiffer with time."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from dpmcl.core.settings import NonNegativeFloat, Rate
from dpmcl.streams._dynamics import Array, DynamicsSettings, uniform


@dataclass(frozen=True, kw_only=True)
class Oscillator(DynamicsSettings):
    """A damped driven oscillator whose stiffness drifts: twenty tasks, each a window of time.

    The equation is q'' + 2 damping w q' + w^2 q = force cos(drive t), with
    w(t) = frequency exp(drift t). The drift doubles w within the twenty tasks, so that it passes
    the drive's frequency.

    Input (4,): q, q' / frequency, the force / frequency^2, and (w / frequency)^2, which
    observed = false leaves out. Target (2,): mean rates of change of q, divided by frequency, and
    of q', divided by frequency^2. At t = 0 the states (q, q' / frequency) are at most `spread`, in
    each coordinate, from a point of the unit circle that the replica draws.
    """

    equation: ClassVar[str] = "a driven oscillator"

    window: Rate = 1.0
    step: Rate = 0.1
    frequency: Rate = 1.0
    damping: NonNegativeFloat = 0.05
    drift: float = 0.035
    force: float = 0.5
    drive: NonNegativeFloat = 1.5
    spread: NonNegativeFloat = 0.5
    observed: bool = True

    def start(self, key: Tensor) -> Array:
        angle = math.pi * uniform(key, (1,), 0)
        centre = np.concatenate([np.cos(angle), np.sin(angle)])
        cloud = centre + self.spread * uniform(key, (self.trajectories, 2), 1)
        return cloud * [1.0, self.frequency]

    def rate(self, t: float, state: Array) -> Array:
        q, v = state[:, 0], state[:, 1]
        w = self.frequency * np.exp(self.drift * t)
        pull = self.force * np.cos(self.drive * t)
        return np.stack([v, pull - 2 * self.damping * w * v - w**2 * q], 1)

    def seen(self, t: Array, state: Array) -> Array:
        inputs = [self.force * np.cos(self.drive * t) / self.frequency**2]
        if self.observed:
            inputs.append(np.exp(2 * self.drift * t))
        shared = np.stack(inputs, 1)[:, None].repeat(state.shape[1], axis=1)
        return np.concatenate([state / [1.0, self.frequency], shared], 2)

    def unit(self) -> Array:
        return np.array([self.frequency, self.frequency**2])


plugin = Oscillator
