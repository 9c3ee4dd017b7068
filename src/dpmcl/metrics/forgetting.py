"""Forgetting (Chaudhry et al., 2018)."""

import numpy as np

from dpmcl.core.errors import Errors


def forgetting(errors: Errors) -> np.ndarray:
    """Return forgetting: how far errors on earlier tasks rose from their best, macro mean.

    For each task but the last: the error after the last task, minus the least error that it had
    from its own training until the last task but one, where it was evaluated.
    Source: Chaudhry et al., "Riemannian walk for incremental learning", 2018, in errors.

    Args:
        errors: Errors on test rows.

    Returns:
        One value a replica, (replicas,); NaN for one task.
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
