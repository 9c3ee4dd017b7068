"""The terms of equation (3): against autograd, and against formulas written out here."""

import pytest
import torch
from torch import nn

from conftest import model_of, moving_stream, tiny_stream
from dpmcl.core.batch import Batch
from dpmcl.core.model import Model
from dpmcl.core.tree import leaves, tree_map
from dpmcl.optimisers import _optimiser as optim
from dpmcl.theory import stability, terms

KINDS = {"classification": tiny_stream, "regression": moving_stream}
GATES = (None, "features", "outputs")
ONE = torch.ones((), dtype=torch.float64)
each_model = pytest.mark.parametrize(
    ("kind", "gate"), [(kind, gate) for kind in KINDS for gate in GATES]
)
each_space = pytest.mark.parametrize("features", [False, True])


def rows(kind: str, seed: int, weights: list[float]) -> Batch:
    stream, n = KINDS[kind](), len(weights)
    row = torch.randperm(len(stream.x), generator=torch.Generator().manual_seed(seed))[:n]
    batch = stream.batch(row, torch.tensor(weights), row * 0, torch.float64)
    return batch._replace(w=torch.tensor(weights, dtype=torch.float64))


def problem(kind="regression", gate=None):
    """A smooth model, so that differences can be trusted; its parameters; b_N and b_P."""
    stream = KINDS[kind]()

    def network():
        h = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh())
        return h, nn.Sequential(nn.Linear(4, 5), nn.Softplus(), nn.Linear(5, stream.outputs))

    model = model_of(stream, network)
    model = model.gated(gate) if gate else model
    new = rows(kind, 0, [1.0, 0.5, 1.0, 1.0, 0.25])
    return model, model.init(3), new, rows(kind, 1, [1.0, 1.0, 0.0, 0.125])


def union(b_N: Batch, b_P: Batch) -> Batch:
    return Batch(*(torch.cat(pair) for pair in zip(b_P[:4], b_N[:4], strict=True)))


def absent(batch: Batch) -> Batch:
    return batch._replace(w=torch.zeros_like(batch.w))


def noise(like, seed: int):
    """Return a random tree of the same form."""
    generator = torch.Generator().manual_seed(seed)
    return tree_map(
        lambda leaf: torch.randn(leaf.shape, generator=generator, dtype=torch.float64), like
    )


def shifted(theta, by, much: float):
    return tree_map(lambda p, d: p + much * d, theta, by)


def norm(tree) -> float:
    return sum(float(leaf.square().sum()) for leaf in leaves(tree)) ** 0.5


def moved_cost(model: Model, theta, b_N: Batch, b_P: Batch, move, features: bool):
    """J = J_N + J_P once rows of b_N, or what g sees of them, have moved."""
    dx, dy = move
    x = b_N.x if features else b_N.x + dx
    seen = model.seen(theta, x) + (dx if features else 0)
    y = b_N.y + dy if b_N.y.is_floating_point() else b_N.y
    losses = model.losses(model.answer(theta, seen, x), y)
    return (losses * b_N.w).sum() / b_N.w.sum() + model.cost(theta, b_P)


@each_space
@each_model
def test_costs_are_the_models_and_gradients_are_autograds(kind, gate, features):
    model, theta, b_N, b_P = problem(kind, gate)
    measured = terms.sensitivity(model, theta, b_N, b_P, features=features)
    for value, batch in zip(measured.costs, (b_N, b_P, union(b_N, b_P)), strict=True):
        torch.testing.assert_close(value, model.cost(theta, batch), rtol=1e-13, atol=0)
    theta = tree_map(torch.Tensor.requires_grad_, theta)
    # Behind a gate on the features, g sees the gated ones.
    like = model.seen(theta, b_N.x) if features else b_N.x
    move = torch.zeros_like(like, requires_grad=True), torch.zeros_like(b_N.y.double())
    moving = [
        *leaves(theta),
        move[0],
        *([move[1].requires_grad_()] if kind == "regression" else []),
    ]
    expected = torch.autograd.grad(moved_cost(model, theta, b_N, b_P, move, features), moving)
    actual = leaves((measured.J_theta, measured.J_x, measured.J_y))
    torch.testing.assert_close(actual[: len(moving)], [*expected], rtol=1e-10, atol=1e-13)
    assert all(grad.any() for grad in expected)
    assert measured.J_y.shape == b_N.y.shape
    assert measured.J_y.any() == (kind == "regression")


