"""Average accuracy after the last task as a micro mean: over test rows instead of tasks."""

import numpy as np

from dpmcl.core.errors import Errors
from dpmcl.metrics.cme_micro import cme_micro


def accuracy_micro(errors: Errors) -> np.ndarray:
    """Return the accuracy after the last task, micro mean over test rows: 1 - the micro CME.

    It is meant for classification.

    Args:
        errors: Errors on test rows.

    Returns:
        One value for each replica, (replicas,).
    """
    return 1 - cme_micro(errors)


plugin = accuracy_micro
