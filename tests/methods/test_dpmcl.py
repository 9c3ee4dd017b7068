"""DPMCL's third term on a network: its gradient by finite differences, and what stays."""

import pytest
import torch

from conftest import tiny_model, tiny_stream, tiny_task
from dpmcl.core.batch import Batch, join
from dpmcl.core.model import initial_weights
from dpmcl.core.tree import at, leaves, tree_map
from dpmcl.methods.dpmcl import DPMCL
from dpmcl.optimisers._optimiser import build

KEYS = torch.tensor([[1, 2], [3, 4]])


def some_rows(seed: int, n: int = 6) -> Batch:
    stream = tiny_stream()
    row = torch.randperm(len(stream.y), generator=torch.Generator().manual_seed(seed))[:n]
    present = torch.ones(n, dtype=torch.bool)
    return stream.batch(row, present, stream.task[0][row], torch.float64)


B_N, B_P = some_rows(0), some_rows(1)
ROWS = {"new": B_N, "past": B_P}
TASK = tiny_task()


def model():
    return tiny_model(tiny_stream())


def theta():
    return at(initial_weights(model(), [3]), 0)


def gradient_of_step_2(monkeypatch, start=None, **settings):
    """The gradient that step 2 hands to theta's optimiser."""
    caught = []
    monkeypatch.setattr(
        DPMCL, "descend", lambda self, state, grads, cost=None: caught.append(grads) or state
    )
    method = DPMCL(lr=0.05, kappa=1, **settings)
    state = method.start(start or theta(), TASK)
    method._limit_forgetting(model(), state, ROWS, KEYS[1])
    return caught[0]


@pytest.mark.parametrize("zeta", [1, 3])
@pytest.mark.parametrize("optimiser", ["sgd", "adagrad", "adam"])
def test_exact_agrees_with_finite_differences(monkeypatch, optimiser, zeta):
    net, rule = model(), build(optimiser, 0.05)
    b_PN = join(B_P, B_N)

    def cost(theta):
        buffer, state = theta["prediction"], rule.init(theta["prediction"])
        for _ in range(zeta):
            free = tree_map(lambda leaf: leaf.detach().requires_grad_(), buffer)
            j = net.cost({**theta, "prediction": free}, b_PN)
            grads = dict(zip(free, torch.autograd.grad(j, list(free.values())), strict=True))
            buffer, state = rule.step(buffer, grads, state)
        j_b = net.cost({**theta, "prediction": buffer}, b_PN)
        return net.cost(theta, B_P) + net.cost(theta, b_PN) - j_b

    start = theta()
    grads = gradient_of_step_2(
        monkeypatch, start, zeta=zeta, optimiser=optimiser, third_term="exact"
    )
    generator = torch.Generator().manual_seed(0)
    for part, name in [("representation", "0.weight"), ("prediction", "2.weight")]:
        flat = start[part][name].flatten()
        for i in torch.randperm(len(flat), generator=generator)[:4].tolist():
            values = []
            for step in (1e-6, -1e-6):
                moved = flat.clone()
                moved[i] += step
                shifted = {**start[part], name: moved.view_as(start[part][name])}
                values.append(cost({**start, part: shifted}).item())
            numeric = (values[0] - values[1]) / 2e-6
            assert grads[part][name].flatten()[i].item() == pytest.approx(
                numeric, abs=2e-6, rel=1e-5
            )


def test_the_features_are_computed_once_and_theta_1_stays_during_the_zeta_steps(monkeypatch):
    net, start, calls = model(), theta(), []
    real = type(net).features

    def spy(self, theta_1, *rows, **more):
        calls.append(theta_1)
        return real(self, theta_1, *rows, **more)

    monkeypatch.setattr(type(net), "features", spy)
    method = DPMCL(zeta=4, kappa=1)
    state = method.start(start, TASK)
    after = method._limit_forgetting(net, state, ROWS, KEYS[1])
    assert len(calls) == 1
    assert calls[0] is not None
    pairs = zip(leaves(calls[0]), leaves(state.theta["representation"]), strict=True)
    assert all(torch.equal(torch.func.debug_unwrap(a, recurse=True), b) for a, b in pairs)
    pairs = zip(
        leaves(after.theta["representation"]), leaves(state.theta["representation"]), strict=True
    )
    assert any(not torch.equal(a, b) for a, b in pairs)
