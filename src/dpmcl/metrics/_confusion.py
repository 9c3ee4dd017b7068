"""The confusion matrix of test predictions."""

from collections.abc import Mapping

import numpy as np


def confusion(predictions: Mapping[str, np.ndarray], classes: int) -> np.ndarray:
    """Return the confusion matrix of each replica, from the predictions that a run kept.

    Args:
        predictions: Predicted classes "test" and true classes "test.target", each (replicas, rows),
            as in `Record.predictions`.
        classes: Number of classes.

    Returns:
        Counts of test rows, int64 (replicas, classes, classes): [replica, true, predicted].

    >>> confusion({"test": np.array([[1, 1, 0]]), "test.target": np.array([[0, 1, 0]])}, 2).tolist()
    [[[1, 1], [0, 1]]]
    """
    predicted, target = predictions["test"], predictions["test.target"]
    replica = np.broadcast_to(np.arange(len(predicted))[:, None], predicted.shape)
    out = np.zeros((len(predicted), classes, classes), dtype=np.int64)
    np.add.at(out, (replica, target, predicted), 1)
    return out
