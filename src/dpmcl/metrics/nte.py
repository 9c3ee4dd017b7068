"""NTE, the new task error (section 4)."""

import numpy as np

from dpmcl.core.errors import Errors


def nte(errors: Errors, after: int = -1) -> np.ndarray:
    """Return the new task error: the error on the newest task, just after it was learned.

    Source: section 4, Table 1.

    Args:
        errors: Errors on test rows.
        after: Number of the newest task; -1 for the last task of the stream.

    Returns:
        One value for each replica, (replicas,).
    """
    after = after % errors.tasks
    return np.asarray(errors.after[:, after, after])


plugin = nte
