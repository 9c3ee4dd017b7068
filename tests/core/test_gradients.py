"""Gradients are autograd's, and what they cost is counted where it is asked for."""

import pytest
import torch
from torch import nn

from conftest import tiny_model, tiny_stream, tiny_task
from dpmcl.core.batch import Batch
from dpmcl.core.gradients import Work, counting, gradient
from dpmcl.core.model import Model
from dpmcl.core.tree import leaves, tree_map
from dpmcl.methods.dpmcl import DPMCL


@pytest.fixture
def problem():
    stream = tiny_stream()
    model = tiny_model(stream)
    row = torch.arange(0, 60, 5)
    w = torch.ones(len(row), dtype=torch.float64)
    return model, model.init(0), Batch(stream.x[row], stream.y[row], w, stream.y[row] // 2)


def counted(work):
    rows = work.rows_backpropagated, work.rows_head, work.rows_forward
    return work.gradient_evaluations, *rows


def test_the_gradient_is_autograds(problem):
    model, theta, batch = problem
    grads, value = gradient(model.cost)(theta, batch)
    copies = tree_map(lambda leaf: leaf.clone().requires_grad_(), theta)
    cost = model.cost(copies, batch)
    cost.backward()
    torch.testing.assert_close(value, cost.detach(), rtol=1e-14, atol=0)
    for grad, leaf in zip(leaves(grads), leaves(copies), strict=True):
        torch.testing.assert_close(grad, leaf.grad, rtol=1e-12, atol=1e-14)
        assert leaf.grad.abs().sum() > 0


def test_a_gradient_of_a_gradient():
    def slope(a):
        return gradient(lambda b: (b**3).sum())(a)[0].sum()

    with counting() as work:
        grads, value = gradient(slope)(torch.tensor([2.0]))
    assert grads.tolist() == [12.0]
    assert value == 12.0
    assert work.gradient_evaluations == 2


def head_alone(model, theta, batch):
    features = model.features(theta["representation"], batch.x)

    def cost(theta_2):
        return model.losses(model.outputs(theta_2, features), batch.y).mean()

    gradient(cost)(theta["prediction"])


def through_a_step(model, theta, batch):
    """The inner gradient is by the prediction alone, and the outer one goes through it all."""

    def cost(theta):
        def inner(theta_2):
            return model.cost({**theta, "prediction": theta_2}, batch)

        grads, _ = gradient(inner)(theta["prediction"])
        stepped = tree_map(lambda p, g: p - 0.1 * g, theta["prediction"], grads)
        return model.cost({**theta, "prediction": stepped}, batch)

    gradient(cost)(theta)


def mapped(model, theta, batch):
    def of_row(row):
        return gradient(model.cost)(theta, tree_map(lambda leaf: leaf[None], row))[0]

    torch.func.vmap(of_row)(batch)


def by_weight(model, theta, batch):
    """Twelve gradients, each of which sees all twelve rows."""
    eye = torch.eye(12, dtype=torch.float64)
    torch.func.vmap(lambda w: gradient(model.cost)(theta, batch._replace(w=w))[0])(eye)


def map_within(model, theta, batch):
    def cost(theta):
        rows = tree_map(lambda leaf: leaf[:, None], batch)
        return torch.func.vmap(lambda row: model.cost(theta, row))(rows).sum()

    gradient(cost)(theta)


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (lambda *problem: None, (0, 0, 0, 0)),
        (lambda model, theta, batch: model.cost(theta, batch), (0, 0, 0, 12)),
        (lambda model, *problem: gradient(model.cost)(*problem), (1, 12, 0, 0)),
        (head_alone, (1, 0, 12, 12)),
        (through_a_step, (2, 24, 0, 0)),
        (mapped, (1, 12, 0, 0)),
        (by_weight, (1, 144, 0, 0)),
        (map_within, (1, 12, 0, 0)),
    ],
)
def test_rows_are_counted_by_what_they_go_through(problem, use, expected):
    with counting() as work:
        use(*problem)
    use(*problem)
    assert counted(work) == expected


@pytest.mark.parametrize("zeta", [0, 3])
def test_dpmcl_backpropagates_its_look_ahead_through_the_head_alone(problem, zeta):
    model, theta, batch = problem
    method = DPMCL(optimiser="sgd", batch=12, zeta=zeta)
    (phase,) = method.phases(model, tiny_task())
    key = torch.zeros(2, 2, dtype=torch.int64)
    with counting() as work:
        phase.update(method.start(theta, tiny_task()), {"new": batch, "past": batch}, key)
    # b_N once, b_PN once; zeta steps of theta_B, and J_PN(theta_B), on b_PN's features.
    assert counted(work) == (2 + zeta, 12 + 24, (zeta + 1) * 24, 0)


def test_operations_are_those_of_the_products():
    """Linear, n rows from i to o: 2 n i o forwards, for its weight, and for its input."""
    model = Model.build(
        lambda: (nn.Linear(5, 7), nn.Linear(7, 3)), "classification", torch.rand(4, 5), 3
    )
    y = torch.arange(4) % 3
    with counting() as work:
        gradient(model.cost)(model.init(0), Batch(torch.rand(4, 5), y, torch.ones(4), y))
    assert work.flops == 2 * 4 * (2 * 5 * 7 + 3 * 7 * 3)


def test_work_adds_up():
    work = Work(1, 2, 3, 4, 5)
    assert work + work.times(3) == Work(4, 8, 12, 16, 20) == work.times(4)


def test_a_failed_gradient_leaves_no_trace(problem):
    model, theta, batch = problem

    def fail(a):
        raise ValueError("no cost")

    with counting() as work:
        with pytest.raises(ValueError, match="no cost"):
            gradient(fail)(torch.ones(1))
        model.cost(theta, batch)
    assert counted(work) == (1, 0, 0, 12)
