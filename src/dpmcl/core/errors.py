"""The error tensor: the error of the model on every task, after every task."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Errors:
    """Errors E[replica, after, task] on one split.

    An error is 1 - accuracy for classification, and the mean squared error for regression.

    Attributes:
        seeds: Seed of each replica.
        values: Errors, float64 (replicas, 1 + tasks, tasks): values[:, 0] before any training,
            values[:, 1 + k] after task k. NaN if not evaluated: see `evaluation.future` for future
            tasks and `evaluation.evaluate_every` for earlier ones.
        examples: Number of rows behind each error, int64 (replicas, tasks).
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
        """Number of tasks in the stream."""
        return int(self.values.shape[2])
