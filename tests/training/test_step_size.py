"""The step of Theorem 1 and equation (4): the rule, ||J_x|| ||dx||, and where it does not apply."""

import math

import pytest
import torch
from torch import nn

from conftest import model_of, setup_of, tiny_run
from dpmcl.core.batch import Batch
from dpmcl.core.model import initial_weights
from dpmcl.core.tree import at, leaves
from dpmcl.engine import Batched, Looped
from dpmcl.exceptions import ModelError, SpecError
from dpmcl.methods.dpmcl import DPMCL
from dpmcl.methods.er import ER
from dpmcl.optimisers import _optimiser as optim
from dpmcl.streams.lorenz import Lorenz
from dpmcl.theory.terms import reach

THETA = {"a": torch.tensor([3.0, -1.0], dtype=torch.float64), "b": torch.ones(1).double()}
GRADS = {
    "a": torch.tensor([0.6, 0.0], dtype=torch.float64),
    "b": torch.tensor([0.8], dtype=torch.float64),
}
SMALL = {"batch": 8, "updates": 52, "memory": 50, "lr": 0.05}


def rule(drift=0.0, **settings):
    """A rule, and its state where ||J_x|| ||dx|| is `drift`."""
    optimiser = optim.build({"name": "theorem", "beta": 5.0, "eps": 1e-9, **settings}, lr=1e6)
    state = optimiser.with_reach(optimiser.init(THETA), torch.tensor(drift, dtype=torch.float64))
    return optimiser, state


def moved(optimiser, state, grads=GRADS, cost=None):
    """How far theta stepped, along the gradient, whose norm is 1."""
    theta, after = optimiser.step(THETA, grads, state, cost)
    assert after == state
    change = [(THETA[k] - theta[k]) for k in THETA]
    assert torch.allclose(change[0] * GRADS["b"], change[1] * GRADS["a"], rtol=1e-12)
    return float(change[1] / GRADS["b"])


@pytest.mark.parametrize("drift", [0.0, 0.25, 0.999])
def test_equation_4_divides_by_the_squared_norm_of_all_parameters(drift):
    assert moved(*rule(drift)) == pytest.approx((1 - drift) / 5.0, rel=1e-8)
    twice = {name: 2 * grad for name, grad in GRADS.items()}
    assert moved(*rule(drift), twice) == pytest.approx((1 - drift) / 10.0, rel=1e-8)


def test_a_part_that_is_frozen_as_a_whole_takes_no_step():
    rule = optim.build("theorem", lr=0.1)
    assert rule.step({}, {}, rule.init({})) == ({}, {})


def test_the_theorems_own_update_is_a_share_of_polyaks_step():
    optimiser, state = rule(0.2, form="V_theta")
    cost = torch.tensor(0.7, dtype=torch.float64)
    assert moved(optimiser, state, cost=cost) == pytest.approx(0.7 * 0.8 / 5.0, rel=1e-8)
    assert moved(optimiser, state, cost=-cost) == 0
    with pytest.raises(ModelError, match="needs the cost beside its gradient"):
        optimiser.step(THETA, GRADS, state)


def test_lr_is_the_largest_alpha():
    optimiser = optim.build({"name": "theorem", "beta": 5.0}, lr=0.01)
    assert moved(optimiser, optimiser.init(THETA)) == pytest.approx(0.01, rel=1e-8)
    none = {name: torch.zeros_like(grad) for name, grad in GRADS.items()}
    theta, _ = optimiser.step(THETA, none, optimiser.init(THETA))
    assert all(torch.equal(theta[name], THETA[name]) for name in THETA)


@pytest.mark.parametrize(("otherwise", "step"), [("ignore", 1 / 5.0), ("stay", 0.0)])
@pytest.mark.parametrize("drift", [1.0, 3.0])
def test_where_the_theorem_does_not_apply_it_does_what_it_is_told(otherwise, step, drift):
    assert moved(*rule(drift, otherwise=otherwise)) == pytest.approx(step, rel=1e-8)


def trained(engine=None, method=ER, **settings):
    """Parameters of a method on the tiny stream."""
    return tiny_run(method(**SMALL, **settings), engine=engine).theta


def test_a_run_says_at_which_tasks_the_theorem_does_not_apply_and_what_it_did(log_lines):
    for otherwise, said in (
        ("ignore", "steps are taken as if dx were 0"), ("stay", "no steps are taken")
    ):  # fmt: skip
        log_lines.clear()
        trained(optimiser={"name": "theorem", "beta": 0.5, "otherwise": otherwise})
        (line,) = log_lines
        assert line.startswith("theorem 1 does not apply at task 1 ('task 1'): ||J_x|| ||dx|| = ")
        assert said in line


@pytest.mark.parametrize("drift", ["inputs", "features"])
def test_the_drift_matters_and_engines_agree(drift, log_lines):
    optimiser = {"name": "theorem", "beta": 0.5, "otherwise": "stay"}
    blind = trained(optimiser={**optimiser, "drift": "none"})
    assert not log_lines
    looped, batched = (
        trained(engine(), optimiser={**optimiser, "drift": drift}) for engine in (Looped, Batched)
    )
    torch.testing.assert_close(looped, batched, rtol=1e-8, atol=1e-10)
    assert not torch.allclose(leaves(looped)[0], leaves(blind)[0])


def test_exact_drift_is_that_of_the_equation():
    stream = Lorenz(tasks=2).build((0, 1))
    model = model_of(stream, lambda: (nn.Sequential(nn.Linear(3, 8), nn.Tanh()), nn.Linear(8, 3)))
    method = ER(**SMALL, optimiser={"name": "theorem", "drift": "exact"})
    out = tiny_run(method, stream=stream, model=model)
    assert math.isfinite(float(leaves(out.theta)[0].sum()))
    row = setup_of(method, stream, model=model).splits.train.row[0, :32]
    here, there = (
        stream.batch(r, torch.ones_like(r, dtype=torch.bool), r * 0, torch.float64, replica=0)
        for r in (row, stream.following[row])
    )
    theta = at(initial_weights(model, [0]), 0)
    far = reach(model, theta, here, there)
    still = reach(model, theta, here, here)
    nearly = Batch(here.x + (there.x - here.x) / 10, here.y + (there.y - here.y) / 10, *here[2:])
    assert float(still) == 0
    assert float(reach(model, theta, here, nearly)) == pytest.approx(float(far) / 10, rel=1e-9)


def test_what_the_stream_cannot_tell_is_refused():
    with pytest.raises(SpecError, match=r"optimiser\.drift = 'exact' needs a stream that knows"):
        trained(optimiser={"name": "theorem", "drift": "exact"})
    with pytest.raises(SpecError, match="fourth_term = 'exact' needs a stream"):
        trained(method=DPMCL, fourth_term="exact")
    with pytest.raises(SpecError, match="fourth_term = 'estimated' moves inputs and targets"):
        trained(method=DPMCL, fourth_term="estimated")
