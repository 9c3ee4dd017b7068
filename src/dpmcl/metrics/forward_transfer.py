"""Forward transfer (Lopez-Paz and Ranzato, 2017)."""

import numpy as np

from dpmcl.core.errors import Errors


def forward_transfer(errors: Errors) -> np.ndarray:
    """Forward transfer: how much earlier tasks lowered a task's error before it was learned.

    The macro mean over all tasks but the first of (error before any training - error just before
    its own training). Returns (replicas,); NaN for one task, and where future tasks were not
    evaluated (evaluation.future = true). Source: Lopez-Paz and Ranzato, 2017, in errors.
    """
    if errors.tasks == 1:
        return np.full(len(errors.seeds), np.nan)
    task = np.arange(1, errors.tasks)
    return np.asarray((errors.before[:, task] - errors.after[:, task - 1, task]).mean(1))


plugin = forward_transfer
