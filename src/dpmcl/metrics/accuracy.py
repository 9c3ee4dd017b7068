"""Average accuracy after the last task."""

import numpy as np

from dpmcl.core.errors import Errors
from dpmcl.metrics.cme import cme


def accuracy(errors: Errors) -> np.ndarray:
    """Return the average accuracy after the last task, macro mean over tasks: 1 - CME.

    It is meant for classification.

    Args:
        errors: Errors on test rows.

    Returns:
        One value for each replica, (replicas,).
    """
    return 1 - cme(errors)


plugin = accuracy
