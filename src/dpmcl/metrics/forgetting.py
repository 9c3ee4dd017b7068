"""Forgetting (Chaudhry et al., 2018)."""

import numpy as np

from dpmcl.core.errors import Errors


def forgetting(errors: Errors) -> np.ndarray:
    """Return forgetting: how far errors on earlier tasks rose from their best, macro mean.

    For each task but the last, it is the error after the last task minus the lowest error among
    the evaluations from the task's own training to the last task but one.
    Source: Chaudhry et al., "Riemannian walk for incremental learning", 2018, here with errors.

    Args:
        errors: Errors on test rows.

    Returns:
        One value for each replica, (replicas,); NaN for a stream of one task.
    """
    last = errors.tasks - 1
    if last == 0:
        return np.full(len(errors.seeds), np.nan)
    rises = [
        errors.after[:, last, task] - np.fmin.reduce(errors.after[:, task:last, task], axis=1)
        for task in range(last)
    ]
    return np.asarray(np.stack(rises, 1).mean(1))


plugin = forgetting
