"""Eq. (3), Theorem 1 and A.3 on a problem with closed forms.

In square brackets: equations of the appendices, by their labels in the paper's source.
"""

import math
from functools import partial

import pytest
import torch

from dpmcl.theory import linear_quadratic as lq
from dpmcl.theory.linear_quadratic import Problem


def real(values) -> torch.Tensor:
    return torch.as_tensor(values, dtype=torch.float64)


E = torch.linspace(-2, 2, 9, dtype=torch.float64) + 0.05
LEFT = real(3.0)
EFFORT = 0.4
RATE = 0.25
DRIFTING = Problem(curvature=1.7, drift=0.3, floor=0.2)
STILL = Problem(curvature=1.7)


def optimal(problem: Problem, effort: float = EFFORT):
    return partial(lq.optimal_value, problem, effort)


def flow(problem: Problem, rate: float = RATE):
    return partial(lq.flow_value, problem, rate)


def descent(problem: Problem, e: torch.Tensor) -> torch.Tensor:
    return lq.flow_step(problem, RATE, e)


# The closed forms


def test_the_closed_forms_solve_the_equation():
    u = lq.optimal_control(DRIFTING, EFFORT, E, LEFT)
    assert lq.residual(DRIFTING, optimal(DRIFTING), u, E, LEFT, EFFORT).abs().max() < 1e-12
    u = descent(DRIFTING, E)
    assert lq.residual(DRIFTING, flow(DRIFTING), u, E, LEFT).abs().max() < 1e-12


def test_the_optimal_control_is_the_minimum_of_the_bracket_and_nothing_else_is():
    u = lq.optimal_control(DRIFTING, EFFORT, E, LEFT)
    assert torch.allclose(u, -lq.slope(optimal(DRIFTING), E, LEFT) / EFFORT, rtol=1e-12)
    for off in (-0.3, 0.01, 0.3):
        short = lq.residual(DRIFTING, optimal(DRIFTING), u + off, E, LEFT, EFFORT)
        assert torch.allclose(short, real(-EFFORT * off**2 / 2).expand(9), atol=1e-12)


def test_the_optimal_value_agrees_with_dynamic_programming_on_a_grid():
    steps, near = 60, 80
    dt = float(LEFT) / steps
    grid = torch.linspace(-4, 4, 1601, dtype=torch.float64)
    # Each point may move to any of its neighbours; the control is what takes it there.
    u = torch.arange(-near, near + 1) * (grid[1] - grid[0]) / dt + DRIFTING.drift
    J, value = lq.cost(DRIFTING, grid), torch.zeros_like(grid)
    for _ in range(steps):
        ahead = torch.nn.functional.pad(value + J * dt / 2, (near, near), value=math.inf)
        value = J * dt / 2 + (EFFORT / 2 * u**2 * dt + ahead.unfold(0, len(u), 1)).amin(1)
    inside = grid.abs() < 2
    exact = lq.optimal_value(DRIFTING, EFFORT, grid, LEFT)
    assert ((value - exact).abs() / exact)[inside].max() < 0.003


def test_the_values_are_the_integrals_of_the_cost():
    dt, n = 1e-3, 3000
    path = lq.simulate(DRIFTING, partial(descent, DRIFTING), E, n, dt)
    total = torch.trapezoid(lq.cost(DRIFTING, path), dx=dt, dim=0)
    assert torch.allclose(total, flow(DRIFTING)(E, LEFT), rtol=2e-3)
    e, total = E, torch.zeros(9, dtype=torch.float64)
    for k in range(n):
        u = lq.optimal_control(DRIFTING, EFFORT, e, LEFT - k * dt)
        total = total + (lq.cost(DRIFTING, e) + EFFORT / 2 * u**2) * dt
        e = e + (u - DRIFTING.drift) * dt
    assert torch.allclose(total, optimal(DRIFTING)(E, LEFT), rtol=5e-3)


# Equations (2) and (3), A.1


def test_with_free_parameters_as_in_equation_2_the_third_term_vanishes():
    free = optimal(DRIFTING, 1e-14)
    assert torch.allclose(free(E, LEFT), DRIFTING.floor * LEFT.expand(9), atol=1e-6)
    assert lq.slope(free, E, LEFT).abs().max() < 1e-6


