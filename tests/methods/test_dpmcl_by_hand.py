"""One DPMCL iteration on a model of two parameters, against arithmetic done by hand.

h(x) = a x, g(f) = b f, cost (a b x - y)^2, gradient descent with step 0.1, from a = b = 1.
b_N = (x 1, y 2), b_P = (x 2, y 1), zeta = 1.

J_N  = (ab - 2)^2:   d/da = 2 b (ab - 2),  d/db = 2 a (ab - 2)
J_P  = (2ab - 1)^2:  d/da = 4 b (2ab - 1), d/db = 4 a (2ab - 1)
J_PN = (J_N + J_P)/2: d/da = b (5ab - 4),  d/db = a (5ab - 4)

Alternating. Step 1 at a = b = 1: both gradients are -2, so a = b = 1.2, ab = 1.44.
Step 2: d J_PN/db = 1.2 (7.2 - 4) = 3.84, so theta_B = 1.2 - 0.384 = 0.816 and a theta_B = 0.9792,
5 * 0.9792 - 4 = 0.896.
  J_P:             d/da = d/db = 4 * 1.2 * 1.88 = 9.024
  J_PN:            d/da = d/db = 3.84
  J_PN(theta_B):   d/da = 0.816 * 0.896 = 0.731136,  d/d theta_B = 1.2 * 0.896 = 1.0752
  theta_B(a, b) = b - 0.1 a (5ab - 4):  d/db = 1 - 0.5 a^2 = 0.28,  d/da = -0.1 (10ab - 4) = -1.04

Joint, at a = b = 1: J_N gives -2, J_P 4, J_PN 1 for both; theta_B = 0.9, 5 * 0.9 - 4 = 0.5:
J_PN(theta_B): d/da = 0.45.

Values, in step 2: J_PN = (0.56^2 + 1.88^2) / 2 = 1.924, J_PN(theta_B) = (1.0208^2 + 0.9584^2) / 2 =
0.9802816, so the look-ahead gains T = 0.9437184.

The fourth term. b_N's row moves to (x 1.5, y 2.5): J_next = (1.5 ab - 2.5)^2, d/da =
3 b (1.5 ab - 2.5), d/db = 3 a (1.5 ab - 2.5): 3.6 * -0.34 = -1.224 at a = b = 1.2, and -3 at 1.
"""

from itertools import pairwise

import pytest
import torch
from torch import nn

from conftest import moving_stream, tiny_model, tiny_task
from dpmcl.core.batch import Batch
from dpmcl.core.model import Model
from dpmcl.core.tree import leaves
from dpmcl.methods.dpmcl import DPMCL
from dpmcl.theory import terms

T, J_P, J_PN, J_B, BY_B = 0.9437184, 9.024, 3.84, 0.731136, 1.0752
THIRD = {  # d third / da, d third / db
    "constant": (J_PN - J_B, J_PN),
    "first": (J_PN - J_B, J_PN - BY_B),
    "exact": (J_PN - (J_B - 1.04 * BY_B), J_PN - 0.28 * BY_B),
}


def product_model() -> Model:
    def network():
        return nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)

    example = torch.ones(2, 1, dtype=torch.float64)
    return Model.build(network, "regression", example, 1, dtype=torch.float64)


def row(x: float, y: float, w: float = 1.0) -> Batch:
    def number(value):
        return torch.tensor([[value]], dtype=torch.float64)

    return Batch(number(x), number(y), number(w)[0], torch.zeros(1, dtype=torch.int64))


def weights(a: float, b: float):
    def weight(value):
        return {"weight": torch.tensor([[value]], dtype=torch.float64)}

    return {"representation": weight(a), "prediction": weight(b)}


def iterate(lr: float = 0.1, past_weight: float = 1.0, **settings):
    """(a, b) after one iteration from a = b = 1."""
    method = DPMCL(optimiser="sgd", lr=lr, kappa=1, **{"zeta": 1, **settings})
    state = method.start(weights(1.0, 1.0), tiny_task())
    (phase,) = method.phases(product_model(), tiny_task(1))
    batches = {"new": row(1, 2), "past": row(2, 1, past_weight), "next": row(1.5, 2.5)}
    drawn = {name: batches[name] for name in phase.draws}
    after = phase.update(state, drawn, torch.zeros(2, 2, dtype=torch.int64))
    return [after.theta[part]["weight"].item() for part in ("representation", "prediction")]


def stepped(grad_a: float, grad_b: float, a: float = 1.2, lr: float = 0.1):
    """a = b moved by a step."""
    return pytest.approx([a - lr * grad_a, a - lr * grad_b], abs=1e-12)


