"""NTE averaged along the path."""

import numpy as np

from dpmcl.core.errors import Errors


def nte_path(errors: Errors) -> np.ndarray:
    """New task error, macro mean over all tasks of the path: (replicas,)."""
    return np.asarray(np.diagonal(errors.after, axis1=1, axis2=2).mean(1))


plugin = nte_path