def test_the_bracket_of_equation_3_has_no_minimum_without_a_cost_of_moving():
    ends = []
    for u in (-1e3, 1e3):
        moved = real(u).expand(9)
        ends.append(-lq.residual(DRIFTING, flow(DRIFTING), moved, E, LEFT))
    assert torch.minimum(*ends).max() < -20


def test_an_additional_cost_of_the_new_task_puts_the_equation_off_by_just_that():
    """[1.9] counts [t, t + dt] twice: as J(t), and as the new task's share of J."""
    u, new = descent(DRIFTING, E), lq.cost(DRIFTING, E)  # J_N = J, say
    once = lq.residual(DRIFTING, flow(DRIFTING), u, E, LEFT) - new
    assert torch.allclose(once, -new, rtol=1e-12)
    # What solves the equation with J_N is the integral of J + J_N, not that of equation 2.
    twice = lq.residual(DRIFTING, lambda e, left: 2 * flow(DRIFTING)(e, left), u, E, LEFT) - new
    assert twice.abs().max() < 1e-12


def test_a_short_stretch_costs_j_dt_and_not_j():
    """[1.9] writes the integral of J over [t, t + dt] as J(t) + what the new task adds."""
    e = real(1.0)
    value = flow(DRIFTING)
    errors = []
    for dt in (0.04, 0.02, 0.01):
        later = lq.simulate(DRIFTING, partial(descent, DRIFTING), e, 200, dt / 200)[-1]
        stretch = value(e, LEFT) - value(later, LEFT - dt)
        errors.append((stretch - lq.cost(DRIFTING, e) * dt).abs())
        assert stretch < 0.05 * lq.cost(DRIFTING, e)  # and J alone is 20 times too much
    orders = [math.log2(errors[i] / errors[i + 1]) for i in (0, 1)]
    assert orders == pytest.approx([2, 2], abs=0.1)


# V_theta, A.2


def test_true_slope_without_drift_is_a_positive_multiple_of_the_costs():
    k = RATE * STILL.curvature
    factor = -torch.expm1(-2 * k * LEFT) / (2 * k)
    true = lq.slope(flow(STILL), E, LEFT)
    assert torch.allclose(true, STILL.curvature * E * factor, rtol=1e-12)
    short = lq.slope(flow(STILL), E, real(1e-4))
    assert torch.allclose(short, 1e-4 * STILL.curvature * E, rtol=1e-4)


def test_the_proofs_slope_has_the_other_sign_and_another_power():
    for value in (optimal(STILL), flow(STILL)):
        true = lq.slope(value, E, LEFT)
        assert (true * lq.proof_slope(STILL, E) < 0).all()
        assert torch.allclose(lq.slope(value, 2 * E, LEFT), 2 * true, rtol=1e-12)
    assert torch.allclose(lq.proof_slope(STILL, 2 * E), 8 * lq.proof_slope(STILL, E))


def test_with_drift_it_pays_to_lead():
    """Between the target and that lead, V_theta and J_theta have opposite signs."""
    k = RATE * DRIFTING.curvature
    lead = DRIFTING.drift / k * torch.tanh(k * LEFT / 2)
    at = lq.slope(flow(DRIFTING), torch.stack([0 * lead, lead / 2, lead, 2 * lead]), LEFT)
    assert at[0] < 0 and at[1] < 0 and at[2].abs() < 1e-12 and at[3] > 0


def test_the_update_alpha_v_theta_climbs_if_v_theta_is_the_true_one():
    true = lq.simulate(STILL, lambda e: 0.2 * lq.slope(flow(STILL), e, LEFT), E, 5)
    printed = lq.simulate(STILL, lambda e: 0.02 * lq.proof_slope(STILL, e), E, 5)
    assert (true[-1].abs() > E.abs()).all() and (printed[-1].abs() < E.abs()).all()


@pytest.mark.parametrize(("sign", "grow"), [(1, torch.tan), (-1, torch.tanh)])
def test_a_rule_of_its_own_slope(sign, grow):
    """theta' = +alpha V_theta with its own V has infinite cost from a finite horizon on."""
    q, alpha = STILL.curvature, 0.3
    pace = (2 * alpha * q) ** 0.5

    def value(e, left):
        return (q / (2 * alpha)) ** 0.5 * grow(pace * left) * e**2 / 2

    left = real(0.9 * math.pi / 2 / pace)
    u = sign * alpha * lq.slope(value, E, left)
    assert lq.residual(STILL, value, u, E, left).abs().max() < 1e-11
    if sign > 0:
        assert value(real(1.0), real(0.999999 * math.pi / 2 / pace)) > 1e5