@pytest.mark.parametrize("third_term", THIRD)
def test_the_third_term_its_guard_and_its_weight(third_term):
    """The weight comes after the guard: a tenth of the square, as in the authors' earlier code."""
    by_a, by_b = THIRD[third_term]
    for guard, slope in (("none", 1.0), ("clip", 1.0), ("square", 2 * T)):
        for factor in (1.0, 0.1, -1.0, 0.0):
            times = factor * slope
            moved = iterate(third_term=third_term, guard=guard, third_weight=factor)
            assert moved == stepped(J_P + times * by_a, J_P + times * by_b)


@pytest.mark.parametrize("third_term", THIRD)
def test_clip_is_no_term_where_the_look_ahead_loses(third_term):
    """Joint, a step of 1: theta_B = 1 - 1 = 0, so J_PN = 1 becomes (4 + 1) / 2 = 2.5."""
    settings = {"lr": 1.0, "step": "joint"}
    off = iterate(third_term="off", **settings)
    assert off == stepped(-2 + 4, -2 + 4, a=1, lr=1)
    assert iterate(third_term=third_term, guard="clip", **settings) == off
    assert iterate(third_term=third_term, guard="none", **settings) != off


CASES = {
    "equation 4": ({"step": "joint"}, stepped(-2 + 4 + 1 - 0.45, -2 + 4 + 1, a=1)),
    # theta_B = theta_2: the terms cancel for theta_1, and theta_2 keeps the gradient of J_PN.
    "no look-ahead, constant": ({"zeta": 0}, stepped(J_P, J_P + J_PN)),
    "no look-ahead, first": ({"zeta": 0, "third_term": "first"}, stepped(J_P, J_P)),
    "no look-ahead, clip": ({"zeta": 0, "guard": "clip"}, stepped(J_P, J_P)),
    "no look-ahead, square": ({"zeta": 0, "guard": "square"}, stepped(J_P, J_P)),
    "off": ({"third_term": "off", "zeta": 3}, stepped(J_P, J_P)),
    "off, square": ({"third_term": "off", "guard": "square", "third_weight": 7.0},
                    stepped(J_P, J_P)),
    # J_P = 0 and b_PN = b_N. At a = b = 1.2: d J_N/da = d J_N/db = 2.4 * -0.56 = -1.344,
    # theta_B = 1.3344, a theta_B - 2 = -0.39872, d J_N(theta_B)/da = 2 * 1.3344 * -0.39872.
    "empty memory": ({"past_weight": 0.0}, stepped(-1.344 + 2 * 1.3344 * 0.39872, -1.344)),
    # eta: step 1 by half of -2, so a = b = 1.1, ab = 1.21; theta_B's step stays whole. J_P: 4.4 *
    # 1.42 = 6.248. J_PN: 1.1 * 2.05 = 2.255, theta_B = 0.8745, a theta_B = 0.96195,
    # d J_PN(theta_B)/da = 0.8745 * 0.80975 = 0.708126375.
    "eta": ({"eta": 0.5}, stepped(3.124 + 2.255 - 0.708126375, 3.124 + 2.255, a=1.1)),
    "eta, joint": ({"eta": 0.5, "step": "joint"}, stepped(0.5 * 2 + 1 - 0.45, 0.5 * 2 + 1, a=1)),
    "no eta": ({"eta": 0.0}, stepped(1 - 0.45, 1, a=1)),
    "no eta, joint": ({"eta": 0.0, "step": "joint"}, stepped(1 - 0.45, 1, a=1)),
    "nothing": ({"eta": 0.0, "third_term": "off"}, [1, 1]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_an_iteration_is_the_one_by_hand(case):
    settings, expected = CASES[case]
    assert iterate(**settings) == expected


@pytest.mark.parametrize("fourth_term", ["exact", "estimated"])
@pytest.mark.parametrize("factor", [1.0, 0.25, -1.0, 0.0])
def test_the_fourth_term_is_j_n_on_the_moved_rows_in_step_2(fourth_term, factor):
    by_a, by_b = THIRD["constant"]
    settings = {"fourth_term": fourth_term, "fourth_weight": factor}
    moved = factor * -1.224
    assert iterate(**settings) == stepped(J_P + by_a + moved, J_P + by_b + moved)
    joint = iterate(step="joint", **settings)
    assert joint == stepped(3 - 0.45 - factor * 3, 3 - factor * 3, a=1)
    # eta is of J_N and J_P alone: this is J_N of another task, V(k + 1).
    alone = iterate(eta=0.0, third_term="off", **settings)
    assert alone == stepped(-factor * 3, -factor * 3, a=1)
    (phase,) = DPMCL(batch=5, **settings).phases(product_model(), tiny_task(1))
    draw = phase.draws["next"]
    assert (draw.source, draw.batch, draw.like, draw.moved) == ("new", 5, "new", fourth_term)


@pytest.mark.parametrize(
    ("step", "optimiser", "zeta", "close"),
    [
        ("alternating", "sgd", 1, {"rel": 1e-6, "abs": 1e-9}),
        ("joint", "sgd", 3, {"rel": 1e-6, "abs": 1e-9}),
        ("joint", "adagrad", 3, {"rel": 1e-5, "abs": 2e-6}),
        ("alternating", "adam", 3, {"rel": 1e-5, "abs": 2e-6}),
    ],
)
def test_the_cost_that_a_rule_hears_of_is_the_sum_of_what_is_descended_on(
    monkeypatch, step, optimiser, zeta, close
):
    """Its gradient by finite differences, through the look-ahead too, is the one that comes."""
    model = tiny_model(moving_stream())
    stream = moving_stream()

    def batch(first):
        rows = torch.arange(first, first + 6)
        return stream.batch(rows, rows >= 0, rows * 0, torch.float64)

    caught = []
    monkeypatch.setattr(DPMCL, "descend", lambda self, state, *args: caught.append(args) or state)
    method = DPMCL(
        kappa=1, step=step, eta=0.3, guard="square", third_weight=-0.7, third_term="exact",
        fourth_term="exact", fourth_weight=0.4, optimiser=optimiser, lr=0.05, zeta=zeta,
    )  # fmt: skip
    rows = {"new": batch(0), "past": batch(40), "next": batch(30)}

    def descended_on(theta):
        caught.clear()
        state = method.start(theta, tiny_task())
        method._limit_forgetting(model, state, rows, torch.zeros(2, dtype=torch.int64))
        return caught[0]

    theta = model.init(3)
    grads, _ = descended_on(theta)
    for part, name in (("representation", "0.weight"), ("prediction", "2.bias")):
        index = int(grads[part][name].abs().argmax())
        unit = torch.zeros_like(theta[part][name])
        unit.view(-1)[index] = 1e-6
        high, low = (
            descended_on({**theta, part: {**theta[part], name: theta[part][name] + sign * unit}})[1]
            for sign in (1, -1)
        )
        slope = float(high - low) / 2e-6
        assert float(grads[part][name].view(-1)[index]) == pytest.approx(slope, **close)
        assert abs(slope) > 1e-3


def test_the_features_are_computed_once_and_theta_1_stays_during_the_zeta_steps(monkeypatch):
    seen, real = [], Model.features

    def features(self, theta_1, *rows, **more):
        seen.append(theta_1["weight"])
        return real(self, theta_1, *rows, **more)

    monkeypatch.setattr(Model, "features", features)
    method = DPMCL(zeta=4, kappa=1)
    state = method.start(weights(1.0, 1.0), tiny_task())
    rows, key = {"new": row(1, 2), "past": row(2, 1)}, torch.zeros(2, dtype=torch.int64)
    after = method._limit_forgetting(product_model(), state, rows, key)
    (weight,) = seen
    assert float(torch.func.debug_unwrap(weight, recurse=True)) == 1
    assert float(after.theta["representation"]["weight"]) != 1


class Representation(DPMCL):
    """Plain gradient steps of 0.5 on theta_1 alone."""

    def descend(self, state, grads, cost=None):
        a = state.theta["representation"]["weight"] - 0.5 * grads["representation"]["weight"]
        return state._replace(theta={**state.theta, "representation": {"weight": a}})


def gains(guard: str, steps: int) -> list[float]:
    """J_PN - J_PN(theta_B) along the way down on it, from a = 10, b = 0.

    Adagrad's first step is 0.1 whatever the gradient, so theta_B = 0.1, and a theta_B passes the
    best value, 0.8, once a > 8. From a = 16 on the look-ahead loses, and more with each step.
    """
    method = Representation(
        optimiser="adagrad", lr=0.1, zeta=1, eta=0.0, step="joint", third_term="constant",
        guard=guard,
    )  # fmt: skip
    model, b_N, b_P = product_model(), row(1, 2), row(2, 1)
    state = method.start(weights(10.0, 0.0), tiny_task())
    values = []
    for _ in range(steps):
        cost = terms.sensitivity(model, state.theta, b_N, b_P).costs.J_PN
        ahead = terms.look_ahead(model, state.theta, b_N, b_P, rule=method.rule, zeta=method.zeta)
        values.append(float(cost - ahead))
        key = torch.zeros(2, dtype=torch.int64)
        state = method._limit_forgetting(model, state, {"new": b_N, "past": b_P}, key)
    assert all(leaf.isfinite().all() for leaf in leaves(state.theta))
    return values


def test_the_printed_term_is_unbounded_below_and_the_guarded_ones_are_not():
    printed = gains("none", 200)
    assert printed[0] == pytest.approx(2.5 * (0.64 - 0.04))  # at first the look-ahead does gain
    assert all(later < now for now, later in pairwise(printed))
    assert min(printed) < -1e2
    clipped = gains("clip", 100)
    assert max(0.0, clipped[-1]) == 0 < clipped[0]
    assert min(clipped) > -0.1  # the last step that gains may go a little too far
    assert clipped[-1] == clipped[-30]
    squared = gains("square", 100)
    assert abs(squared[-1]) < 1e-3 * squared[0]
