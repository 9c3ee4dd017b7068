"""The readings of a monitor: costs, terms of equation (3) and norms, along a run."""

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

    seeds: of each replica. places: (task, phase, update) of each reading, in order. values: float64
    (replicas, readings, quantities), `Reading`'s in order; NaN from where a replica was frozen, and
    for what was not watched.
    """

    seeds: tuple[int, ...]
    places: tuple[Place, ...]
    values: np.ndarray

    def __getitem__(self, name: str) -> np.ndarray:
        """One quantity: (replicas, readings)."""
        return np.asarray(self.values[:, :, Reading._fields.index(name)])

    @property
    def taken(self) -> np.ndarray:
        """Where there is a reading: bool (replicas, readings)."""
        return taken(self.values)

    @property
    def broken(self) -> dict[str, np.ndarray]:
        """Which conditions did not hold: bool (replicas, readings) each."""
        return broken(self.values)
