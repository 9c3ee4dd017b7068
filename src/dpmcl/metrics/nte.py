"""NTE, the new task error (section 4)."""

import numpy as np

from dpmcl.core.errors import Errors


def nte(errors: Errors, after: int = -1) -> np.ndarray:
    """New task error: the error on the newest task, just after it was learned.

    after: a task number, -1 for the last. Returns (replicas,). Source: section 4, Table 1.
    """
    after = after % errors.tasks
    return np.asarray(errors.after[:, after, after])


plugin = nte
