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
`docs/theory.md` says which of these steps follow.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from dpmcl.core.batch import Batch, join, weighted_mean
from dpmcl.core.model import Model, Parameters, Theta
from dpmcl.core.tree import leaves, tree_map
from dpmcl.optimisers._optimiser import Optimiser
from dpmcl.optimisers.theorem import Drift


class Costs(NamedTuple):
    """J_N, J_P on b_N and b_P, J_PN on both, scalars; J_P is 0 while no task came before."""

    J_N: Tensor
    J_P: Tensor
    J_PN: Tensor


class Sensitivity(NamedTuple):
    """How J = J_N + J_P answers to the parameters and to the new task's inputs.

    costs: at theta. J_theta: the gradient, of theta's form. J_x: the gradient by each row of b_N,
    (n, ...), of its features where those are asked for. J_y: by each target, (n, outputs); for
    classes 0, (n,).
    """

    costs: Costs
    J_theta: Theta
    J_x: Tensor
    J_y: Tensor


def costs(model: Model, theta: Theta, b_N: Batch, b_P: Batch) -> Costs:
    """The costs on the new task, on earlier ones, and on the union b_PN."""
    b_PN = join(b_P, b_N)
    each = model.losses(model.predict(theta, b_PN.x), b_PN.y)
    return _split(each, b_N, b_P)


def sensitivity(
    model: Model, theta: Theta, b_N: Batch, b_P: Batch, space: Drift = "inputs"
) -> Sensitivity:
    """Costs and gradients. space: "features" takes J_x by what g sees of x, all others by x."""
    b_PN, past = join(b_P, b_N), b_P.x.shape[0]
    known = b_N.y.is_floating_point()

    def J(theta: Theta, dx: Tensor, dy: Tensor) -> tuple[Tensor, Costs]:
        x = b_PN.x
        if space != "features":
            x = torch.cat([x[:past], x[past:] + dx])
        seen = model.seen(theta, x)
        if space == "features":
            seen = torch.cat([seen[:past], seen[past:] + dx])
        y = torch.cat([b_PN.y[:past], b_PN.y[past:] + dy]) if known else b_PN.y
        found = _split(model.losses(model.answer(theta, seen, x), y), b_N, b_P)
        return found.J_N + found.J_P, found

    still = _still(model, theta, b_N, space)
    by = torch.func.grad(J, argnums=(0, 1, 2) if known else (0, 1), has_aux=True)
    grads, found = by(theta, *still)
    J_y = grads[2] if known else still[1]
    return Sensitivity(found, grads[0], grads[1], J_y)


def look_ahead(
    model: Model, theta: Theta, b_N: Batch, b_P: Batch, rule: Optimiser, zeta: int
) -> Tensor:
    """J_PN(theta_B), A.3: the cost after zeta steps of a copy of theta_2 on it, theta_1 fixed."""
    b_PN = join(b_P, b_N)
    seen = model.seen(theta, b_PN.x)

    def J_PN(theta_2: Parameters, step: int = 0) -> Tensor:
        answer = model.answer({**theta, "prediction": theta_2}, seen, b_PN.x)
        return weighted_mean(model.losses(answer, b_PN.y), b_PN.w)

    return J_PN(rule.descended(J_PN, theta["prediction"], zeta))


def moved(
    model: Model, theta: Theta, b_N: Batch, b_next: Batch, space: Drift
) -> tuple[Tensor, Tensor]:
    """dx and dy of each row, of the form of J_x and J_y. b_next: b_N's rows, once moved."""
    dx = b_next.x - b_N.x
    if space == "features":
        dx = model.seen(theta, b_next.x) - model.seen(theta, b_N.x)
    if b_N.y.is_floating_point():
        return dx, b_next.y - b_N.y
    return dx, torch.zeros_like(b_N.y, dtype=b_N.x.dtype)


def root_mean_square(rows: Tensor) -> Tensor:
    """The root of the mean over rows of a row's squared norm.

    The norms of J_x and dx that the condition ||J_x|| ||dx|| < 1 speaks of, with rows' gradients
    of their own losses: the product is that of the paper's Frobenius norms, whatever the batch.
    """
    return rows.square().reshape(rows.shape[0], -1).sum(1).mean().sqrt()


class Drifts(NamedTuple):
    """||J_x||, ||dx||, and the same of the targets, which move with the inputs; scalars."""

    J_x: Tensor
    dx: Tensor
    J_y: Tensor
    dy: Tensor

    @property
    def reach(self) -> Tensor:
        """||J_x|| ||dx|| + ||J_y|| ||dy||, by Cauchy and Schwarz no less than |J_x' dx + J_y' dy|.

        The paper's ||J_x|| ||dx||, in which y is a function of x; Theorem 1 wants it below 1.
        """
        return self.J_x * self.dx + self.J_y * self.dy


def drifts(J_x: Tensor, J_y: Tensor, dx: Tensor, dy: Tensor) -> Drifts:
    """The norms, of rows that move by dx and dy. J_x, J_y: gradients of a mean over the rows."""
    n = dx.shape[0]
    return Drifts(*(root_mean_square(value) for value in (n * J_x, dx, n * J_y, dy)))


def reach(model: Model, theta: Theta, b_N: Batch, b_next: Batch, space: Drift = "inputs") -> Tensor:
    """||J_x|| ||dx|| with the targets' share, a scalar. b_next: b_N's rows once they have moved."""
    still, known = _still(model, theta, b_N, space), b_N.y.is_floating_point()

    def J_N(dx: Tensor, dy: Tensor) -> Tensor:
        return _moved_cost(model, theta, b_N, dx, dy, space)

    grads = torch.func.grad(J_N, argnums=(0, 1) if known else (0,))(*still)
    J_y = grads[1] if known else still[1]
    return drifts(grads[0], J_y, *moved(model, theta, b_N, b_next, space)).reach


def _still(model: Model, theta: Theta, b_N: Batch, space: Drift) -> tuple[Tensor, Tensor]:
    """dx and dy of rows that do not move."""
    like = model.seen(theta, b_N.x) if space == "features" else b_N.x
    return torch.zeros_like(like), torch.zeros_like(b_N.y, dtype=b_N.x.dtype)


def _moved_cost(
    model: Model, theta: Theta, b_N: Batch, dx: Tensor, dy: Tensor, space: Drift
) -> Tensor:
    """J_N with the rows, or what g sees of them, moved by dx, and targets of a regression by dy."""
    x = b_N.x if space == "features" else b_N.x + dx
    seen = model.seen(theta, x)
    seen = seen + dx if space == "features" else seen
    y = b_N.y + dy if b_N.y.is_floating_point() else b_N.y
    return weighted_mean(model.losses(model.answer(theta, seen, x), y), b_N.w)


def along(grads: Theta, change: Theta) -> Tensor:
    """J_theta' dtheta: what J changes by, to first order."""
    products = tree_map(lambda g, c: (g * c).sum(), grads, change)
    total: Tensor = torch.stack(leaves(products)).sum()
    return total


def norm(tree: Theta) -> Tensor:
    """The Euclidean norm of a tree of parameters."""
    return torch.stack([leaf.square().sum() for leaf in leaves(tree)]).sum().sqrt()


def _split(each: Tensor, b_N: Batch, b_P: Batch) -> Costs:
    past = b_P.x.shape[0]
    return Costs(
        weighted_mean(each[past:], b_N.w),
        weighted_mean(each[:past], b_P.w),
        weighted_mean(each, torch.cat([b_P.w, b_N.w])),
    )
