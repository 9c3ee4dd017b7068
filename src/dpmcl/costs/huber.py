"""The Huber loss (Huber, 1964)."""

from torch import Tensor
from torch.nn import functional


def huber(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the Huber loss of each row: squared error up to 1, and linear beyond, for regression.

    Source: Huber, "Robust estimation of a location parameter", 1964, with delta = 1.

    Args:
        outputs: Values (n, outputs).
        targets: Values (n, outputs).

    Returns:
        The mean over outputs, (n,).
    """
    return functional.huber_loss(outputs, targets, reduction="none").flatten(1).mean(1)


plugin = huber
