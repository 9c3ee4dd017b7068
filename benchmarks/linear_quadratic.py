"""A solvable Hamilton-Jacobi-Bellman equation: one weight that follows a moving slope.

The model is y = theta x. The tasks require the slope a(t), which moves at a known speed v. With
e = theta - a the cost is J = q/2 e^2 + m, and J_theta = q e, J_x = -q e, where the paper's state x
is a. Units: J in units of cost, time in updates, V = integral of J in cost times time. For several
independent weights, q and v are tensors with one entry for each; values and gradients then add up,
while the rules of Theorem 1 and equation (4) treat each weight as a separate problem.

All functions are pure functions of float64 tensors. (A.2.7) is the equation labelled eq_a_2_7 in
the paper's source. `tests/theory/test_hjb.py` tests these functions, and with them most of the
theory; `benchmarks/hjb.py` draws them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Number = float | Tensor
Step = Callable[[Tensor], Tensor]
Value = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Problem:
    """A quadratic cost whose minimiser moves.

    Attributes:
        curvature: q > 0.
        speed: v, speed of the minimiser a per unit of time.
        floor: m, the least value of J.
    """

    curvature: Number = 1.0
    speed: Number = 0.0
    floor: float = 0.0


def cost(problem: Problem, e: Tensor) -> Tensor:
    """Return J = q/2 e^2 + m."""
    return problem.curvature * e**2 / 2 + problem.floor


def optimal_value(problem: Problem, effort: float, e: Tensor, left: Tensor) -> Tensor:
    """Return V* of equation (2) if theta' = u costs effort/2 u^2 in addition to J.

    Solves the Riccati equation of the problem; left = Gamma - t. As effort -> 0, V* -> m left.
    """
    q, v, pace = problem.curvature, problem.speed, (problem.curvature / effort) ** 0.5
    grown = torch.tanh(pace * left)
    bend = (q * effort) ** 0.5 * grown * e**2 / 2
    lead = effort * v * (1 / torch.cosh(pace * left) - 1) * e
    return bend + lead + effort * v**2 / 2 * (left - grown / pace) + problem.floor * left


def optimal_control(problem: Problem, effort: float, e: Tensor, left: Tensor) -> Tensor:
    """Return theta' = u = -V*_theta / effort."""
    pace = (problem.curvature / effort) ** 0.5
    ahead = problem.speed * (1 - 1 / torch.cosh(pace * left))
    return ahead - pace * torch.tanh(pace * left) * e


def flow_value(problem: Problem, rate: float, e: Tensor, left: Tensor) -> Tensor:
    """Return the integral of J along theta' = -rate J_theta, which stays v / (rate q) behind a."""
    q, k = problem.curvature, rate * problem.curvature
    steady = -problem.speed / k
    away = e - steady
    once, twice = -torch.expm1(-k * left) / k, -torch.expm1(-2 * k * left) / (2 * k)
    squared = steady**2 * left + 2 * steady * away * once + away**2 * twice
    return q / 2 * squared + problem.floor * left


def slope(value: Value, e: Tensor, left: Tensor) -> Tensor:
    """Return V_theta = dV/de at each e; V_x is its negative."""
    e = e.detach().requires_grad_()
    return torch.autograd.grad(value(e, left).sum(), e)[0]


def residual(
    problem: Problem, value: Value, control: Tensor, *, e: Tensor, left: Tensor, effort: float = 0.0
) -> Tensor:
    """Return -V_t - [J + effort/2 u^2 + V_theta u + V_x x'], u = control: equation (3) without J_N.

    0 where `value` solves the equation; in units of cost. Autograd takes the derivatives by theta,
    x and t.
    """
    theta, x = e.detach().requires_grad_(), torch.zeros_like(e, requires_grad=True)
    left = left.detach().expand_as(e).requires_grad_()
    total = value(theta - x, left).sum()
    by_theta, by_x, by_left = torch.autograd.grad(total, (theta, x, left))
    spent = cost(problem, e) + effort / 2 * control**2
    return by_left - (spent + by_theta * control + by_x * problem.speed)


def proof_slope(problem: Problem, e: Tensor) -> Tensor:
    """Return -J J_theta, which (A.2.3) uses as V_theta."""
    return -cost(problem, e) * problem.curvature * e


def proof_derivative(problem: Problem, rate: Tensor, e: Tensor, printed: bool = True) -> Tensor:
    """Return dV/dt by (A.2.7); if not `printed`, the middle term has the sign of (A.2.2)."""
    J, J_theta = cost(problem, e), problem.curvature * e
    middle = rate * J * J_theta**2
    return -J * (1 + (-middle if printed else middle) + J_theta * problem.speed)


def flow_step(problem: Problem, rate: float, e: Tensor) -> Tensor:
    """Return the change of theta per unit of time under gradient descent."""
    return -rate * problem.curvature * e


def theorem_step(problem: Problem, beta: Number, e: Tensor, power: int = 2) -> Tensor:
    """Return Theorem 1's alpha V_theta: -J J_theta (1 - s) / (beta |J_theta|^power), s = |J_x| |v|.

    power is 2 in the proof and equation (4), and 1 in the theorem. With 2 the result is
    (1 - s) / beta of Polyak's step towards J = 0. It is NaN where J_theta = 0.
    """
    J_theta = problem.curvature * e
    s = (J_theta * problem.speed).abs()
    return -(1 - s) * cost(problem, e) * J_theta / (beta * J_theta.abs() ** power)


def equation_4_step(problem: Problem, beta: Number, e: Tensor, epsilon: float = 0.0) -> Tensor:
    """Return -J_theta / (beta J_theta^2 + epsilon), the largest step of equation (4) on J alone."""
    J_theta = problem.curvature * e
    return -J_theta / (beta * J_theta**2 + epsilon)


def third_term_step(
    problem: Problem,
    rate: Number,
    e: Tensor,
    *,
    inner: float,
    zeta: int,
    sign: int = 1,
    through: Literal["constant", "first", "exact"] = "exact",
) -> Tensor:
    """Return -rate times the gradient of J + sign (J - J(theta_B)).

    theta_B is theta after zeta steps of gradient descent at rate inner. The paper's sign is 1.
    `through` is the gradient that reaches theta through theta_B, as in `dpmcl.methods.dpmcl`.
    """
    f = (1 - inner * problem.curvature) ** zeta
    back = {"constant": 0.0, "first": f, "exact": f**2}[through]
    return -rate * (1 + sign * (1 - back)) * problem.curvature * e


def simulate(problem: Problem, step: Step, e: Tensor, steps: int, *, dt: float = 1.0) -> Tensor:
    """Return the errors (steps + 1, *e.shape) along theta' = step(e); dt = 1 is one update."""
    path = [e]
    for _ in range(steps):
        path.append(path[-1] + dt * (step(path[-1]) - problem.speed))
    return torch.stack(path)


def steady(curvature: Tensor, speed: Tensor, beta: Number) -> tuple[Tensor, Tensor, Tensor]:
    """Return (J, s, limit): J settles at beta s / (1 - s) under Theorem 1 if s starts below limit.

    s and limit = 1 - s are the roots of s (1 - s) = 2 q beta v^2. They are NaN if there are none,
    that is, if the right-hand side is above 1/4: then the error grows without bound.
    """
    s = (1 - torch.sqrt(1 - 8 * curvature * beta * speed**2)) / 2
    return beta * s / (1 - s), s, 1 - s
