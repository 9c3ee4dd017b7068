"""Equation (3), Theorem 1 and A.3 on the problem of `benchmarks/linear_quadratic.py`.

In square brackets: equations of the appendices, by their labels in the paper's source.
"""

from functools import partial

import pytest
import torch

from benchmarks import linear_quadratic as lq
from benchmarks.linear_quadratic import Problem


def real(values) -> torch.Tensor:
    return torch.as_tensor(values, dtype=torch.float64)


E = torch.linspace(-2, 2, 9, dtype=torch.float64) + 0.05
LEFT = real(3.0)
EFFORT, RATE = 0.4, 0.25
MOVING = Problem(curvature=1.7, speed=0.3, floor=0.2)
STILL = Problem(curvature=1.7)
FLOW = partial(lq.flow_value, MOVING, RATE)
REST = partial(lq.flow_value, STILL, RATE)
BEST = partial(lq.optimal_value, MOVING, EFFORT)
CONTROL = lq.optimal_control(MOVING, EFFORT, E, LEFT)
close = partial(torch.allclose, rtol=1e-12)


def descent(problem: Problem, e: torch.Tensor) -> torch.Tensor:
    return lq.flow_step(problem, RATE, e)


def off(value, control, effort: float = 0.0, problem: Problem = MOVING, left=LEFT) -> torch.Tensor:
    return lq.residual(problem, value, control, e=E, left=left, effort=effort)


def path(problem: Problem, rule, e: torch.Tensor, steps: int, *, dt: float = 1.0) -> torch.Tensor:
    return lq.simulate(problem, lambda e: rule(problem, e=e), e, steps, dt=dt)


def theorem(beta, power: int = 2):
    return partial(lq.theorem_step, beta=beta, power=power)


def test_the_closed_forms_solve_the_equation():
    assert off(BEST, CONTROL, EFFORT).abs().max() < 1e-12
    assert off(FLOW, descent(MOVING, E)).abs().max() < 1e-12
    assert not BEST(E, real(0.0)).any() and not FLOW(E, real(0.0)).any()


def test_the_optimal_control_is_the_minimum_of_the_bracket_and_nothing_else_is():
    assert close(CONTROL, -lq.slope(BEST, E, LEFT) / EFFORT)
    for more in (-0.3, 0.01, 0.3):
        short = real(-EFFORT * more**2 / 2).expand(9)
        assert torch.allclose(off(BEST, CONTROL + more, EFFORT), short, atol=1e-12)


# V_theta, A.2


def test_true_slope_at_rest_is_a_positive_multiple_of_the_costs_and_the_proofs_is_not():
    k = RATE * STILL.curvature
    J_theta, proof = STILL.curvature * E, lq.proof_slope(STILL, E)
    assert close(lq.slope(REST, E, LEFT), J_theta * -torch.expm1(-2 * k * LEFT) / (2 * k))
    assert torch.allclose(lq.slope(REST, E, real(1e-4)), 1e-4 * J_theta, rtol=1e-4)
    best = lq.slope(partial(lq.optimal_value, STILL, EFFORT), E, LEFT)
    assert (best / J_theta > 0).all()
    assert (proof / J_theta < 0).all()
    assert close(lq.proof_slope(STILL, 2 * E), 8 * proof)  # and grows with the cube of the error


def test_the_printed_derivative_is_negative_inside_the_ball_and_positive_outside():
    beta, e = 0.5, torch.linspace(-3.0, -0.05, 50, dtype=torch.float64)  # behind: moving costs
    problem = Problem(curvature=1.0, speed=0.05)
    J, J_theta = lq.cost(problem, e), problem.curvature * e
    rate = (1 - (J_theta * problem.speed).abs()) / (beta * J_theta**2)
    assert ((lq.proof_derivative(problem, rate, e) < 0) == (beta > J)).all()
    assert J.max() > 2 * beta and J.min() < beta / 2
    with_plus = lq.proof_derivative(problem, rate, e, printed=False)
    V_theta = lq.proof_slope(problem, e)
    assert close(with_plus, -(J + V_theta * rate * V_theta - V_theta * problem.speed))  # [2.2]
    assert (with_plus < 0).all()


def test_the_rule_is_a_share_of_polyaks_step_and_depends_on_the_unit_of_the_cost():
    """In a unit a thousand times smaller: a thousandth of the step, and s a thousandfold."""
    problem, beta = Problem(1.7, 0.01), 4.0
    share = (1 - 1.7 * E.abs() * 0.01) / beta
    assert close(lq.theorem_step(problem, beta, E), share * -lq.cost(problem, E) / (1.7 * E))
    ratio = lq.theorem_step(Problem(1.0), 4.0, E) / lq.theorem_step(Problem(1000.0), 4000.0, E)
    assert close(ratio, real(1000.0).expand(9))
    climbs = lq.theorem_step(Problem(1000.0, 0.01), 4000.0, E) * E > 0  # s > 1
    assert (climbs == (E.abs() > 0.1)).all()
    assert (lq.theorem_step(Problem(1.0, 0.01), 4.0, E) * E < 0).all()


def test_under_the_theorems_rule_j_ends_below_beta_if_s_stays_below_a_half():
    a, b, c = torch.rand(3, 200, 1, generator=torch.Generator().manual_seed(7)).double()
    q, beta = 10 ** (2 * a - 1), 10**b
    v = (0.2 * (0.1 + 0.9 * c) / (2 * q * beta)) ** 0.5  # 2 q beta v^2 below 0.2
    level, s, limit = lq.steady(q, v, beta)
    assert (level <= beta).all() and (s < 0.5).all()
    starts = torch.linspace(-0.98, 0.98, 8, dtype=torch.float64) * limit / (q * v)
    problem = Problem(q, v)
    J = lq.cost(problem, path(problem, theorem(beta), starts, 2500))
    assert (J[0].amax(1, keepdim=True) > level).all()
    assert torch.allclose(J[-1], level.expand(200, 8), rtol=1e-6)


def test_equation_4_lowers_j_by_one_over_beta_until_it_overshoots():
    beta = 50.0
    y = real([100.0, 50.0, 15.0, 1 / 2, 1 / 4, 0.9 / 4, 0.1 / 4])  # beta J
    e = (2 * y / beta / 1.7) ** 0.5
    after = beta * lq.cost(STILL, e + lq.equation_4_step(STILL, beta, e))
    assert torch.allclose(after, (2 * y - 1) ** 2 / (4 * y), atol=1e-12)
    change = after - y
    assert float(change[0]) == pytest.approx(-1, rel=0.01)
    assert (change[:4] < 0).all() and change[4].abs() < 1e-11 and (change[5:] > 0).all()
