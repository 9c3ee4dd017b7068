"""The gradient of a cost, and the count of what gradients cost.

Methods take every gradient through `gradient`, so the engine can count, by tracing one update,
how many gradients it evaluates and how many rows it backpropagates: methods that take the same
number of updates do not do the same work (`docs/readings.md`, on the paper's "fair comparisons").
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor
from torch._functorch import pyfunctorch


@dataclass
class Work:
    """What was spent for one replica: gradients evaluated, rows backpropagated through g."""

    gradient_evaluations: int = 0
    rows_backpropagated: int = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def times(self, n: int) -> "Work":
        """Return the work of n such updates."""
        return Work(*(a * n for a in astuple(self)))


_tally: ContextVar[Work | None] = ContextVar("dpmcl_work", default=None)
_inside: ContextVar[bool] = ContextVar("dpmcl_inside_gradient", default=False)


@contextmanager
def counting() -> Iterator[Work]:
    """Counts the gradients taken in the block."""
    work = Work()
    token = _tally.set(work)
    try:
        yield work
    finally:
        _tally.reset(token)


def count_rows(n: int) -> None:
    """Called where rows turn into losses: counts them if a gradient is being taken.

    Within torch.func.vmap (per-row gradients) they count once for each call that is mapped, as in
    a loop.
    """
    work = _tally.get()
    if work is not None and _inside.get():
        work.rows_backpropagated += n * _calls_mapped()


def _calls_mapped() -> int:
    """Return how many calls torch.func.vmap makes in one here; torch has no public way to it."""
    levels = pyfunctorch.retrieve_all_functorch_interpreters()
    return math.prod(
        level.batch_size() for level in levels if isinstance(level, pyfunctorch.VmapInterpreter)
    )


def gradient(
    cost: Callable[..., Tensor], argnums: int | tuple[int, ...] = 0
) -> Callable[..., tuple[Any, Tensor]]:
    """A function that returns (gradient, value) of a scalar cost; one gradient evaluation.

    The gradient has the shape of the argument at `argnums` (a tree of tensors), or is a tuple of
    such trees.

    >>> gradient(lambda a: (a**2).sum())(torch.tensor([1.0, 3.0]))
    (tensor([2., 6.]), tensor(10.))
    """
    inner = torch.func.grad_and_value(cost, argnums=argnums)

    def counted(*args: Any) -> tuple[Any, Tensor]:
        work = _tally.get()
        if work is not None:
            work.gradient_evaluations += 1
        token = _inside.set(True)
        try:
            grads, value = inner(*args)
        finally:
            _inside.reset(token)
        return grads, value

    return counted
