"""The check of a user's cost function, made before training."""

from collections.abc import Callable

import torch
from torch import Tensor

from dpmcl.core.generators import forked
from dpmcl.core.row_check import ROWS, batches_to_compare, is_near, rows_agree
from dpmcl.exceptions import ModelError, reason

RowCost = Callable[[Tensor, Tensor], Tensor]
"""Function cost(outputs, targets) that returns the cost of each row, (n,). Outputs are
(n, outputs), targets int64 (n,) or (n, outputs)."""


def check_cost(cost: RowCost, name: str, *, kind: str, width: int, like: Tensor) -> None:
    """Check a cost and its gradient on made-up outputs, row by row and batched.

    Args:
        cost: The user's cost function.
        name: Name of the cost in messages.
        kind: "classification" or "regression".
        width: Width of the outputs that the cost gets.
        like: A tensor of the model's type on its device.

    Raises:
        ModelError: The cost raises an exception, is not one finite number for each row, mixes rows,
            draws random numbers, changes its arguments, or has no gradient.
    """
    label = f"The cost '{name}'"
    pool, pool_targets = _example(kind, width, like)
    outputs, targets = pool[:ROWS], pool_targets[:ROWS]
    try:
        with forked(0):
            costs = cost(outputs, targets)
            _check_values(label, costs, outputs)
            batches = [
                (company, cost(pool[index], pool_targets[index]), index)
                for company, index in batches_to_compare()
            ]
            row_gradient = torch.func.grad(lambda o, t: cost(o[None], t[None])[0])
            grads = torch.func.vmap(row_gradient)(outputs, targets)
            batch_gradient = torch.func.grad(lambda o: cost(o, targets).sum())
            looped = torch.stack([batch_gradient(o) for o in (outputs, -outputs)])
            batched = torch.func.vmap(batch_gradient)(torch.stack([outputs, -outputs]))
    except ModelError:
        raise
    except Exception as error:  # the user's function may raise anything
        raise ModelError(
            f"{label} must be a function of outputs {tuple(outputs.shape)} and targets "
            f"{tuple(targets.shape)} that torch.func can differentiate and map, and fails: "
            f"{reason(error)}; use PyTorch's functions, without branches on values, draws or "
            "changes in place."
        ) from error
    differing = [where for where, batch, index in batches if not rows_agree(costs, batch, index)]
    if not is_near(looped[0], grads, grads):
        differing.append("in its gradient")
    if not is_near(batched, looped, looped):
        differing.append("if torch.func.vmap maps it")
    if differing:
        raise ModelError(
            f"{label} of a row may depend on that row's outputs and targets alone, and is another "
            f"one {differing[0]}; take no mean over rows."
        )
    if not grads.isfinite().all() or not grads.any():
        what = "is 0 for every row" if grads.isfinite().all() else "is not finite"
        raise ModelError(
            f"{label} must have a gradient, and that by the outputs {what}; leave out detach(), "
            "argmax and comparisons."
        )


def _example(kind: str, width: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return made-up outputs and targets."""
    classify = kind == "classification"
    width = max(width, 2) if classify else width
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(2, 2 * ROWS, width, generator=generator, dtype=like.dtype)
    outputs, values = numbers.to(like)
    return 2 * outputs, torch.arange(2 * ROWS).to(like.device) % width if classify else values


def _check_values(label: str, costs: Tensor, outputs: Tensor) -> None:
    """Raise ModelError unless a cost is one finite number for each row."""
    right = isinstance(costs, Tensor) and costs.shape == outputs.shape[:1]
    if not right or costs.dtype != outputs.dtype:
        got = f"{costs.dtype} {tuple(costs.shape)}" if isinstance(costs, Tensor) else type(costs)
        raise ModelError(
            f"{label} must give one number a row, {outputs.dtype} ({len(outputs)},), got {got}; "
            "take the mean over outputs (reduction='none', .mean(1)), and leave that over rows."
        )
    if not costs.isfinite().all():
        invalid = float(costs.detach()[~costs.isfinite()][0])
        raise ModelError(
            f"{label} must be finite, got {invalid} for outputs of ordinary size; it gets logits "
            "or values as they are, so compute from log_softmax, or clamp."
        )
