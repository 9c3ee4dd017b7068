"""The gradient of a cost, and counters of the work that updates do.

Methods take every gradient through `gradient`. So one extra update, run only to be counted, shows
how many gradients a method evaluates and how many rows go through which part of the network.
Methods that take the same number of updates do not do the same work (`docs/reading-the-paper.md`,
on the paper's "fair comparisons").
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import astuple, dataclass
from operator import add
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from dpmcl.core.not_public import TorchDispatchMode, pyfunctorch


@dataclass
class Work:
    """Work and memory of one replica's updates.

    Under torch.func.vmap, rows and FLOPs of all mapped calls are counted, as in a loop. Rows of
    weight 0 are computed as others are, so they count too: those drawn from a memory that is still
    empty, and those that fill up the last batch of a pass.

    Attributes:
        gradient_evaluations: Calls of functions that `gradient` returned.
        rows_backpropagated: Rows whose gradient went through the representation, so through the
            whole network.
        rows_head: Rows whose gradient went through the prediction alone, from fixed features, such
            as those of DPMCL's theta_B.
        rows_forward: Rows that went through the representation without a gradient.
        flops: Floating-point operations of matrix products, convolutions and attention, forward
            and backward, as torch.utils.flop_counter counts them: two for each multiplication and
            addition. Element-wise operations and optimisers do not count.
        memory_bytes: Bytes of the rows in the replica's memories at the end; of all rows of the
            tasks seen for a method that draws from them.
        notes_bytes: Bytes of the notes kept with these rows.
        copies_bytes: Bytes of other state of the method, such as copies of weights; the network
            and the optimiser's state do not count.
        rows_ahead: Rows of the next task that updates drew (`Draw(moved="exact")`).
    """

    gradient_evaluations: int = 0
    rows_backpropagated: int = 0
    rows_head: int = 0
    rows_forward: int = 0
    flops: int = 0
    memory_bytes: int = 0
    notes_bytes: int = 0
    copies_bytes: int = 0
    rows_ahead: int = 0

    def __add__(self, other: "Work") -> "Work":
        """Return the sum of two amounts of work."""
        return Work(*map(add, astuple(self), astuple(other)))

    def times(self, n: int) -> "Work":
        """Return n times this work.

        Args:
            n: Number of repetitions.
        """
        return Work(*(n * amount for amount in astuple(self)))


class _Flops(TorchDispatchMode):
    """Adds up the FLOPs of the operations in a block, by PyTorch's formulas."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.formulas = FlopCounterMode(display=False).flop_registry
        self.total = 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operation and count it."""
        kwargs = kwargs or {}
        out = operation(*args, **kwargs)
        formula = self.formulas.get(operation.overloadpacket)
        if formula is not None:
            self.total += int(formula(*args, **kwargs, out_val=out))
        return out


_tally: ContextVar[Counter[str] | None] = ContextVar("dpmcl_tally", default=None)


@contextmanager
def counting() -> Iterator[Work]:
    """Count the work of a block, and yield the result, which is filled in when the block ends."""
    work, tally = Work(), Counter[str]()
    token = _tally.set(tally)
    try:
        with _Flops() as flops:
            yield work
    finally:
        _tally.reset(token)
        work.gradient_evaluations = tally["gradients"]
        work.rows_backpropagated = tally["representation"]
        work.rows_head = max(0, tally["prediction"] - tally["representation"])
        work.rows_forward = tally["forward"]
        work.flops = flops.total


def count_rows(part: str, out: Tensor) -> None:
    """Count the rows of a part's output, if called in a block of `counting`.

    Args:
        part: "representation" or "prediction".
        out: Output of the part (n, ...).
    """
    tally = _tally.get()
    if tally is None:
        return
    if _is_differentiated(out):
        tally[part] += len(out) * _mapped_calls()
    elif part == "representation":
        tally["forward"] += len(out) * _mapped_calls()


def _is_differentiated(out: Tensor) -> bool:
    """Return True if an enclosing torch.func transform differentiates a tensor."""
    while not out.requires_grad:
        inner = torch.func.debug_unwrap(out, recurse=False)
        if inner is out:
            return False
        out = inner
    return True


def _mapped_calls() -> int:
    """Return how many mapped calls one call stands for under the enclosing torch.func.vmap."""
    levels = pyfunctorch.retrieve_all_functorch_interpreters()
    return math.prod(
        level.batch_size() for level in levels if isinstance(level, pyfunctorch.VmapInterpreter)
    )


def gradient(
    cost: Callable[..., Tensor], argnums: int | tuple[int, ...] = 0
) -> Callable[..., tuple[Any, Tensor]]:
    """Return a function that returns (gradient, value) of a cost, and counts as one evaluation.

    Args:
        cost: Function of trees of tensors that returns a scalar.
        argnums: Positions of the arguments by which to differentiate. The gradient is a tree of the
            same structure as the argument; for several positions it is a tuple of such trees.

    >>> gradient(lambda a: (a**2).sum())(torch.tensor([1.0, 3.0]))
    (tensor([2., 6.]), tensor(10.))
    """
    inner = torch.func.grad_and_value(cost, argnums=argnums)

    def counted(*args: Any) -> tuple[Any, Tensor]:
        tally = _tally.get()
        if tally is not None:
            tally["gradients"] += 1
        grads, value = inner(*args)
        return grads, value

    return counted
