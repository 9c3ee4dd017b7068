"""The readings of a monitor along a run: costs, terms of equation (3) and norms."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpmcl.theory.stability import Reading, broken, taken

Watched = Literal["terms", "stability"]
Place = tuple[int, int, int]
"""Task, phase, update of the phase, all from 0: a reading is taken before that update."""


@dataclass(frozen=True, eq=False)
class Readings:
    """The readings of one method.

    Attributes:
        seeds: Of each replica.
        places: (task, phase, update) of each reading, in order.
        values: Float64 (replicas, readings, quantities), in the order of `Reading`; NaN once a
            replica is frozen, and for quantities that were not watched.
    """

    seeds: tuple[int, ...]
    places: tuple[Place, ...]
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
