"""Logits among which only some classes compete."""

import torch
from torch import Tensor


def among(logits: Tensor, classes: Tensor) -> Tensor:
    """Return logits in which all but some classes have the least number of the type.

    Not minus infinity: the loss of an absent row stays a number, and its weight is 0.

    Args:
        logits: (n, classes).
        classes: Those that compete, bool (classes,) or (n, classes).
    """
    return torch.where(classes, logits, torch.finfo(logits.dtype).min)
