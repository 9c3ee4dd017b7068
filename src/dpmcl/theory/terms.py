"""The costs and the four terms of equation (3), measured for one replica.

The right-hand side of the Hamilton-Jacobi-Bellman equation has four terms:

    J_P                  the cost on all earlier tasks
    J_N                  the cost on the new one
    V_theta' dtheta      what a change of the parameters does to the optimal cost
    V_x' dx              what a change of the input does to it

V is not known. The paper estimates V_theta twice, and so does this module, by name:

    "proof"       Theorem 1: V_theta = -J J_theta, V_x = -J J_x
    "difference"  A.3: -J stands for V, so V_theta' dtheta is J_PN - J_PN(theta_B), and V_x' dx,
                  which the paper drops, is J_N(x) - J_N(x + dx)

J without a letter is J_N + J_P, as in A.3. All costs are those of evaluation: no dropout.
`docs/theory_results.md` says which of these steps follow.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from dpmcl.core.batch import Batch, join, weighted_mean
from dpmcl.core.model import Model, Parameters, Theta
from dpmcl.optimisers._optimiser import Optimiser


class Costs(NamedTuple):
    """J_N, J_P on b_N and b_P, J_PN on both, scalars; J_P is 0 while no task came before."""

    J_N: Tensor
    J_P: Tensor
    J_PN: Tensor


class Sensitivity(NamedTuple):
    """Derivatives of J = J_N + J_P by the parameters and by the new task's rows.

    costs: at theta. J_theta: the gradient, of theta's form. J_x: the gradient by each row of b_N,
    (n, ...), or by its features. J_y: by each target, (n, outputs); for classes 0, (n,).
    """

    costs: Costs
    J_theta: Theta
    J_x: Tensor
    J_y: Tensor


class InputNorms(NamedTuple):
    """||J_x||, ||dx||, and the same of the targets, which move with the inputs; scalars."""

    J_x: Tensor
    dx: Tensor
    J_y: Tensor
    dy: Tensor

    @property
    def reach(self) -> Tensor:
        """||J_x|| ||dx|| + ||J_y|| ||dy||, by Cauchy and Schwarz at least |J_x' dx + J_y' dy|.

        The paper's ||J_x|| ||dx||, in which y is a function of x; Theorem 1 wants it below 1.
        """
        return self.J_x * self.dx + self.J_y * self.dy


def sensitivity(
    model: Model, theta: Theta, b_N: Batch, b_P: Batch, *, features: bool = False
) -> Sensitivity:
    """Return the costs and the gradients of J.

    Args:
        model: The networks and the loss.
        theta: Parameters of one replica.
        b_N: Rows of the new task, by which J_x and J_y are taken.
        b_P: Rows of earlier tasks.
        features: Take J_x by what g sees of x, instead of by x.
    """
    b_PN = join(b_P, b_N)

    def J(theta: Theta, dx: Tensor, dy: Tensor) -> tuple[Tensor, Costs]:
        dx, dy = (torch.cat([d.new_zeros(len(b_P.x), *d.shape[1:]), d]) for d in (dx, dy))
        losses = _moved_losses(model, theta, b_PN, (dx, dy), features=features)
        costs = _split(losses, b_N, b_P)
        return costs.J_N + costs.J_P, costs

    by_all = torch.func.grad(J, argnums=(0, 1, 2), has_aux=True)
    (J_theta, J_x, J_y), costs = by_all(theta, *_no_move(model, theta, b_N, features))
    return Sensitivity(costs, J_theta, J_x, J_y)


def look_ahead(
    model: Model, theta: Theta, b_N: Batch, b_P: Batch, *, rule: Optimiser, zeta: int
) -> Tensor:
    """Return J_PN(theta_B) of A.3: the cost after a copy of theta_2 has taken steps on it.

    Args:
        model: The networks and the loss.
        theta: Parameters of one replica; theta_1 stays fixed.
        b_N: Rows of the new task.
        b_P: Rows of earlier tasks.
        rule: Optimiser of the steps, with a fresh state.
        zeta: Number of steps.
    """
    b_PN = join(b_P, b_N)
    seen = model.seen(theta, b_PN.x)

    def J_PN(theta_2: Parameters, step: int = 0) -> Tensor:
        answer = model.answer({**theta, "prediction": theta_2}, seen, b_PN.x)
        return weighted_mean(model.losses(answer, b_PN.y), b_PN.w)

    return J_PN(rule.descended(J_PN, theta["prediction"], zeta))


def moved(
    model: Model, theta: Theta, b_N: Batch, b_next: Batch, *, features: bool = False
) -> tuple[Tensor, Tensor]:
    """Return dx and dy of each row, of the form of J_x and J_y.

    Args:
        model: The networks, which make features of inputs.
        theta: Parameters of one replica.
        b_N: Rows of the new task.
        b_next: The same rows once they have moved.
        features: Return how far the features move, instead of the inputs.
    """
    dx = b_next.x - b_N.x
    if features:
        dx = model.seen(theta, b_next.x) - model.seen(theta, b_N.x)
    if b_N.y.is_floating_point():
        return dx, b_next.y - b_N.y
    return dx, torch.zeros_like(b_N.y, dtype=b_N.x.dtype)


def input_norms(J_x: Tensor, J_y: Tensor, dx: Tensor, dy: Tensor) -> InputNorms:
    """Return the norms of which the condition ||J_x|| ||dx|| < 1 speaks, root mean squares of rows.

    Args:
        J_x: Gradient of a mean over n rows by each row's input, (n, ...).
        J_y: The same by each row's target, (n, ...).
        dx: How far each input moves, of the shape of J_x.
        dy: How far each target moves, of the shape of J_y.

    Returns:
        Norms with rows' gradients of their own losses, n J_x: the products are those of the
        paper's Frobenius norms, however many rows there are.
    """

    def norm(rows: Tensor) -> Tensor:
        return rows.square().reshape(rows.shape[0], -1).sum(1).mean().sqrt()

    n = dx.shape[0]
    return InputNorms(norm(n * J_x), norm(dx), norm(n * J_y), norm(dy))


def reach(
    model: Model, theta: Theta, b_N: Batch, b_next: Batch, *, features: bool = False
) -> Tensor:
    """Return ||J_x|| ||dx|| of J_N, the targets' share included, a scalar.

    Args:
        model: The networks and the loss.
        theta: Parameters of one replica.
        b_N: Rows of the new task.
        b_next: The same rows once they have moved.
        features: Take x for what g sees of it.
    """

    def J_N(dx: Tensor, dy: Tensor) -> Tensor:
        return weighted_mean(_moved_losses(model, theta, b_N, (dx, dy), features=features), b_N.w)

    J_x, J_y = torch.func.grad(J_N, argnums=(0, 1))(*_no_move(model, theta, b_N, features))
    return input_norms(J_x, J_y, *moved(model, theta, b_N, b_next, features=features)).reach


def _no_move(model: Model, theta: Theta, b_N: Batch, features: bool) -> tuple[Tensor, Tensor]:
    """Return dx and dy of rows that do not move."""
    like = model.seen(theta, b_N.x) if features else b_N.x
    return torch.zeros_like(like), torch.zeros_like(b_N.y, dtype=b_N.x.dtype)


def _moved_losses(
    model: Model, theta: Theta, batch: Batch, move: tuple[Tensor, Tensor], *, features: bool
) -> Tensor:
    """Return each row's loss once inputs (or features) and targets have moved by dx and dy."""
    dx, dy = move
    x = batch.x if features else batch.x + dx
    seen = model.seen(theta, x)
    seen = seen + dx if features else seen
    y = batch.y + dy if batch.y.is_floating_point() else batch.y
    return model.losses(model.answer(theta, seen, x), y)


def _split(losses: Tensor, b_N: Batch, b_P: Batch) -> Costs:
    """Return the costs of rows' losses, those of b_P first."""
    past = b_P.x.shape[0]
    return Costs(
        weighted_mean(losses[past:], b_N.w),
        weighted_mean(losses[:past], b_P.w),
        weighted_mean(losses, torch.cat([b_P.w, b_N.w])),
    )
