"""CME, the cumulative error (section 4)."""

import numpy as np

from dpmcl.core.errors import Errors


def cme(errors: Errors, after: int = -1, include_new: bool = True) -> np.ndarray:
    """Return the cumulative error: the macro mean over the tasks seen, after the last task.

    Each task counts the same, whatever its number of test rows; `cme_micro` is the mean over rows.
    Source: section 4, Table 1.

    Args:
        errors: Errors on test rows.
        after: Number of the task after which the error is taken; -1 for the last task.
        include_new: Whether the newest task counts. The paper's words ("all the previous tasks")
            allow both; its figures suggest that it counts.

    Returns:
        One value for each replica, (replicas,); NaN after the first task if `include_new` is False.

    >>> e = np.array([[[9, 9], [9, 9], [0.2, 0.4]]])
    >>> float(cme(Errors((0,), e, np.ones((1, 2))))[0].round(3))
    0.3
    """
    after = after % errors.tasks
    seen = errors.after[:, after, : after + (1 if include_new else 0)]
    if seen.shape[1] == 0:
        return np.full(len(errors.seeds), np.nan)
    return np.asarray(seen.mean(1))


plugin = cme
