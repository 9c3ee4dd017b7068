"""The terms of equation (3): against finite differences, and against formulas written out here."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from conftest import moving_stream, tiny_stream, tiny_task
from dpmcl.core.batch import Batch, join
from dpmcl.core.model import Model
from dpmcl.core.tree import at, leaves, stack, tree_map
from dpmcl.methods.dpmcl import DPMCL
from dpmcl.optimisers import _optimiser as optim
from dpmcl.theory import stability, terms

KINDS = {"classification": tiny_stream, "regression": moving_stream}
KEYS = torch.tensor([[1, 2], [3, 4]])
STEP = 1e-5
each_model = pytest.mark.parametrize(
    ("kind", "gate"), [(kind, gate) for kind in KINDS for gate in (None, "features", "outputs")]
)
each_space = pytest.mark.parametrize("space", ["inputs", "features"])


def model(kind="regression", gate=None) -> Model:
    """Smooth, so that finite differences can be trusted."""
    stream = KINDS[kind]()

    def network():
        h = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh())
        return h, nn.Sequential(nn.Linear(4, 5), nn.Softplus(), nn.Linear(5, stream.outputs))

    example = stream.example(torch.float64)
    plain = Model.build(network, kind, example, stream.outputs, torch.float64)
    return plain.gated(gate) if gate else plain


def rows(kind: str, seed: int, weights: list[float]) -> Batch:
    stream, n = KINDS[kind](), len(weights)
    row = torch.randperm(len(stream.x), generator=torch.Generator().manual_seed(seed))[:n]
    batch = stream.batch(row, torch.tensor(weights), row * 0, torch.float64)
    return batch._replace(w=torch.tensor(weights, dtype=torch.float64))


def b_N(kind="regression") -> Batch:
    return rows(kind, 0, [1.0, 0.5, 1.0, 1.0, 0.25])


def b_P(kind="regression") -> Batch:
    return rows(kind, 1, [1.0, 1.0, 0.0, 0.125])


def absent(batch: Batch) -> Batch:
    return batch._replace(w=torch.zeros_like(batch.w))


def noise(like, seed: int):
    """A random tree of the same form."""
    generator = torch.Generator().manual_seed(seed)
    return tree_map(
        lambda leaf: torch.randn(leaf.shape, generator=generator, dtype=torch.float64), like
    )


def shifted(theta, by, much: float):
    return tree_map(lambda p, d: p + much * d, theta, by)


def slope(of, along: float = STEP) -> float:
    """The central difference of a function of one number, at 0."""
    return float((of(along) - of(-along)) / (2 * along))


def moved_cost(net: Model, theta, new: Batch, past: Batch, dx, dy, space: str):
    """J = J_N + J_P where b_N's rows, or what g sees of them, lie elsewhere."""
    if space == "inputs":
        new = new._replace(x=new.x + dx)
    seen = net.seen(theta, new.x)
    seen = seen + dx if space == "features" else seen
    y = new.y + dy if new.y.is_floating_point() else new.y
    losses = net.losses(net.answer(theta, seen, new.x), y)
    return (losses * new.w).sum() / new.w.sum() + net.cost(theta, past)


# Costs and gradients


@each_model
def test_costs_are_the_models_own_on_each_batch(kind, gate):
    net, new, past = model(kind, gate), b_N(kind), b_P(kind)
    theta = net.init(3)
    found = terms.costs(net, theta, new, past)
    both = join(past, new)
    for value, batch in zip(found, (new, past, both), strict=True):
        torch.testing.assert_close(value, net.cost(theta, batch), rtol=1e-13, atol=0)
    for space in ("inputs", "features"):
        again = terms.sensitivity(net, theta, new, past, space).costs
        torch.testing.assert_close(torch.stack(again), torch.stack(found), rtol=1e-13, atol=0)


@each_model
def test_j_theta_is_the_slope_by_each_parameter(kind, gate):
    net, new, past = model(kind, gate), b_N(kind), b_P(kind)
    theta = net.init(3)
    found = terms.sensitivity(net, theta, new, past).J_theta
    assert (
        found.keys() == theta.keys() == {"representation", "prediction", *(["gate"] * bool(gate))}
    )
    generator = torch.Generator().manual_seed(0)
    for part, parameters in theta.items():
        for name, leaf in parameters.items():
            i = int(torch.randint(leaf.numel(), (), generator=generator))
            unit = torch.zeros(leaf.numel(), dtype=torch.float64)
            unit[i] = 1
            unit = unit.view_as(leaf)

            def J(much, part=part, name=name, unit=unit):
                moved = {**theta[part], name: theta[part][name] + much * unit}
                there = {**theta, part: moved}
                return net.cost(there, new) + net.cost(there, past)

            value = float(found[part][name].flatten()[i])
            assert value == pytest.approx(slope(J), rel=1e-6, abs=1e-9), (part, name)