def test_a_reading_is_the_formulas_written_out():
    model, theta, b_N, b_P = problem()
    measured = terms.sensitivity(model, theta, b_N, b_P)
    dtheta = tree_map(lambda g: -0.3 * g, measured.J_theta)
    later = b_N._replace(x=b_N.x + 0.1, y=b_N.y + 0.05)
    ahead = terms.look_ahead(model, theta, b_N, b_P, rule=optim.build("sgd", 0.1), zeta=3)
    read = stability.reading(
        measured,
        theta,
        dtheta,
        terms.moved(model, theta, b_N, later),
        beta=5 * ONE,
        radius=9 * ONE,
        ahead=ahead,
        J_N_next=model.cost(theta, later),
    )
    J_N, J_P, J_PN = (float(model.cost(theta, b)) for b in (b_N, b_P, union(b_N, b_P)))
    J = J_N + J_P
    J_theta = norm(torch.func.grad(lambda t: model.cost(t, b_N) + model.cost(t, b_P))(theta))
    by_x, by_y = torch.func.grad(
        lambda x, y: model.cost(theta, b_N._replace(x=x, y=y)), argnums=(0, 1)
    )(b_N.x, b_N.y)
    decrease = 0.3 * J_theta**2
    increase = 0.1 * float(by_x.sum()) + 0.05 * float(by_y.sum())
    reach = 5**0.5 * (norm(by_x) * (2 * 0.1**2) ** 0.5 + norm(by_y) * 0.05)
    expected = {
        "J_N": J_N,
        "J_P": J_P,
        "J_PN": J_PN,
        "J_PN_ahead": float(ahead),
        "J": J,
        "J_theta": J_theta,
        "J_x": 5**0.5 * norm(by_x),
        "dx": (2 * 0.1**2) ** 0.5,
        "reach": reach,
        "dtheta": 0.3 * J_theta,
        "theta": norm(theta),
        "decrease": decrease,
        "increase": increase,
        "third_proof": J * decrease,
        "fourth_proof": -J * increase,
        "third_difference": J_PN - float(ahead),
        "fourth_difference": J_N - float(model.cost(theta, later)),
        "alpha": 0.3,
        "alpha_theorem": (1 - reach) / (5 * J_theta**2 + 1e-8),
        "dV_dt": -J * (1 - decrease - increase),
        "dV_dt_substituted": -J * (1 + decrease - increase),
        "beta": 5.0,
        "radius": 9.0,
    }
    values = {name: float(value) for name, value in read._asdict().items()}
    assert values == pytest.approx(expected, rel=1e-12)
    # No two are alike, so that none could stand for another.
    assert len({abs(round(value, 9)) for value in values.values()}) == len(values)


def test_a_gradient_of_zero_gives_a_step_of_zero_and_not_nan():
    model, theta, b_N, _ = problem()
    measured = terms.sensitivity(model, theta, absent(b_N), absent(b_N))
    bounds = {"beta": ONE, "radius": ONE, "ahead": ONE, "J_N_next": ONE}
    still = tree_map(torch.zeros_like, theta)
    read = stability.reading(measured, theta, still, (b_N.x, b_N.y), **bounds)
    assert float(read.J_theta) == float(read.alpha) == 0
    assert float(read.alpha_theorem) == pytest.approx(1e8)


@each_model
@pytest.mark.parametrize("past", [True, False])
def test_the_look_ahead_steps_the_prediction_alone_on_b_pn(kind, gate, past):
    model, theta, b_N, b_P = problem(kind, gate)
    b_P = b_P if past else absent(b_P)
    b_PN, by_hand = union(b_N, b_P), theta
    for zeta in range(4):
        rule = optim.build("sgd", 0.05)
        ahead = terms.look_ahead(model, theta, b_N, b_P, rule=rule, zeta=zeta)
        torch.testing.assert_close(ahead, model.cost(by_hand, b_PN), rtol=1e-12, atol=0)
        grads = torch.func.grad(lambda t: model.cost(t, b_PN))(by_hand)["prediction"]
        by_hand = {**by_hand, "prediction": shifted(by_hand["prediction"], grads, -0.05)}
    costs = terms.sensitivity(model, theta, b_N, b_P).costs
    assert float(ahead) < float(costs.J_PN)
    assert past or float(costs.J_P) == 0
    assert past or float(costs.J_PN) == pytest.approx(float(costs.J_N), rel=1e-14)


@each_space
@pytest.mark.parametrize("kind", KINDS)
def test_the_reach_does_not_depend_on_how_often_the_batch_is_repeated(kind, features):
    model, theta, b_N, _ = problem(kind)
    b_N = b_N._replace(w=torch.ones_like(b_N.w))
    y = b_N.y + 0.3 if kind == "regression" else b_N.y
    later = b_N._replace(x=b_N.x + noise(b_N.x, 5), y=y)
    measured = []
    for times in (1, 2, 7):
        many, then = (
            Batch(*(leaf.repeat(times, *[1] * (leaf.dim() - 1)) for leaf in batch[:4]))
            for batch in (b_N, later)
        )
        by = terms.sensitivity(model, theta, many, absent(many), features=features)
        move = terms.moved(model, theta, many, then, features=features)
        norms = terms.input_norms(by.J_x, by.J_y, *move)
        reach = terms.reach(model, theta, many, then, features=features)
        torch.testing.assert_close(reach, norms.reach, rtol=1e-13, atol=0)
        measured.append(torch.stack([*norms, reach]))
        torch.testing.assert_close(measured[-1], measured[0], rtol=1e-12, atol=0)
    assert bool((measured[0][2:4] > 0).all()) == (kind == "regression")
    assert float(measured[0][-1]) > 0
