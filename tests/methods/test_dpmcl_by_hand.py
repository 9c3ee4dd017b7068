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
"""

import pytest
import torch
from torch import nn

from conftest import tiny_task
from dpmcl.core.batch import Batch
from dpmcl.core.model import Model
from dpmcl.methods.dpmcl import DPMCL


def product_model() -> Model:
    def network():
        return nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)

    example = torch.ones(2, 1, dtype=torch.float64)
    return Model.build(network, "regression", example, 1, torch.float64)


def row(x: float, y: float, w: float = 1.0) -> Batch:
    def number(value):
        return torch.tensor([[value]], dtype=torch.float64)

    return Batch(number(x), number(y), number(w)[0], torch.zeros(1, dtype=torch.int64))


def iterate(past_weight: float = 1.0, **settings) -> tuple[float, float]:
    method = DPMCL(optimiser="sgd", lr=0.1, kappa=1, **settings)
    one = torch.ones(1, 1, dtype=torch.float64)
    theta = {"representation": {"weight": one}, "prediction": {"weight": one}}
    state, task = method.start(theta, tiny_task()), tiny_task(1)
    (phase,) = method.phases(product_model(), task)
    batches = {"new": row(1, 2), "past": row(2, 1, past_weight)}
    after = phase.update(state, batches, torch.zeros(2, 2, dtype=torch.int64))
    a, b = (after.theta[part]["weight"].item() for part in ("representation", "prediction"))
    return a, b


@pytest.mark.parametrize(
    ("third_term", "grad_a", "grad_b"),
    [
        ("constant", 9.024 + 3.84 - 0.731136, 9.024 + 3.84),
        ("first", 9.024 + 3.84 - 0.731136, 9.024 + 3.84 - 1.0752),
        (
            "exact",
            9.024 + 3.84 - (0.731136 + 1.0752 * -1.04),
            9.024 + 3.84 - 1.0752 * 0.28,
        ),
        ("off", 9.024, 9.024),
    ],
)
def test_alternating(third_term, grad_a, grad_b):
    a, b = iterate(zeta=1, third_term=third_term)
    assert a == pytest.approx(1.2 - 0.1 * grad_a, abs=1e-12)
    assert b == pytest.approx(1.2 - 0.1 * grad_b, abs=1e-12)


def test_joint_step_is_equation_4():
    a, b = iterate(zeta=1, step="joint")
    assert a == pytest.approx(1 - 0.1 * (-2 + 4 + 1 - 0.45), abs=1e-12)
    assert b == pytest.approx(1 - 0.1 * (-2 + 4 + 1), abs=1e-12)


def test_an_empty_memory_leaves_j_n_alone():
    # J_P = 0 and b_PN = b_N. At a = b = 1.2: d J_N/da = d J_N/db = 2.4 * -0.56 = -1.344,
    # theta_B = 1.3344, a theta_B - 2 = -0.39872, d J_N(theta_B)/da = 2 * 1.3344 * -0.39872.
    a, b = iterate(past_weight=0.0, zeta=1)
    assert a == pytest.approx(1.2 - 0.1 * (-1.344 + 2 * 1.3344 * 0.39872), abs=1e-12)
    assert b == pytest.approx(1.2 + 0.1 * 1.344, abs=1e-12)


def test_first_without_steps_is_no_third_term():
    assert iterate(zeta=0, third_term="first") == pytest.approx(
        iterate(zeta=3, third_term="off"), abs=1e-14
    )


def test_constant_without_steps_still_drives_the_prediction():
    # theta_B = theta_2: the terms cancel for theta_1, and theta_2 keeps the gradient of J_PN.
    a, b = iterate(zeta=0, third_term="constant")
    assert a == pytest.approx(1.2 - 0.1 * 9.024, abs=1e-12)
    assert b == pytest.approx(1.2 - 0.1 * (9.024 + 3.84), abs=1e-12)