@each_space
@each_model
def test_j_x_and_j_y_are_the_slopes_by_each_entry(kind, gate, space):
    net, new, past = model(kind, gate), b_N(kind), b_P(kind)
    theta = net.init(3)
    found = terms.sensitivity(net, theta, new, past, space)
    like = net.seen(theta, new.x) if space == "features" else new.x
    assert found.J_x.shape == like.shape
    assert found.J_y.shape == new.y.shape
    zero_x, zero_y = torch.zeros_like(like), torch.zeros_like(new.y, dtype=torch.float64)
    for i in range(like.numel()):
        unit = torch.zeros(like.numel(), dtype=torch.float64)
        unit[i] = 1
        dx = unit.view_as(like)
        numeric = slope(lambda m, d=dx: moved_cost(net, theta, new, past, m * d, zero_y, space))
        assert float(found.J_x.flatten()[i]) == pytest.approx(numeric, rel=1e-6, abs=1e-9)
    assert bool((found.J_x != 0).any())
    if kind == "classification":
        assert not found.J_y.any()
        return
    for i in range(new.y.numel()):
        unit = torch.zeros(new.y.numel(), dtype=torch.float64)
        unit[i] = 1
        dy = unit.view_as(new.y)
        numeric = slope(lambda m, d=dy: moved_cost(net, theta, new, past, zero_x, m * d, space))
        assert float(found.J_y.flatten()[i]) == pytest.approx(numeric, rel=1e-6, abs=1e-9)
    assert bool((found.J_y != 0).any())


@each_space
@each_model
def test_the_directional_terms_are_slopes_of_j_along_the_direction(kind, gate, space):
    net, new, past = model(kind, gate), b_N(kind), b_P(kind)
    theta = net.init(3)
    found = terms.sensitivity(net, theta, new, past, space)
    dtheta = noise(theta, 0)
    numeric = slope(
        lambda m: (
            net.cost(shifted(theta, dtheta, m), new) + net.cost(shifted(theta, dtheta, m), past)
        )
    )
    assert float(terms.along(found.J_theta, dtheta)) == pytest.approx(numeric, rel=1e-6)

    dx, dy = noise(found.J_x, 1), noise(found.J_y, 2)
    numeric = slope(lambda m: moved_cost(net, theta, new, past, m * dx, m * dy, space))
    nothing = torch.zeros(())
    read = stability.reading(found, theta, dtheta, (dx, dy), nothing + 1, nothing, nothing, nothing)
    assert float(read.drift) == pytest.approx(numeric, rel=1e-6)
    assert float(read.decrease) == -float(terms.along(found.J_theta, dtheta))


def test_features_move_by_what_g_sees_of_the_moved_rows():
    """Features are what g sees: behind a gate, where there is one."""
    net, new = model("regression", "features"), b_N()
    theta, later = net.init(3), new._replace(x=new.x + 0.1, y=new.y - 0.2)
    dx, dy = terms.moved(net, theta, new, later, "features")
    h = net.features(theta["representation"], later.x)
    gate = torch.sigmoid(net._apply("gate", theta["gate"], later.x, None))
    torch.testing.assert_close(dx, h * gate - net.seen(theta, new.x))
    torch.testing.assert_close(dy, torch.full_like(new.y, -0.2))
    assert torch.equal(terms.moved(net, theta, new, later, "inputs")[0], later.x - new.x)
    labelled = b_N("classification")
    dx, dy = terms.moved(
        model("classification"), theta, labelled, labelled._replace(x=labelled.x + 1), "exact"
    )
    assert dy.dtype == torch.float64
    assert not dy.any()


# A reading


