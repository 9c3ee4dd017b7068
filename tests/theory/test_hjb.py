"""Equation (3), Theorem 1 and A.3 on the problem of `benchmarks/linear_quadratic.py`.

In square brackets: equations of the appendices, by their labels in the paper's source.
"""

import math
from functools import partial
from itertools import pairwise

import pytest
import torch

from benchmarks import linear_quadratic as lq
from benchmarks.linear_quadratic import Problem


def real(values) -> torch.Tensor:
    return torch.as_tensor(values, dtype=torch.float64)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


E = torch.linspace(-2, 2, 9, dtype=torch.float64) + 0.05
LEFT = real(3.0)
EFFORT, RATE = 0.4, 0.25
MOVING = Problem(curvature=1.7, speed=0.3, floor=0.2)
STILL = Problem(curvature=1.7)
TWO = Problem(curvature=real([0.05, 1.0]))  # a flat and a steep direction
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


def equation_4(beta: float, epsilon: float = 0.0):
    return partial(lq.equation_4_step, beta=beta, epsilon=epsilon)


def orders(errors) -> list[float]:
    """Return the order of convergence between each two errors, at steps that halve."""
    return [math.log2(first / second) for first, second in pairwise(errors)]


# The closed forms


def test_the_closed_forms_solve_the_equation():
    assert off(BEST, CONTROL, EFFORT).abs().max() < 1e-12
    assert off(FLOW, descent(MOVING, E)).abs().max() < 1e-12
    assert not BEST(E, real(0.0)).any() and not FLOW(E, real(0.0)).any()


def test_the_optimal_control_is_the_minimum_of_the_bracket_and_nothing_else_is():
    assert close(CONTROL, -lq.slope(BEST, E, LEFT) / EFFORT)
    for more in (-0.3, 0.01, 0.3):
        short = real(-EFFORT * more**2 / 2).expand(9)
        assert torch.allclose(off(BEST, CONTROL + more, EFFORT), short, atol=1e-12)


# Equations (2) and (3), A.1


def test_without_a_cost_of_moving_the_third_term_vanishes_and_the_bracket_has_no_minimum():
    free = partial(lq.optimal_value, MOVING, 1e-14)
    assert torch.allclose(free(E, LEFT), MOVING.floor * LEFT.expand(9), atol=1e-6)
    assert lq.slope(free, E, LEFT).abs().max() < 1e-6
    ends = [-off(FLOW, real(u).expand(9)) for u in (-1e3, 1e3)]
    assert torch.minimum(*ends).max() < -20


def test_an_additional_cost_of_the_new_task_puts_the_equation_off_by_just_that():
    """[1.9] counts [t, t + dt] twice: as J(t), and as the new task's share of J."""
    u, J_N = descent(MOVING, E), lq.cost(MOVING, E)  # J_N = J, say
    assert close(off(FLOW, u) - J_N, -J_N)
    # What solves the equation with J_N is the integral of J + J_N, not that of equation (2).
    assert (off(lambda e, left: 2 * FLOW(e, left), u) - J_N).abs().max() < 1e-12


def test_a_short_stretch_costs_j_dt_and_not_j():
    """[1.9] writes the integral of J over [t, t + dt] as J(t) + what the new task adds."""
    e, errors = real(1.0), []
    for dt in (0.04, 0.02, 0.01):
        later = path(MOVING, descent, e, 200, dt=dt / 200)[-1]
        stretch = FLOW(e, LEFT) - FLOW(later, LEFT - dt)
        errors.append((stretch - lq.cost(MOVING, e) * dt).abs())
        assert stretch < 0.05 * lq.cost(MOVING, e)  # and J alone is 20 times too much
    assert orders(errors) == pytest.approx([2, 2], abs=0.1)


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


def test_the_update_alpha_v_theta_climbs_if_v_theta_is_the_true_one():
    true = path(STILL, lambda problem, e: 0.2 * lq.slope(REST, e, LEFT), E, 5)[-1]
    printed = path(STILL, lambda problem, e: 0.02 * lq.proof_slope(problem, e), E, 5)[-1]
    assert (true.abs() > E.abs()).all() and (printed.abs() < E.abs()).all()


# Theorem 1


def test_v_falls_at_rate_j_along_any_rule_even_a_divergent_one():
    for rate in (RATE, -0.8):  # descends, climbs
        value, u = partial(lq.flow_value, MOVING, rate), lq.flow_step(MOVING, rate, E)
        by_left = torch.func.vmap(torch.func.grad(value, 1), (0, None))(E, LEFT)
        total = -by_left + lq.slope(value, E, LEFT) * (u - MOVING.speed)
        scale = float(by_left.abs().max())
        assert torch.allclose(total, -lq.cost(MOVING, E), atol=1e-12 * scale)
        # With theta and x held, V falls too: by the cost at the end, J(Gamma).
        end = path(MOVING, partial(lq.flow_step, rate=rate), E, 30_000, dt=1e-4)[-1]
        assert torch.allclose(by_left, lq.cost(MOVING, end), rtol=1e-3)
    assert lq.cost(MOVING, end).min() > 4 * lq.cost(MOVING, E).min()


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


