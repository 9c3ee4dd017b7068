"""The readings of a monitor along a run: costs, terms of equation (3) and norms."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpmcl.theory.stability import Reading, broken, taken

Watched = Literal["terms", "stability"]


@dataclass(frozen=True, eq=False)
class Readings:
    """The readings of one method.

    Attributes:
        seeds: Of each replica.
        positions: Task, phase and update of the phase, all from 0, before which each reading is
            taken, in order.
        values: Float64 (replicas, readings, quantities), in the order of `Reading`; NaN once a
            replica is frozen, and for quantities that were not watched.
    """

    seeds: tuple[int, ...]
    positions: tuple[tuple[int, int, int], ...]
    values: np.ndarray

    def __getitem__(self, name: str) -> np.ndarray:
        """Return one quantity, (replicas, readings)."""
        return np.asarray(self.values[:, :, Reading._fields.index(name)])

    @property
    def taken(self) -> np.ndarray:
        """Return which readings were taken, bool (replicas, readings)."""
        return taken(self.values)

    @property
    def broken(self) -> dict[str, np.ndarray]:
        """Return at which readings each condition fails, bool (replicas, readings)."""
        return broken(self.values)
