"""CME, the cumulative error (section 4)."""

import numpy as np

from dpmcl.core.errors import Errors


def cme(errors: Errors, after: int = -1, include_new: bool = True) -> np.ndarray:
    """Cumulative error: the macro mean of the errors of the tasks seen, after the last task.

    Each task counts the same, however many test rows it has; `cme_micro` is the mean over rows.
    after: a task number, -1 for the last. include_new: whether the newest task counts; the paper's
    words ("all the previous tasks") allow both, its figures speak for counting it.
    Returns (replicas,); NaN at the first task without the new one. Source: section 4, Table 1.

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