def test_a_reading_is_the_formulas_written_out():
    net, new, past = model(), b_N(), b_P()
    theta = net.init(3)
    found = terms.sensitivity(net, theta, new, past)
    dtheta = shifted(tree_map(torch.zeros_like, theta), found.J_theta, -0.3)
    later = new._replace(x=new.x + 0.1, y=new.y + 0.05)
    ahead = terms.look_ahead(net, theta, new, past, optim.build("sgd", 0.1), 3)
    read = stability.reading(
        found,
        theta,
        dtheta,
        terms.moved(net, theta, new, later, "inputs"),
        torch.tensor(5.0, dtype=torch.float64),
        torch.tensor(9.0, dtype=torch.float64),
        ahead,
        net.cost(theta, later),
    )
    J_N, J_P = float(net.cost(theta, new)), float(net.cost(theta, past))
    both = join(past, new)
    J, J_PN = J_N + J_P, float(net.cost(theta, both))
    by_theta = torch.func.grad(lambda t: net.cost(t, new) + net.cost(t, past))(theta)
    square = sum(float((g**2).sum()) for g in leaves(by_theta))
    by_x, by_y = torch.func.grad(
        lambda x, y: net.cost(theta, new._replace(x=x, y=y)), argnums=(0, 1)
    )(new.x, new.y)
    drift = 0.1 * float(by_x.sum()) + 0.05 * float(by_y.sum())
    size_J_x, size_J_y = (5**0.5 * float(g.square().sum()) ** 0.5 for g in (by_x, by_y))
    size_dx, size_dy = (2 * 0.1**2) ** 0.5, 0.05
    reach = size_J_x * size_dx + size_J_y * size_dy
    expected = {
        "J_N": J_N,
        "J_P": J_P,
        "J_PN": J_PN,
        "J_PN_ahead": float(ahead),
        "J": J,
        "J_theta": square**0.5,
        "J_x": size_J_x,
        "dx": size_dx,
        "reach": reach,
        "dtheta": 0.3 * square**0.5,
        "theta": sum(float((p**2).sum()) for p in leaves(theta)) ** 0.5,
        "decrease": 0.3 * square,
        "drift": drift,
        "third_proof": J * 0.3 * square,
        "fourth_proof": -J * drift,
        "third_difference": J_PN - float(ahead),
        "fourth_difference": J_N - float(net.cost(theta, later)),
        "alpha": 0.3,
        "alpha_theorem": (1 - reach) / (5 * square + 1e-8),
        "dV_dt": -J * (1 - 0.3 * square - drift),
        "dV_dt_substituted": -J * (1 + 0.3 * square - drift),
        "beta": 5.0,
        "radius": 9.0,
    }
    got = {name: float(value) for name, value in read._asdict().items()}
    assert got == pytest.approx(expected, rel=1e-12)
    # No two are alike, so that none could stand for another.
    assert len({abs(round(value, 9)) for value in got.values()}) == len(got)


def test_a_gradient_of_zero_gives_a_step_of_zero_and_not_nan():
    net, new = model(), b_N()
    theta = net.init(3)
    found = terms.sensitivity(net, theta, absent(new), absent(new))
    one = torch.ones((), dtype=torch.float64)
    nothing = tree_map(torch.zeros_like, theta)
    read = stability.reading(found, theta, nothing, (new.x, new.y), one, one, one, one)
    assert float(read.J_theta) == float(read.alpha) == 0
    assert float(read.alpha_theorem) == pytest.approx(1e8)


# The look-ahead


@pytest.mark.parametrize("optimiser", ["sgd", "adagrad", "adam", "theorem"])
def test_the_look_ahead_is_the_one_that_dpmcl_takes(monkeypatch, optimiser):
    """The value that DPMCL descends on, third_term alone (eta = 0), is J_PN - J_PN(theta_B)."""
    net, new, past = model("classification"), b_N("classification"), b_P("classification")
    caught = []
    monkeypatch.setattr(DPMCL, "descend", lambda self, state, *given: caught.append(given) or state)
    method = DPMCL(lr=0.05, kappa=1, zeta=2, eta=0.0, optimiser=optimiser)
    state = method.start(net.init(3), tiny_task())
    method._mind_the_past(net, state, {"new": new, "past": past}, KEYS[1])
    ahead = terms.look_ahead(net, state.theta, new, past, method.rule, 2)
    third = terms.costs(net, state.theta, new, past).J_PN - ahead
    torch.testing.assert_close(caught[0][1], third, rtol=1e-12, atol=1e-15)
    assert abs(float(third)) > 1e-6


@each_model
def test_the_look_ahead_steps_the_prediction_alone(kind, gate):
    net, new, past = model(kind, gate), b_N(kind), b_P(kind)
    theta, rule = net.init(3), optim.build("sgd", 0.05)
    none = terms.look_ahead(net, theta, new, past, rule, 0)
    torch.testing.assert_close(none, terms.costs(net, theta, new, past).J_PN, rtol=1e-13, atol=0)

    both = join(past, new)
    by_hand = theta
    for _ in range(3):
        grads = torch.func.grad(lambda t: net.cost(t, both))(by_hand)["prediction"]
        by_hand = {**by_hand, "prediction": shifted(by_hand["prediction"], grads, -0.05)}
    found = terms.look_ahead(net, theta, new, past, rule, 3)
    torch.testing.assert_close(found, net.cost(by_hand, both), rtol=1e-12, atol=0)
    assert float(found) < float(none)


