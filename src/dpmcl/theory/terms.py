"""The costs and the four terms of equation (3), computed for one replica.

The right-hand side of the Hamilton-Jacobi-Bellman equation has four terms:

    J_P                  the cost on all earlier tasks
    J_N                  the cost on the new task
    V_theta' dtheta      the change of the optimal cost by a change of the parameters
    V_x' dx              the change of the optimal cost by a change of the input

V is not known. The paper estimates V_theta in two ways, and this module has both:

    "proof"       Theorem 1: V_theta = -J J_theta, V_x = -J J_x
    "difference"  A.3: -J stands for V, so V_theta' dtheta is J_PN - J_PN(theta_B), and V_x' dx,
                  which the paper drops, is J_N(x) - J_N(x + dx)

J without a subscript is J_N + J_P, as in A.3. All costs are taken in evaluation mode, without
dropout. `docs/theory_results.md` shows which of these steps can be derived.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from dpmcl.core.batch import Batch, Costs, costs_of, join, weighted_mean
from dpmcl.core.model import Model, Parameters, Theta
from dpmcl.optimisers._optimiser import Optimiser


class Sensitivity(NamedTuple):
    """Derivatives of J = J_N + J_P by the parameters and by the new task's rows.

    Attributes:
        costs: Costs at theta.
        J_theta: Gradient by theta, with its structure.
        J_x: Gradient by the input, or by the features, of each row of b_N, (n, ...).
        J_y: Gradient by the target of each row of b_N, (n, outputs); 0, (n,), for classes.
    """

    costs: Costs
    J_theta: Theta
    J_x: Tensor
    J_y: Tensor


class InputNorms(NamedTuple):
    """Scalars ||J_x|| and ||dx||, and the same of the targets, which move with the inputs."""

    J_x: Tensor
    dx: Tensor
    J_y: Tensor
    dy: Tensor

    @property
    def reach(self) -> Tensor:
        """||J_x|| ||dx|| + ||J_y|| ||dy||, a bound on |J_x' dx + J_y' dy| by Cauchy-Schwarz.

        It stands for the paper's ||J_x|| ||dx||, in which y is a function of x; Theorem 1 assumes
        that it is below 1.
        """
        return self.J_x * self.dx + self.J_y * self.dy


def sensitivity(
    model: Model, theta: Theta, b_N: Batch, b_P: Batch, *, features: bool = False
) -> Sensitivity:
    """Return the costs and the gradients of J.

    Args:
        model: The model.
        theta: Parameters of one replica.
        b_N: Rows of the new task, by which J_x and J_y are taken.
        b_P: Rows of earlier tasks.
        features: Whether to take J_x by the input of g (`Model.seen`) in place of x.
    """
    b_PN = join(b_P, b_N)

    def J(theta: Theta, dx: Tensor, dy: Tensor) -> tuple[Tensor, Costs]:
        dx, dy = (torch.cat([d.new_zeros(len(b_P.x), *d.shape[1:]), d]) for d in (dx, dy))
        losses = _moved_losses(model, theta, b_PN, (dx, dy), features=features)
        costs = costs_of(losses, b_N, b_P)
        return costs.J_N + costs.J_P, costs

    gradients = torch.func.grad(J, argnums=(0, 1, 2), has_aux=True)
    (J_theta, J_x, J_y), costs = gradients(theta, *_zero_move(model, theta, b_N, features))
    return Sensitivity(costs, J_theta, J_x, J_y)


def look_ahead(
    model: Model, theta: Theta, b_N: Batch, b_P: Batch, *, rule: Optimiser, zeta: int
) -> Tensor:
    """Return J_PN(theta_B) of A.3, the cost after a copy of theta_2 has taken steps on J_PN.

    Args:
        model: The model.
        theta: Parameters of one replica; theta_1 is not changed.
        b_N: Rows of the new task.
        b_P: Rows of earlier tasks.
        rule: Optimiser of the steps; it starts with a fresh state.
        zeta: Number of steps.
    """
    b_PN = join(b_P, b_N)
    seen = model.seen(theta, b_PN.x)

    def J_PN(theta_2: Parameters, step: int = 0) -> Tensor:
        outputs = model.answer({**theta, "prediction": theta_2}, seen, b_PN.x)
        return weighted_mean(model.losses(outputs, b_PN.y), b_PN.w)

    return J_PN(rule.descended(J_PN, theta["prediction"], zeta))


def moved(
    model: Model, theta: Theta, b_N: Batch, b_next: Batch, *, features: bool = False
) -> tuple[Tensor, Tensor]:
    """Return dx and dy, the change of each row, with the shapes of J_x and J_y.

    Args:
        model: The model, which computes the features.
        theta: Parameters of one replica.
        b_N: Rows of the new task.
        b_next: The same rows after they have moved.
        features: Whether dx is the change of the input of g (`Model.seen`) in place of x.
    """
    dx = b_next.x - b_N.x
    if features:
        dx = model.seen(theta, b_next.x) - model.seen(theta, b_N.x)
    if b_N.y.is_floating_point():
        return dx, b_next.y - b_N.y
    return dx, torch.zeros_like(b_N.y, dtype=b_N.x.dtype)


def input_norms(J_x: Tensor, J_y: Tensor, dx: Tensor, dy: Tensor) -> InputNorms:
    """Return the norms in the condition ||J_x|| ||dx|| < 1, as root mean squares over rows.

    Args:
        J_x: Gradient of a mean over n rows by each row's input, (n, ...).
        J_y: Gradient of the same mean by each row's target, (n, ...).
        dx: Change of each input, of the shape of J_x.
        dy: Change of each target, of the shape of J_y.

    Returns:
        Norms in which the gradient of a row is that of its own loss, n J_x. The products of norms
        are those of the paper's Frobenius norms, for any number of rows.
    """

    def norm(rows: Tensor) -> Tensor:
        return rows.square().reshape(rows.shape[0], -1).sum(1).mean().sqrt()

    n = dx.shape[0]
    return InputNorms(norm(n * J_x), norm(dx), norm(n * J_y), norm(dy))


def reach(
    model: Model, theta: Theta, b_N: Batch, b_next: Batch, *, features: bool = False
) -> Tensor:
    """Return ||J_x|| ||dx|| + ||J_y|| ||dy|| of J_N (`InputNorms.reach`), a scalar.

    Args:
        model: The model.
        theta: Parameters of one replica.
        b_N: Rows of the new task.
        b_next: The same rows after they have moved.
        features: Whether to take the input of g (`Model.seen`) in place of x.
    """

    def J_N(dx: Tensor, dy: Tensor) -> Tensor:
        return weighted_mean(_moved_losses(model, theta, b_N, (dx, dy), features=features), b_N.w)

    J_x, J_y = torch.func.grad(J_N, argnums=(0, 1))(*_zero_move(model, theta, b_N, features))
    return input_norms(J_x, J_y, *moved(model, theta, b_N, b_next, features=features)).reach


def _zero_move(model: Model, theta: Theta, b_N: Batch, features: bool) -> tuple[Tensor, Tensor]:
    """Return dx and dy of rows that do not move, which are 0."""
    like = model.seen(theta, b_N.x) if features else b_N.x
    return torch.zeros_like(like), torch.zeros_like(b_N.y, dtype=b_N.x.dtype)


def _moved_losses(
    model: Model, theta: Theta, batch: Batch, move: tuple[Tensor, Tensor], *, features: bool
) -> Tensor:
    """Return each row's loss after inputs (or features) and targets have moved by dx and dy."""
    dx, dy = move
    x = batch.x if features else batch.x + dx
    seen = model.seen(theta, x)
    seen = seen + dx if features else seen
    y = batch.y + dy if batch.y.is_floating_point() else batch.y
    return model.losses(model.answer(theta, seen, x), y)
