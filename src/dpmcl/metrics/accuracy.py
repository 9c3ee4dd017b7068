"""Average accuracy after the last task."""

import numpy as np

from dpmcl.core.errors import Errors
from dpmcl.metrics.cme import cme


def accuracy(errors: Errors) -> np.ndarray:
    """Average accuracy after the last task, macro mean over tasks, 1 - CME: (replicas,).

    Meant for classification.
    """
    return 1 - cme(errors)


plugin = accuracy
