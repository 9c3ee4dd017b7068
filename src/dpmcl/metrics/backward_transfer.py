"""Backward transfer (Lopez-Paz and Ranzato, 2017)."""

import numpy as np

from dpmcl.core.errors import Errors


def backward_transfer(errors: Errors) -> np.ndarray:
    """Backward transfer: how much later tasks lowered the old tasks' errors; below 0 is forgetting.

    The macro mean over all tasks but the last of (error just after learning it - error at the end).
    Returns (replicas,); NaN for one task. Source: Lopez-Paz and Ranzato, "Gradient episodic memory
    for continual learning", 2017, in errors.
    """
    last = errors.tasks - 1
    if last == 0:
        return np.full(len(errors.seeds), np.nan)
    own = np.diagonal(errors.after, axis1=1, axis2=2)[:, :last]
    return np.asarray((own - errors.after[:, last, :last]).mean(1))


plugin = backward_transfer
