"""Forward transfer (Lopez-Paz and Ranzato, 2017)."""

import numpy as np

from dpmcl.core.errors import Errors


def forward_transfer(errors: Errors) -> np.ndarray:
    """Return forward transfer: how much earlier tasks lowered an error before it was trained on.

    It is the macro mean, over all tasks but the first, of (error before any training - error just
    before the task's own training). Source: Lopez-Paz and Ranzato, 2017, here with errors.

    Args:
        errors: Errors on test rows, including those on future tasks (evaluation.future = true).

    Returns:
        One value for each replica, (replicas,); NaN for a stream of one task, or without errors on
        future tasks.
    """
    if errors.tasks == 1:
        return np.full(len(errors.seeds), np.nan)
    task = np.arange(1, errors.tasks)
    return np.asarray((errors.before[:, task] - errors.after[:, task - 1, task]).mean(1))


plugin = forward_transfer
