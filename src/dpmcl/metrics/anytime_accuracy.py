"""Anytime accuracy: the accuracy on all tasks seen so far, averaged along the stream."""

import numpy as np

from dpmcl.core.errors import Errors
from dpmcl.metrics.cme import cme
from dpmcl.metrics.cme_micro import cme_micro


def anytime_accuracy(errors: Errors, micro: bool = False) -> np.ndarray:
    """Return the accuracy on all tasks seen so far, taken after each task and averaged.

    It is also called average incremental accuracy (Rebuffi et al., 2017), and is meant for
    classification.

    Args:
        errors: Errors on test rows.
        micro: Whether the accuracy after a task is the micro mean over test rows in place of the
            macro mean over tasks; they differ if tasks have unequal numbers of test rows.

    Returns:
        One value for each replica, (replicas,); NaN if a task was not evaluated after a later one
        (`evaluation.evaluate_every`).

    >>> e = np.array([[[9, 9], [0.0, 9], [0.2, 0.4]]])
    >>> float(anytime_accuracy(Errors((0,), e, np.array([[30, 10]])))[0].round(3))
    0.85
    >>> float(anytime_accuracy(Errors((0,), e, np.array([[30, 10]])), micro=True)[0].round(3))
    0.875
    """
    measure = cme_micro if micro else cme
    accuracies = [1 - measure(errors, after) for after in range(errors.tasks)]
    return np.asarray(np.stack(accuracies, 1).mean(1))


plugin = anytime_accuracy
