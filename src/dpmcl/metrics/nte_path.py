"""NTE averaged over the tasks of the stream."""

import numpy as np

from dpmcl.core.errors import Errors


def nte_path(errors: Errors) -> np.ndarray:
    """Return the new task error, macro mean over all tasks.

    Args:
        errors: Errors on test rows.

    Returns:
        One value for each replica, (replicas,).
    """
    return np.asarray(np.diagonal(errors.after, axis1=1, axis2=2).mean(1))


plugin = nte_path
