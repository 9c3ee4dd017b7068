"""The gradient of a cost, and the count of what gradients cost.

Methods take every gradient through `gradient`, so the engine can count, by tracing one update,
how many gradients it evaluates and how many rows it backpropagates (`readings.md` of the paper's
"fair comparison": equal updates are not equal work).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class Work:
    """What was spent for one replica: gradients evaluated, rows backpropagated through g."""

    gradient_evaluations: int = 0
    rows_backpropagated: int = 0


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


def count_rows(outputs: Tensor) -> None:
    """Count the rows of outputs (n, ...), which become losses, if a gradient is being taken.

    Under a vmap that began within the count (per-row gradients) all rows that are mapped count.
    """
    work = _tally.get()
    if work is not None and _inside.get():
        work.rows_backpropagated += outputs.shape[0] * _mapped(outputs)


def _mapped(visible: Tensor) -> int:
    """Return how many tensors of this shape torch.func.vmap works on at once; 1 outside of it.

    Only the wrapped tensor knows, and torch offers no public way to it.
    """
    functorch, whole = torch._C._functorch, visible
    while functorch.is_functorch_wrapped_tensor(whole):
        whole = functorch.get_unwrapped(whole)
    return whole.numel() // max(visible.numel(), 1)


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
