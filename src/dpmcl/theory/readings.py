"""The readings that a monitor takes during a run: costs, terms of equation (3) and norms."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpmcl.theory.stability import CONDITIONS, Reading

Watched = Literal["terms", "stability"]


@dataclass(frozen=True, eq=False)
class Readings:
    """The readings of one method.

    Attributes:
        seeds: Seed of each replica.
        positions: Task, phase and update of the phase before which each reading was taken, all
            counted from 0, in order of time.
        values: Readings, float64 (replicas, readings, quantities), with the quantities in the order
            of `Reading`; NaN once a replica is frozen, and for quantities that are not monitored.
    """

    seeds: tuple[int, ...]
    positions: tuple[tuple[int, int, int], ...]
    values: np.ndarray

    def __getitem__(self, name: str) -> np.ndarray:
        """Return one quantity, (replicas, readings)."""
        return np.asarray(self.values[:, :, Reading._fields.index(name)])

    @property
    def taken(self) -> np.ndarray:
        """Return the mask of the readings that were taken, bool (replicas, readings)."""
        return np.asarray(~np.isnan(self["J_theta"]) | ~np.isnan(self["J"]))

    @property
    def broken(self) -> dict[str, np.ndarray]:
        """Return, for each condition, the mask of the readings at which it fails.

        Each mask is bool (replicas, readings).
        """
        with np.errstate(over="ignore"):
            return {name: each.broken(self) & self.taken for name, each in CONDITIONS.items()}
