"""The error tensor: what the model gets wrong on every task, after every task."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Errors:
    """E[replica, after, task] on one split.

    seeds: the seed of each replica. values: float64 (replicas, 1 + tasks, tasks); values[:, 0] is
    before any training (after = -1), values[:, 1 + k] after task k; NaN where not evaluated:
    future tasks, and where evaluation was thinned out all tasks but the newest.
    examples: int64 (replicas, tasks), rows behind each value.
    A value is 1 - accuracy for classes, the mean squared error for regression.
    """

    seeds: tuple[int, ...]
    values: np.ndarray
    examples: np.ndarray

    @property
    def before(self) -> np.ndarray:
        """Errors before any training: (replicas, tasks)."""
        return self.values[:, 0]

    @property
    def after(self) -> np.ndarray:
        """Errors after each task: (replicas, tasks, tasks), [replica, after, task]."""
        return self.values[:, 1:]

    @property
    def tasks(self) -> int:
        """Tasks in the stream."""
        return int(self.values.shape[2])