def test_descent_along_the_optimal_slope_is_optimal_for_effort_one_over_alpha():
    u = -RATE * lq.slope(optimal(DRIFTING, 1 / RATE), E, LEFT)
    assert torch.allclose(u, lq.optimal_control(DRIFTING, 1 / RATE, E, LEFT), rtol=1e-12)


# Theorem 1


def test_v_falls_at_rate_j_along_any_rule_even_a_divergent_one():
    for rate in (RATE, -0.8):  # descends, climbs
        value, u = flow(DRIFTING, rate), lq.flow_step(DRIFTING, rate, E)
        by_left = torch.func.vmap(torch.func.grad(value, 1), (0, None))(E, LEFT)
        total = -by_left + lq.slope(value, E, LEFT) * (u - DRIFTING.drift)
        scale = by_left.abs().max()
        assert torch.allclose(total, -lq.cost(DRIFTING, E), atol=1e-12 * float(scale))
        assert (by_left > 0).all()  # with theta and x held, V falls too
    end = lq.simulate(DRIFTING, partial(lq.flow_step, DRIFTING, -0.8), E, 3000, 1e-3)[-1]
    assert lq.cost(DRIFTING, end).min() > 4 * lq.cost(DRIFTING, E).min()


def test_the_partial_derivative_is_minus_the_cost_at_the_end():
    left = LEFT.clone().requires_grad_()
    (by_left,) = torch.autograd.grad(flow(DRIFTING)(real(1.0), left), left)
    n = 30_000
    path = lq.simulate(DRIFTING, partial(descent, DRIFTING), real(1.0), n, float(LEFT) / n)
    assert by_left == pytest.approx(lq.cost(DRIFTING, path[-1]).item(), rel=1e-3)


def test_the_printed_derivative_is_negative_inside_the_ball_and_positive_outside():
    beta, e = 0.5, torch.linspace(-3.0, -0.05, 50, dtype=torch.float64)  # behind: drift costs
    problem = Problem(curvature=1.0, drift=0.05)
    J, J_theta = lq.cost(problem, e), problem.curvature * e
    rate = (1 - (J_theta * problem.drift).abs()) / (beta * J_theta**2)
    printed = lq.proof_derivative(problem, rate, e)
    assert ((printed < 0) == (beta > J)).all()
    assert J.max() > 2 * beta and J.min() < beta / 2
    assert (lq.proof_derivative(problem, rate, e, printed=False) < 0).all()


def test_the_middle_term_follows_from_a_2_2_with_a_plus():
    problem, rate = Problem(curvature=1.7, drift=0.3), real(0.2)
    V_theta = lq.proof_slope(problem, E)
    by_hand = -(lq.cost(problem, E) + V_theta * rate * V_theta - V_theta * problem.drift)
    assert torch.allclose(lq.proof_derivative(problem, rate, E, printed=False), by_hand)
    assert not torch.allclose(lq.proof_derivative(problem, rate, E), by_hand)


def test_the_rule_is_a_share_of_polyaks_step():
    problem, beta = Problem(1.7, 0.01), 4.0
    s = 1.7 * E.abs() * 0.01
    polyak = -lq.cost(problem, E) / (1.7 * E)
    assert torch.allclose(lq.theorem_step(problem, beta, E), (1 - s) / beta * polyak)
    assert torch.allclose(lq.theorem_step(problem, beta, E), -(1 - s) / (2 * beta) * E)


def test_the_rule_depends_on_the_unit_of_the_cost():
    """In a unit a thousand times smaller: a thousandth of the step, and s a thousandfold."""
    small, big = Problem(1.0, 0.0), Problem(1000.0, 0.0)
    ratio = lq.theorem_step(small, 4.0, E) / lq.theorem_step(big, 4000.0, E)
    assert torch.allclose(ratio, real(1000.0).expand(9))
    climbs = lq.theorem_step(Problem(1000.0, 0.01), 4000.0, E) * E > 0  # s > 1
    assert (climbs == (E.abs() > 0.1)).all()
    assert (lq.theorem_step(Problem(1.0, 0.01), 4.0, E) * E < 0).all()