@each_model
def test_with_an_empty_memory_j_p_is_zero_and_j_pn_is_j_n(kind, gate):
    net, new, past = model(kind, gate), b_N(kind), absent(b_P(kind))
    theta, rule = net.init(3), optim.build("sgd", 0.05)
    found = terms.costs(net, theta, new, past)
    assert float(found.J_P) == 0
    assert float(found.J_PN) == pytest.approx(float(found.J_N), rel=1e-14)
    alone = terms.look_ahead(net, theta, new, absent(new), rule, 3)
    assert float(terms.look_ahead(net, theta, new, past, rule, 3)) == pytest.approx(float(alone))
    grads = terms.sensitivity(net, theta, new, past).J_theta
    expected = torch.func.grad(lambda t: net.cost(t, new))(theta)
    for a, b in zip(leaves(grads), leaves(expected), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-15)


# How far inputs move


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 2**31), st.floats(-6, 6))
def test_the_norms_bound_the_drift_whatever_moves(n, width, seed, power):
    J_x, dx = noise(torch.zeros(2, n, width), seed)
    J_y, dy = noise(torch.zeros(2, n, 2), seed + 1)
    J_x, dy = J_x * 10**power, dy * 10 ** (-power / 2)
    found = terms.drifts(J_x, J_y, dx, dy)
    change = abs(float((J_x * dx).sum() + (J_y * dy).sum()))
    assert float(found.reach) >= change * (1 - 1e-12)
    assert float(found.J_x * found.dx) >= abs(float((J_x * dx).sum())) * (1 - 1e-12)
    # What moves along its own gradient reaches the bound, so none below it would do.
    along = terms.drifts(3 * dx, 3 * dy, dx, dy)
    most = 3 * float(dx.square().sum() + dy.square().sum())
    assert float(along.reach) == pytest.approx(most, rel=1e-12)


@each_space
@pytest.mark.parametrize("kind", KINDS)
def test_the_reach_does_not_depend_on_how_often_the_batch_is_repeated(kind, space):
    net, new = model(kind), b_N(kind)
    new, theta = new._replace(w=torch.ones_like(new.w)), net.init(3)
    y = new.y + 0.3 if kind == "regression" else new.y
    later = new._replace(x=new.x + noise(new.x, 5), y=y)
    found = []
    for times in (1, 2, 7):
        many, then = (
            tree_map(lambda leaf, n=times: leaf.repeat(n, *[1] * (leaf.dim() - 1)), batch)
            for batch in (new, later)
        )
        seen = terms.sensitivity(net, theta, many, absent(many), space)
        far = terms.moved(net, theta, many, then, space)
        norms = terms.drifts(seen.J_x, seen.J_y, *far)
        reach = terms.reach(net, theta, many, then, space)
        torch.testing.assert_close(reach, norms.reach, rtol=1e-13, atol=0)
        found.append(torch.stack([*norms, reach]))
    for norms in found[1:]:
        torch.testing.assert_close(norms, found[0], rtol=1e-12, atol=0)
    assert bool((found[0][2:4] > 0).all()) == (kind == "regression")
    assert float(found[0][-1]) > 0


# Many replicas at once


@each_space
@each_model
def test_mapped_over_replicas_the_numbers_are_those_of_one_at_a_time(kind, gate, space):
    net, rule = model(kind, gate), optim.build("adagrad", 0.05)
    theta = stack([net.init(seed) for seed in (3, 4, 5)])
    new = stack([rows(kind, seed, [1.0, 0.5, 1.0]) for seed in (0, 1, 2)])
    past = stack(
        [rows(kind, seed, w) for seed, w in ((7, [1.0] * 4), (8, [0.0] * 4), (9, [0.5] * 4))]
    )
    later = new._replace(x=new.x + 0.1)

    def measured(theta, new, past, later):
        found = terms.sensitivity(net, theta, new, past, space)
        dtheta = shifted(tree_map(torch.zeros_like, theta), found.J_theta, -0.1)
        move = terms.moved(net, theta, new, later, space)
        ahead = terms.look_ahead(net, theta, new, past, rule, 2)
        one = torch.ones((), dtype=torch.float64)
        read = stability.reading(
            found, theta, dtheta, move, one, one, ahead, net.cost(theta, later)
        )
        reach = terms.reach(net, theta, new, later, space)
        return found, terms.costs(net, theta, new, past), reach, read

    many = torch.func.vmap(measured)(theta, new, past, later)
    for replica in range(3):
        one = measured(*at((theta, new, past, later), replica))
        for a, b in zip(leaves(at(tuple(many), replica)), leaves(one), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-14)
