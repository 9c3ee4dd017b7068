"""Forgetting (Chaudhry et al., 2018)."""

import numpy as np

from dpmcl.core.errors import Errors


def forgetting(errors: Errors) -> np.ndarray:
    """Forgetting: how far the old tasks' errors rose from their best, macro mean over tasks.

    For each task but the last: error after the last task, minus the least error that it ever had
    from its own training until the last task but one, where it was evaluated. Returns (replicas,);
    NaN for one task.
    Source: Chaudhry et al., "Riemannian walk for incremental learning", 2018, in errors.
    """
    last = errors.tasks - 1
    if last == 0:
        return np.full(len(errors.seeds), np.nan)
    with np.errstate(invalid="ignore"):  # infinite errors of a replica that diverged
        rises = [
            errors.after[:, last, task] - np.fmin.reduce(errors.after[:, task:last, task], axis=1)
            for task in range(last)
        ]
    return np.asarray(np.stack(rises, 1).mean(1))


plugin = forgetting