def test_under_the_theorems_rule_j_ends_below_beta_if_s_stays_below_a_half():
    a, b, c = torch.rand(3, 200, 1, generator=torch.Generator().manual_seed(7)).double()
    q, beta = 10 ** (2 * a - 1), 10**b
    v = (0.2 * (0.1 + 0.9 * c) / (2 * q * beta)) ** 0.5  # 2 q beta v^2 below 0.2
    level, s, limit = lq.steady(q, v, beta)
    assert (level <= beta).all() and (s < 0.5).all()
    problem = Problem(q, v)
    starts = torch.linspace(-0.98, 0.98, 8, dtype=torch.float64) * limit / (q * v)
    path = lq.simulate(problem, partial(lq.theorem_step, problem, beta), starts, 2500)
    J = lq.cost(problem, path)
    assert (J[0].amax(1, keepdim=True) > level).all()
    assert torch.allclose(J[-1], level.expand(200, 8), rtol=1e-6)


def test_the_bound_is_lost_where_s_starts_beyond_the_limit_or_the_drift_is_too_fast():
    q, v, beta = real(1.0), real(0.1), 5.0
    problem, (_, _, limit) = Problem(q, v), lq.steady(q, v, beta)
    start = real([-1.02 * limit / (q * v)])
    path = lq.simulate(problem, partial(lq.theorem_step, problem, beta), start, 400)
    assert (lq.cost(problem, path) > 100 * beta).any()
    assert all(x.isnan() for x in lq.steady(q, real(0.2), beta))
    fast = Problem(q, 0.2)  # 2 q beta v^2 = 0.4
    path = lq.simulate(fast, partial(lq.theorem_step, fast, beta), real([0.1]), 400)
    assert (lq.cost(fast, path) > 100 * beta).any()


def test_with_j_itself_as_lyapunov_function_a_bound_follows_in_continuous_time():
    """J' <= s - (1 - s) J / beta, on a cost that is not quadratic: the theorem, repaired."""
    beta, v, dt = 0.1, 0.12, 1e-3
    J, J_theta = (lambda e: e**4 / 4 + e**2 / 8), (lambda e: e**3 + e / 4)
    e = real([-1.4, -0.3, 0.4, 1.4])
    path, worst = [e], (J_theta(e) * v).abs()
    for _ in range(4000):
        s = (J_theta(e) * v).abs()
        e = e + dt * (-(1 - s) * J(e) / (beta * J_theta(e)) - v)
        path.append(e)
        worst = torch.maximum(worst, s)
    assert worst.max() < 0.5
    final = beta * worst / (1 - worst)
    t = dt * torch.arange(len(path), dtype=torch.float64)[:, None]
    bound = final + (J(path[0]) - final).clamp(min=0) * torch.exp(-(1 - worst) * t / beta)
    costs = torch.stack([J(p) for p in path])
    assert (costs <= bound * (1 + 0.02)).all() and (costs[-1] <= beta).all()


def test_a_threshold_below_what_the_cost_can_be_is_not_reached():
    """m > beta: s < 1 and |J_theta| > 0 hold, J <= beta cannot."""
    problem, beta = Problem(1.0, 0.0, floor=2.0), 1.0
    path = lq.simulate(problem, partial(lq.theorem_step, problem, beta), E, 2000)
    assert lq.cost(problem, path).min() >= 2 * beta
    assert lq.cost(problem, path[-500:]).max() > 20 * beta  # steps grow without bound near theta*


def test_in_updates_a_threshold_below_a_quarter_diverges():
    """e -> e (1 - 1 / (2 beta)) in whatever unit the cost is: beta is not a free threshold."""
    for beta, falls in ((0.2, False), (0.3, True)):
        path = lq.simulate(STILL, partial(lq.theorem_step, STILL, beta), E, 60)
        assert ((path[-1].abs() < E.abs()) == falls).all()
    slow = lq.simulate(STILL, partial(lq.theorem_step, STILL, 0.2), E, 4000, 0.01)
    assert (slow[-1].abs() < 1e-3).all()  # in continuous time it does what it should