def test_with_j_itself_as_lyapunov_function_a_bound_follows_in_continuous_time():
    """J' <= s - (1 - s) J / beta, on a cost that is not quadratic: the theorem, repaired."""
    beta, v, dt = 0.1, 0.12, 1e-3
    J, J_theta = (lambda e: e**4 / 4 + e**2 / 8), (lambda e: e**3 + e / 4)
    e = real([-1.4, -0.3, 0.4, 1.4])
    errors, worst = [e], (J_theta(e) * v).abs()
    for _ in range(4000):
        s = (J_theta(e) * v).abs()
        e = e + dt * (-(1 - s) * J(e) / (beta * J_theta(e)) - v)
        errors.append(e)
        worst = torch.maximum(worst, s)
    assert worst.max() < 0.5
    final = beta * worst / (1 - worst)
    t = dt * torch.arange(len(errors), dtype=torch.float64)[:, None]
    bound = final + (J(errors[0]) - final).clamp(min=0) * torch.exp(-(1 - worst) * t / beta)
    costs = J(torch.stack(errors))
    assert (costs <= bound * (1 + 0.02)).all() and (costs[-1] <= beta).all()


# Equation (4)


def test_equation_4_lowers_j_by_one_over_beta_until_it_overshoots():
    beta = 50.0
    y = real([100.0, 50.0, 15.0, 1 / 2, 1 / 4, 0.9 / 4, 0.1 / 4])  # beta J
    e = (2 * y / beta / 1.7) ** 0.5
    after = beta * lq.cost(STILL, e + lq.equation_4_step(STILL, beta, e))
    assert torch.allclose(after, (2 * y - 1) ** 2 / (4 * y), atol=1e-12)
    change = after - y
    assert float(change[0]) == pytest.approx(-1, rel=0.01)
    assert (change[:4] < 0).all() and change[4].abs() < 1e-11 and (change[5:] > 0).all()


@pytest.mark.parametrize("beta", [1.0, 20.0])
def test_equation_4_has_no_ultimate_bound_without_its_epsilon(beta):
    """z -> z - 1/z is Boole's map: after k updates J is about k / beta, however long it runs."""
    problem = Problem(2.0)
    J = lq.cost(problem, path(problem, equation_4(beta), normal(2000, seed=3), 3000))
    for k in (300, 1000, 3000):
        assert 0.6 < J[k].median() * beta / k < 1.5


# A.3


def test_the_printed_euler_step_loses_the_differences_and_one_over_dt_is_first_order():
    """[3.3] has 1/dt on J, so [3.4] has dt on the differences, where 1/dt belongs."""
    e, u, v = real(1.0), descent(MOVING, real(1.0)), MOVING.speed
    J, V, errors = lq.cost(MOVING, e), FLOW(e, LEFT), []
    H = J + lq.slope(FLOW, e, LEFT) * (u - v)
    for dt in (1.0, 0.04, 0.02, 0.01, 1e-4):
        by_theta, by_x = FLOW(e + u * dt, LEFT) - V, FLOW(e - v * dt, LEFT) - V
        euler, printed = J + (by_theta + by_x) / dt - H, J + (by_theta + by_x) * dt - H
        errors.append(float(euler.abs()))
        assert dt < 1 or close(euler, printed)
    assert orders(errors[1:4]) == pytest.approx([1, 1], abs=0.1)
    assert float(printed) == pytest.approx(float(J - H), rel=1e-4) and abs(J - H) > 0.5
    # From k to k + 1, V_t is in the difference too, and the sum is nothing.
    later = FLOW(e - v * dt, LEFT - dt) - V
    assert (J + (by_theta + later) / dt).abs() < 1e-3 * H.abs()


@pytest.mark.parametrize("through", ["constant", "first", "exact"])
@pytest.mark.parametrize("sign", [1, -1])
def test_third_term_against_autograd(through, sign):
    inner, zeta, q = 0.2, 3, MOVING.curvature
    theta = E.clone().requires_grad_()
    copy = theta if through == "exact" else theta.detach()
    for _ in range(zeta):
        copy = copy - inner * q * copy
    if through == "first":  # the gradient at theta_B, as if theta_B moved one to one with theta
        copy = copy + theta - theta.detach()
    J = partial(lq.cost, MOVING)
    total = J(theta) + sign * (J(theta) - J(copy))
    (gradient,) = torch.autograd.grad(total.sum(), theta)
    options = {"inner": inner, "zeta": zeta, "sign": sign, "through": through}
    assert close(lq.third_term_step(MOVING, 0.1, E, **options), -0.1 * gradient)


def test_the_true_difference_of_v_has_the_sign_of_the_difference_of_j():
    """[3.7] has V proportional to -J, so [3.8] turns the third term round."""
    ahead = E + descent(STILL, E)
    for value in (REST, partial(lq.optimal_value, STILL, EFFORT)):
        ratio = (value(ahead, LEFT) - value(E, LEFT)) / (lq.cost(STILL, ahead) - lq.cost(STILL, E))
        assert torch.allclose(ratio, ratio[0].expand(9)) and ratio[0] > 0
