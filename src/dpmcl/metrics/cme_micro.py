"""CME as a micro mean: over test rows instead of tasks."""

import numpy as np

from dpmcl.core.errors import Errors


def cme_micro(errors: Errors, after: int = -1) -> np.ndarray:
    """Return the cumulative error as a micro mean: over all test rows of the tasks seen.

    It equals `cme`, the macro mean of the paper, if all tasks have the same number of test rows.

    Args:
        errors: Errors on test rows.
        after: Number of the task after which the error is taken; -1 for the last task.

    Returns:
        One value for each replica, (replicas,).

    >>> e = np.array([[[9, 9], [9, 9], [0.2, 0.4]]])
    >>> float(cme_micro(Errors((0,), e, np.array([[30, 10]])))[0].round(3))
    0.25
    """
    seen = after % errors.tasks + 1
    rows = errors.examples[:, :seen]
    return np.asarray((errors.after[:, seen - 1, :seen] * rows).sum(1) / rows.sum(1))


plugin = cme_micro
