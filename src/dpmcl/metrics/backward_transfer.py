"""Backward transfer (Lopez-Paz and Ranzato, 2017)."""

import numpy as np

from dpmcl.core.errors import Errors


def backward_transfer(errors: Errors) -> np.ndarray:
    """Return backward transfer: how much later tasks lowered the errors on earlier ones.

    It is the macro mean, over all tasks but the last, of (error just after learning the task -
    error at the end); values below 0 are forgetting. Source: Lopez-Paz and Ranzato, "Gradient
    episodic memory for continual learning", 2017, here with errors.

    Args:
        errors: Errors on test rows.

    Returns:
        One value for each replica, (replicas,); NaN for a stream of one task.
    """
    last = errors.tasks - 1
    if last == 0:
        return np.full(len(errors.seeds), np.nan)
    learned = np.diagonal(errors.after, axis1=1, axis2=2)[:, :last]
    return np.asarray((learned - errors.after[:, last, :last]).mean(1))


plugin = backward_transfer
