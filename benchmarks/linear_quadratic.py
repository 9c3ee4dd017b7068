"""The Hamilton-Jacobi-Bellman equation where it can be solved: one weight after a moving slope.

The model is y = theta x, and the slope that the tasks ask for is at a(t), which moves at a known
rate v. With e = theta - a the cost is J = q/2 e^2 + m, and J_theta = q e, J_x = -q e, where the
paper's state x is a. Units: J in units of cost, time in updates, V = integral of J in cost times
time. Several independent weights: q and v as tensors, one entry each; values and gradients then
add up, while the rules of Theorem 1 and eq. (4) take each weight as a problem of its own.

Pure functions of float64 tensors. (A.2.7) is the equation labelled eq_a_2_7 in the paper's source.
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
    """curvature q > 0, drift v per unit of time, floor m: the part of J that no theta avoids."""

    curvature: Number = 1.0
    drift: Number = 0.0
    floor: float = 0.0


def cost(problem: Problem, e: Tensor) -> Tensor:
    """J = q/2 e^2 + m."""
    return problem.curvature * e**2 / 2 + problem.floor


def optimal_value(problem: Problem, effort: float, e: Tensor, left: Tensor) -> Tensor:
    """V* of eq. (2) when theta' = u costs effort/2 u^2 on top of J, with `left` = Gamma - t to go.

    The Riccati equation of the problem, solved. Without effort (effort -> 0) V* = m left.
    """
    q, v, pace = problem.curvature, problem.drift, (problem.curvature / effort) ** 0.5
    grown = torch.tanh(pace * left)
    bend = (q * effort) ** 0.5 * grown * e**2 / 2
    lead = effort * v * (1 / torch.cosh(pace * left) - 1) * e
    return bend + lead + effort * v**2 / 2 * (left - grown / pace) + problem.floor * left


def optimal_control(problem: Problem, effort: float, e: Tensor, left: Tensor) -> Tensor:
    """theta' = u = -V*_theta / effort."""
    pace = (problem.curvature / effort) ** 0.5
    ahead = problem.drift * (1 - 1 / torch.cosh(pace * left))
    return ahead - pace * torch.tanh(pace * left) * e


def flow_value(problem: Problem, rate: float, e: Tensor, left: Tensor) -> Tensor:
    """V = integral of J along theta' = -rate J_theta, which ends up v / (rate q) behind."""
    q, k = problem.curvature, rate * problem.curvature
    steady = -problem.drift / k
    away = e - steady
    once, twice = -torch.expm1(-k * left) / k, -torch.expm1(-2 * k * left) / (2 * k)
    squared = steady**2 * left + 2 * steady * away * once + away**2 * twice
    return q / 2 * squared + problem.floor * left


def slope(value: Value, e: Tensor, left: Tensor) -> Tensor:
    """V_theta = dV/de at each e; V_x is its negative."""
    e = e.detach().requires_grad_()
    return torch.autograd.grad(value(e, left).sum(), e)[0]


def residual(
    problem: Problem, value: Value, control: Tensor, e: Tensor, left: Tensor, effort: float = 0.0
) -> Tensor:
    """-V_t - [J + effort/2 u^2 + V_theta u + V_x x'], u = control: eq. (3) without J_N. Cost units.

    0 where `value` solves the equation. The derivatives are autograd's, in theta, x and t.
    """
    theta, x = e.detach().requires_grad_(), torch.zeros_like(e, requires_grad=True)
    left = left.detach().expand_as(e).requires_grad_()
    total = value(theta - x, left).sum()
    by_theta, by_x, by_left = torch.autograd.grad(total, (theta, x, left))
    spent = cost(problem, e) + effort / 2 * control**2
    return by_left - (spent + by_theta * control + by_x * problem.drift)


def proof_slope(problem: Problem, e: Tensor) -> Tensor:
    """-J J_theta, what (A.2.3) has for V_theta."""
    return -cost(problem, e) * problem.curvature * e


def proof_derivative(problem: Problem, rate: Tensor, e: Tensor, printed: bool = True) -> Tensor:
    """(A.2.7) for dV/dt; not printed: its middle term with the sign that (A.2.2) gives it."""
    J, J_theta = cost(problem, e), problem.curvature * e
    middle = rate * J * J_theta**2
    return -J * (1 + (-middle if printed else middle) + J_theta * problem.drift)


def flow_step(problem: Problem, rate: float, e: Tensor) -> Tensor:
    """Change of theta per unit of time: gradient descent."""
    return -rate * problem.curvature * e


def theorem_step(problem: Problem, beta: Number, e: Tensor, power: int = 2) -> Tensor:
    """Theorem 1's alpha V_theta: -J J_theta (1 - s) / (beta |J_theta|^power), s = |J_x| |v|.

    power 2 is that of the proof and of eq. (4), 1 that of the theorem. With 2 it is (1 - s)/beta of
    Polyak's step towards J = 0. NaN where J_theta = 0.
    """
    J_theta = problem.curvature * e
    s = (J_theta * problem.drift).abs()
    return -(1 - s) * cost(problem, e) * J_theta / (beta * J_theta.abs() ** power)


def equation_4_step(problem: Problem, beta: Number, e: Tensor, epsilon: float = 0.0) -> Tensor:
    """-J_theta / (beta J_theta^2 + epsilon): the largest step that eq. (4) allows, on J alone."""
    J_theta = problem.curvature * e
    return -J_theta / (beta * J_theta**2 + epsilon)


def third_term_step(
    problem: Problem,
    rate: Number,
    e: Tensor,
    inner: float,
    zeta: int,
    sign: int = 1,
    through: Literal["constant", "first", "exact"] = "exact",
) -> Tensor:
    """-rate times the gradient of J + sign (J - J(theta_B)), theta_B = zeta descents at rate inner.

    sign 1 is the paper's. through: what theta_B's part gives theta, as in `methods.dpmcl`.
    """
    f = (1 - inner * problem.curvature) ** zeta
    back = {"constant": 0.0, "first": f, "exact": f**2}[through]
    return -rate * (1 + sign * (1 - back)) * problem.curvature * e


def simulate(problem: Problem, step: Step, e: Tensor, steps: int, dt: float = 1.0) -> Tensor:
    """Errors, shape (steps + 1, *e.shape), along theta' = step(e); dt = 1: an update at a time."""
    path = [e]
    for _ in range(steps):
        path.append(path[-1] + dt * (step(path[-1]) - problem.drift))
    return torch.stack(path)


def steady(curvature: Tensor, drift: Tensor, beta: Number) -> tuple[Tensor, Tensor, Tensor]:
    """(J, s, limit): where Theorem 1's rule settles, J = beta s / (1 - s), if s starts below limit.

    s and limit = 1 - s are the roots of s (1 - s) = 2 q beta v^2; NaN if there are none, that is
    above 1/4: then the error grows without end.
    """
    s = (1 - torch.sqrt(1 - 8 * curvature * beta * drift**2)) / 2
    return beta * s / (1 - s), s, 1 - s
