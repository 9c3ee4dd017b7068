"""The check of a user's cost function, made before training."""

from collections.abc import Callable

import torch
from torch import Tensor

from dpmcl.core.generators import forked
from dpmcl.exceptions import ModelError, reason

RowCost = Callable[[Tensor, Tensor], Tensor]
"""Function cost(outputs, targets) that returns the cost of each row, (n,). Outputs are
(n, outputs), targets int64 (n,) or (n, outputs)."""

_ROWS = 6


def check_cost(cost: RowCost, name: str, outputs: Tensor, targets: Tensor) -> None:
    """Check a cost and its gradient on made-up outputs, row by row and batched.

    Args:
        cost: The user's cost function.
        name: Name of the cost in messages.
        outputs: Made-up outputs (n, outputs), in the model's type.
        targets: Targets of these outputs.

    Raises:
        ModelError: The cost raises an exception, is not one finite number for each row, mixes rows,
            draws random numbers, changes its arguments, or has no gradient.
    """
    shown = f"The cost '{name}'"
    try:
        with forked(0):
            each = cost(outputs, targets)
            _check_values(shown, each, outputs)
            alone = [cost(o[None], t[None]) for o, t in zip(outputs, targets, strict=True)]
            one = torch.func.grad(lambda o, t: cost(o[None], t[None])[0])
            grads = torch.func.vmap(one)(outputs, targets)
            together = torch.func.grad(lambda o: cost(o, targets).sum())
            looped = torch.stack([together(o) for o in (outputs, -outputs)])
            batched = torch.func.vmap(together)(torch.stack([outputs, -outputs]))
    except ModelError:
        raise
    except Exception as error:  # the user's function may raise anything
        raise ModelError(
            f"{shown} must be a function of outputs {tuple(outputs.shape)} and targets "
            f"{tuple(targets.shape)} that torch.func can differentiate and map, and fails: "
            f"{reason(error)}; use PyTorch's functions, without branches on values, draws or "
            "changes in place."
        ) from error
    pairs = ((torch.cat(alone), each), (looped[0], grads), (batched, looped))
    if not all(a.shape == b.shape and torch.allclose(a, b, 1e-3, 1e-5) for a, b in pairs):
        raise ModelError(
            f"{shown} of a row may depend on that row's outputs and targets alone, and differs "
            "beside other rows; take no mean over rows."
        )
    if not grads.isfinite().all() or not grads.any():
        what = "is 0 for every row" if grads.isfinite().all() else "is not finite"
        raise ModelError(
            f"{shown} must have a gradient, and that by the outputs {what}; leave out detach(), "
            "argmax and comparisons."
        )


def made_up(kind: str, outputs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return made-up outputs and targets for the check of a cost.

    Args:
        kind: "classification" or "regression".
        outputs: Width of the network's output.
        dtype: The model's type.
    """
    width = max(outputs, 2) if kind == "classification" else outputs
    generator = torch.Generator().manual_seed(0)
    values = 2 * torch.randn(_ROWS, width, generator=generator, dtype=dtype)
    if kind == "classification":
        return values, torch.arange(_ROWS) % width
    return values, torch.randn(_ROWS, width, generator=generator, dtype=dtype)


def _check_values(shown: str, each: Tensor, outputs: Tensor) -> None:
    """Raise ModelError unless a cost is one finite number for each row."""
    right = isinstance(each, Tensor) and each.shape == outputs.shape[:1]
    if not right or each.dtype != outputs.dtype:
        came = f"{each.dtype} {tuple(each.shape)}" if isinstance(each, Tensor) else type(each)
        raise ModelError(
            f"{shown} must give one number a row, {outputs.dtype} ({len(outputs)},), got {came}; "
            "take the mean over outputs (reduction='none', .mean(1)), and leave that over rows."
        )
    if not each.isfinite().all():
        wrong = float(each.detach()[~each.isfinite()][0])
        raise ModelError(
            f"{shown} must be finite, got {wrong} for outputs of ordinary size; it gets logits "
            "or values as they are, so compute from log_softmax, or clamp."
        )
