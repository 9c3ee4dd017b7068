"""Anytime accuracy: the accuracy on all tasks seen, averaged along the stream."""

import numpy as np

from dpmcl.core.errors import Errors
from dpmcl.metrics.cme import cme
from dpmcl.metrics.cme_micro import cme_micro


def anytime_accuracy(errors: Errors, micro: bool = False) -> np.ndarray:
    """Return the accuracy on all tasks seen so far, averaged over the moments after each task.

    Also called average incremental accuracy (Rebuffi et al., 2017). Meant for classification.

    Args:
        errors: Errors on test rows.
        micro: Whether the accuracy at a moment is the mean over test rows, where tasks have
            unequal numbers of them, in place of the macro mean over tasks.

    Returns:
        One value a replica, (replicas,); NaN where some task was not evaluated after another one
        (`evaluation.evaluate_every`).

    >>> e = np.array([[[9, 9], [0.0, 9], [0.2, 0.4]]])
    >>> float(anytime_accuracy(Errors((0,), e, np.array([[30, 10]])))[0].round(3))
    0.85
    >>> float(anytime_accuracy(Errors((0,), e, np.array([[30, 10]])), micro=True)[0].round(3))
    0.875
    """
    measure = cme_micro if micro else cme
    moments = [1 - measure(errors, after) for after in range(errors.tasks)]
    return np.asarray(np.stack(moments, 1).mean(1))


plugin = anytime_accuracy