@pytest.mark.parametrize("power", [1, 2])
def test_the_exponent_decides_what_is_bounded(power):
    """|J_theta| as in the theorem bounds J |J_theta|, its square, as in the proof, J."""
    q, v, beta = real([1.0, 5.0, 0.2]), real([0.02, 0.01, 0.02]), real([4.0, 2.0, 3.0])
    problem = Problem(q, v)
    step = partial(lq.theorem_step, problem, beta, power=power)
    e = lq.simulate(problem, step, real([[-0.5], [0.5]]).expand(2, 3), 4000)[-100:]
    s = (q * e * v).abs()
    held = lq.cost(problem, e) * (q * e).abs() ** (2 - power)
    assert torch.allclose(held, beta * s / (1 - s), rtol=1e-5)
    if power == 1:
        assert torch.allclose(lq.cost(problem, e), beta * v / (1 - s), rtol=1e-5)


# What Polyak's bound says of a step


def test_polyaks_bound_is_on_the_distance_to_a_minimiser_and_not_on_the_cost():
    q, e = 1.7, 1.0
    decrease = 3.8 * lq.cost(STILL, real(e))  # alpha J_theta^2, alpha = 1.9 / q
    after = real(e) - decrease / (q * e)
    assert lq.cost(STILL, after) / lq.cost(STILL, real(e)) == pytest.approx(0.81)

    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(1000, 3, generator=generator, dtype=torch.float64)
    curvature = torch.rand(1000, 3, generator=generator, dtype=torch.float64)
    share = torch.rand(1000, generator=generator, dtype=torch.float64)
    J_theta, J = curvature * theta, (curvature * theta**2).sum(1) / 2  # J* = 0 at theta = 0
    alpha = share * 2 * J / J_theta.square().sum(1)
    assert ((theta - alpha[:, None] * J_theta).norm(dim=1) <= theta.norm(dim=1) + 1e-12).all()

    floor = Problem(curvature=1.7, floor=3.0)  # J* = 3: within 2 J, but beyond 2 (J - J*)
    after = real(e) - 1.9 * lq.cost(floor, real(e)) / (q * e)
    assert abs(after) > e and lq.cost(floor, after) > lq.cost(floor, real(e))


# Equation (4)


def test_equation_4_lowers_j_by_one_over_beta_until_it_overshoots():
    beta = 50.0
    J = real([2.0, 1.0, 0.3, 1 / (2 * beta), 1 / (4 * beta), 0.9 / (4 * beta), 0.1 / (4 * beta)])
    e = (2 * J / 1.7) ** 0.5
    after = e + lq.equation_4_step(STILL, beta, e)
    y = beta * J
    assert torch.allclose(beta * lq.cost(STILL, after), (2 * y - 1) ** 2 / (4 * y), atol=1e-12)
    change = lq.cost(STILL, after) - J
    assert change[0].item() == pytest.approx(-1 / beta, rel=0.01)
    assert (change[:4] < 0).all() and change[4].abs() < 1e-12 and (change[5:] > 0).all()


def median_cost(problem: Problem, beta: float, steps: int, epsilon: float = 0.0) -> torch.Tensor:
    """Median of J over 2,000 starts after each step."""
    generator = torch.Generator().manual_seed(3)
    e = torch.randn(2000, generator=generator, dtype=torch.float64)
    step = partial(lq.equation_4_step, problem, beta, epsilon=epsilon)
    return lq.cost(problem, lq.simulate(problem, step, e, steps)).median(1).values


@pytest.mark.parametrize("beta", [1.0, 20.0])
def test_equation_4_has_no_ultimate_bound_without_its_epsilon(beta):
    """z -> z - 1/z is Boole's map: after k updates J is about k / beta, however long it runs."""
    J = median_cost(Problem(2.0), beta, 3000)
    for k in (300, 1000, 3000):
        assert 0.6 < J[k] * beta / k < 1.5


