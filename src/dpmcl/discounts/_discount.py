"""The interface of a discount gamma, the weight of each task's loss in J (equation (1)).

By age, the weight of a task is gamma(t - tau) and changes as newer tasks arrive, as the paragraph
after Corollary 1 asks for. By time, it is gamma(tau) and never changes, as Lemma 1 is written; then
a decreasing gamma gives the oldest tasks the largest weights. The paper names no gamma for its
experiments; the default is 1 (`constant`).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dpmcl.core.settings import Settings
from dpmcl.core.threads import threads
from dpmcl.exceptions import SpecError, reason, shown

TASKS = 100_000
"""Number of tasks on which the weights of a discount are checked."""


@dataclass(frozen=True, kw_only=True)
class Discount(Settings, ABC):
    """Weights gamma(s) of tasks.

    Args:
        by: "age" for s = newest task - task; "time" for s = task, counted from 0.

    Raises:
        SpecError: For s = 0 .. 99,999, a weight is negative or not finite, all weights are 0, or
            one depends on more than its own s; or `total` is less than the sum of these weights.
    """

    by: Literal["age", "time"] = "age"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check()

    @abstractmethod
    def weights(self, s: Tensor) -> Tensor:
        """Return gamma(s), where each weight depends only on its own s.

        Args:
            s: Ages or times, float64 of any shape, at least 0.

        Returns:
            Weights of the shape of s, finite and at least 0.
        """

    @property
    def total(self) -> float | None:
        """Sum of gamma(s) over s = 0, 1, 2, ...; inf if it diverges, None if it is not known."""
        return None

    @threads(1)
    def first_weights(self) -> Tensor:
        """Return gamma(s) for s = 0 .. 99,999, float64."""
        weights = self.weights(torch.arange(TASKS, dtype=torch.float64))
        return weights.to(torch.float64).detach()

    @threads(1)
    def _check(self) -> None:
        """Raise SpecError unless the weights are valid and each depends only on its own s."""
        s = torch.arange(TASKS, dtype=torch.float64)
        try:
            weights = self.first_weights()
            alone = torch.func.vmap(self.weights)(s).to(torch.float64)
            if weights.shape != s.shape or alone.shape != s.shape:
                raise ValueError(f"of shape {tuple(weights.shape)} for s of shape ({TASKS},)")
        except Exception as error:
            raise SpecError(
                "weights(s) must return a tensor of the shape of s, under torch.func.vmap too; "
                f"it failed for s = 0 .. {TASKS - 1}: {reason(error)}."
            ) from None
        usable = weights.isfinite() & (weights >= 0)
        if not (usable.all() and weights.any()):
            first = int(usable.int().argmin())
            raise SpecError(
                "weights(s) must be finite, at least 0 and not all 0, got "
                f"{float(weights[first]):g} at s = {first}; they are checked up to s = {TASKS - 1}."
            )
        if not torch.allclose(weights, alone, rtol=1e-6, atol=1e-30):
            raise SpecError(
                "weights(s) must make each weight from its own s alone, got others when all of s "
                "is given at once; leave out sums over s, as in w / w.sum()."
            )
        total, least = self.total, float(weights.sum())
        if total is not None and not total >= least * (1 - 1e-6):
            raise SpecError(
                f"total must be the sum of all weights, which is at least {least:.6g}, got "
                f"{shown(total)}; return None if you do not know it."
            )


def gamma(discount: Discount, now: Tensor | int, task: Tensor) -> Tensor:
    """Return the weights of tasks while task `now` is the newest; 0 for future tasks.

    Args:
        discount: Weights as a function of age or time.
        now: Number of the newest task, counted from 0; broadcasts with `task`.
        task: Numbers of the tasks, int64.

    Returns:
        Weights, float64, of the shape to which `now` and `task` broadcast.

    >>> from dpmcl.discounts.window import Window
    >>> gamma(Window(width=2), 3, torch.arange(5)).tolist()
    [0.0, 0.0, 1.0, 1.0, 0.0]
    """
    s = now - task if discount.by == "age" else task
    s = s.clamp(min=0).to(torch.float64)
    return discount.weights(s).to(torch.float64) * (task <= now)