def test_equation_4s_ultimate_bound_is_its_epsilons():
    q, beta, epsilon = 2.0, 10.0, 0.02
    problem = Problem(q)
    e = torch.randn(500, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    step = partial(lq.equation_4_step, problem, beta, epsilon=epsilon)
    J = lq.cost(problem, lq.simulate(problem, step, e, 6000))[-2000:].max()
    assert 0.9 * q / (8 * beta * epsilon) < J <= q / (8 * beta * epsilon)
    step = partial(lq.equation_4_step, problem, beta, epsilon=0.51 * q)  # large enough: it settles
    assert lq.cost(problem, lq.simulate(problem, step, e, 6000))[-1].max() < 1e-12


def test_with_drift_equation_4_loses_the_target_for_good():
    """Beyond an error of 1 / (q beta v) behind, the drift is faster than the step."""
    q, beta, v = 1.0, 10.0, 0.05
    problem = Problem(q, v)
    e = 0.3 * torch.randn(500, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    path = lq.simulate(problem, partial(lq.equation_4_step, problem, beta), e, 4000)
    lost = path < -1 / (q * beta * v)
    assert lost[:20].float().mean() < 0.3 and lost[-1].float().mean() > 0.9
    assert (lost[1:] >= lost[:-1]).all()  # no way back
    kept = lq.simulate(problem, partial(lq.theorem_step, problem, beta), e, 4000)
    assert lq.cost(problem, kept[-1]).max() <= beta


# A.3


def hamiltonians(dt: float) -> dict[str, torch.Tensor]:
    """Error of each discrete form of H = J + V_theta theta' + V_x x', at e = 1."""
    e, value = real([1.0]), flow(DRIFTING)
    u, v = descent(DRIFTING, e), DRIFTING.drift
    J, V = lq.cost(DRIFTING, e), value(e, LEFT)
    exact = J + lq.slope(value, e, LEFT) * (u - v)
    by_theta, by_x = value(e + u * dt, LEFT) - V, value(e - v * dt, LEFT) - V
    later = value(e - v * dt, LEFT - dt) - V
    return {
        "exact": exact,
        "euler": J + (by_theta + by_x) / dt - exact,
        "printed": J + dt * (by_theta + by_x) - exact,
        "with time": J + (by_theta + later) / dt,
    }


def test_the_euler_step_is_first_order_with_one_over_dt_on_the_differences():
    errors = [hamiltonians(dt)["euler"].abs().item() for dt in (0.04, 0.02, 0.01)]
    assert [math.log2(errors[i] / errors[i + 1]) for i in (0, 1)] == pytest.approx([1, 1], abs=0.1)


def test_the_printed_euler_step_loses_the_differences_as_dt_goes_to_zero():
    """[3.3] has 1/dt on J, so [3.4] has dt on the differences, where 1/dt belongs."""
    found = hamiltonians(1e-3)
    missing = lq.cost(DRIFTING, real([1.0])) - found["exact"]
    assert found["printed"] == pytest.approx(missing.item(), rel=1e-4) and missing.abs() > 0.5
    at_one = hamiltonians(1.0)
    assert torch.allclose(at_one["printed"], at_one["euler"])  # the same at dt = 1


def test_a_difference_from_k_to_k_plus_1_holds_v_t_too_and_the_sum_is_nothing():
    assert hamiltonians(1e-4)["with time"].abs() < 1e-3 * hamiltonians(1e-4)["exact"].abs()


def test_the_term_that_is_set_to_zero_is_nearly_the_whole_slope():
    """[3.6] drops V(k + 1; theta(k)) and keeps V(k; theta(k)); 1/dt then blows up alone."""
    dt, value = 0.05, flow(STILL)
    now, next_ = lq.slope(value, E, LEFT), lq.slope(value, E, LEFT - dt)
    assert (next_ / now > 0.98).all()

    def kept(dt: float) -> torch.Tensor:
        f = 1 - dt * RATE * STILL.curvature
        change = f * lq.slope(value, f * E, LEFT) - now
        return STILL.curvature * E / dt + change

    assert (kept(0.05) / now > 10).all() and (kept(0.0005) / now > 1000).all()


def test_at_the_optimum_the_bracket_is_flat_in_the_control_and_not_in_theta():
    """[3.5] sets the derivative by theta(k), a state, to zero."""
    e = E.clone().requires_grad_()
    left = real(0.5)
    u = lq.optimal_control(DRIFTING, EFFORT, E, left).requires_grad_()
    V_theta = lq.slope(optimal(DRIFTING), E, left)
    fixed = lq.cost(DRIFTING, e) + EFFORT / 2 * u**2
    # V_theta's own derivative by theta is the Riccati solution.
    pace = (DRIFTING.curvature / EFFORT) ** 0.5
    P = (DRIFTING.curvature * EFFORT) ** 0.5 * torch.tanh(pace * left)
    H = fixed + (V_theta + P * (e - E)) * (u - DRIFTING.drift)
    by_e, by_u = torch.autograd.grad(H.sum(), (e, u))
    assert by_u.abs().max() < 1e-12
    assert by_e.abs().median() > 0.3


@pytest.mark.parametrize("through", ["constant", "first", "exact"])
@pytest.mark.parametrize("sign", [1, -1])
def test_third_term_against_autograd(through, sign):
    inner, zeta, q = 0.2, 3, DRIFTING.curvature
    theta = E.clone().requires_grad_()
    copy = theta if through == "exact" else theta.detach().requires_grad_()
    moved = copy
    for _ in range(zeta):
        moved = moved - inner * q * moved
    if through == "first":  # the gradient at theta_B, as if theta_B moved one to one with theta
        moved = moved.detach() + theta - theta.detach()
    if through == "constant":
        moved = moved.detach()
    total = lq.cost(DRIFTING, theta) + sign * (lq.cost(DRIFTING, theta) - lq.cost(DRIFTING, moved))
    (gradient,) = torch.autograd.grad(total.sum(), theta)
    step = lq.third_term_step(DRIFTING, 0.1, E, inner, zeta, sign, through)
    assert torch.allclose(step, -0.1 * gradient, rtol=1e-12)


def test_the_true_difference_of_v_has_the_sign_of_the_difference_of_j():
    """[3.7] has V proportional to -J, so [3.8] turns the third term round."""
    ahead = E + descent(STILL, E)
    for value in (flow(STILL), optimal(STILL)):
        ratio = (value(ahead, LEFT) - value(E, LEFT)) / (lq.cost(STILL, ahead) - lq.cost(STILL, E))
        assert torch.allclose(ratio, ratio[0].expand(9)) and ratio[0] > 0


TWO = Problem(curvature=real([0.05, 1.0]))  # a flat and a steep direction


def test_the_other_sign_turns_the_step_towards_the_optimal_control():
    generator = torch.Generator().manual_seed(0)
    e = torch.randn(2000, 2, generator=generator, dtype=torch.float64)
    best = lq.optimal_control(TWO, 1.0, e, real(10.0))
    cosine = partial(torch.nn.functional.cosine_similarity, best)
    plain = cosine(lq.flow_step(TWO, 1.0, e)).mean()
    for inner, zeta in ((0.05, 2), (0.1, 1), (0.1, 5), (0.3, 1)):
        with_sign = [
            cosine(lq.third_term_step(TWO, 1.0, e, inner, zeta, sign)).mean() for sign in (1, -1)
        ]
        assert with_sign[0] < plain < with_sign[1]
    far = lq.third_term_step(TWO, 1.0, e, 0.3, 20, -1)  # the steep direction is left to theta_B
    assert cosine(far).mean() < 0.5


@pytest.mark.parametrize("drift", [0.0, 0.02])
def test_printed_sign_wins_at_an_equal_small_rate_and_loses_at_each_ones_best(drift):
    problem = Problem(TWO.curvature, drift)
    rates = torch.arange(1, 60, dtype=torch.float64)[:, None] / 20
    start = torch.ones(59, 2, dtype=torch.float64)
    found = {}
    for sign in (1, 0, -1):
        path = lq.simulate(problem, partial(third, TWO, 0.1, 5, sign, rates), start, 200)
        found[sign] = lq.cost(problem, path).sum((0, 2)).nan_to_num(math.inf)
    equal = {sign: total[5] for sign, total in found.items()}  # rate 0.3
    assert equal[1] < equal[0] < equal[-1]
    assert found[1].min() > found[0].min() > found[-1].min()


def third(problem, inner, zeta, sign, rate, e):
    return lq.third_term_step(problem, rate, e, inner, zeta, sign)


def test_printed_sign_climbs_where_the_copy_gets_worse():
    """f^2 > 2: a worse copy pays more than theta's own cost. The other sign never climbs."""
    inner = 2.5 / STILL.curvature
    e = lq.simulate(STILL, partial(third, STILL, inner, 1, 1, 0.1), E, 50)[-1]
    assert (e.abs() > E.abs()).all()
    e = lq.simulate(STILL, partial(third, STILL, inner, 1, -1, 0.1), E, 50)[-1]
    assert (e.abs() < E.abs()).all()
