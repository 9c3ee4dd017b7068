"""The step of Theorem 1 and equation (4): the rule, ||J_x|| ||dx||, and where it does not apply."""

import math

import pytest
import torch
from torch import nn

from conftest import tiny_model, tiny_stream, train
from dpmcl.core.batch import Batch
from dpmcl.core.model import Model, initial_weights
from dpmcl.core.tree import at, leaves
from dpmcl.data.splits import split
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
SEEDS = (0, 1)


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


def trained(stream, log_lines, engine=None, seeds=SEEDS, method=ER, **settings):
    """ER under the theorem's step, on classes or on windows of an equation."""
    splits = split(stream, seeds, (0.6, 0.2, 0.2))
    made = method(batch=8, updates=52, memory=50, lr=0.05, **settings)
    model = tiny_model(stream) if stream.kind == "classification" else lorenz_model(stream)
    out = train(made, model, stream, splits, seeds, engine or Looped(), note=log_lines.append)
    return out, model, splits


def lorenz_model(stream):
    def network():
        return nn.Sequential(nn.Linear(3, 8), nn.Tanh()), nn.Linear(8, 3)

    return Model.build(network, "regression", stream.example(torch.float64), 3, dtype=torch.float64)


def test_a_run_says_at_which_tasks_the_theorem_does_not_apply_and_what_it_did():
    log_lines: list[str] = []
    trained(tiny_stream(), log_lines, optimiser={"name": "theorem", "beta": 0.5})
    assert log_lines[0].startswith(
        "theorem 1 does not apply at task 1 ('task 1'): ||J_x|| ||dx|| = "
    )
    assert "steps are taken as if dx were 0" in log_lines[0]
    assert len(log_lines) == 1
    stay: list[str] = []
    rule = {"name": "theorem", "beta": 0.5, "otherwise": "stay"}
    trained(tiny_stream(), stay, optimiser=rule)
    assert "no steps are taken" in stay[0]


@pytest.mark.parametrize("drift", ["inputs", "features"])
def test_the_drift_matters_and_engines_agree(drift):
    optimiser = {"name": "theorem", "beta": 0.5, "drift": drift, "otherwise": "stay"}
    found = [
        trained(tiny_stream(), [], engine(), optimiser=optimiser)[0].theta
        for engine in (Looped, Batched)
    ]
    for a, b in zip(*(leaves(theta) for theta in found), strict=True):
        assert torch.allclose(a, b, rtol=1e-8, atol=1e-10)
    log_lines: list[str] = []
    blind = trained(tiny_stream(), log_lines, optimiser={**optimiser, "drift": "none"})[0].theta
    assert not log_lines
    assert not torch.allclose(leaves(found[0])[0], leaves(blind)[0])


def test_exact_drift_is_that_of_the_equation():
    stream = Lorenz(tasks=2).build(SEEDS)
    out, model, splits = trained(stream, [], optimiser={"name": "theorem", "drift": "exact"})
    assert math.isfinite(float(leaves(out.theta)[0].sum()))
    row = splits.train.row[0, :32]
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
        trained(tiny_stream(), [], optimiser={"name": "theorem", "drift": "exact"})
    with pytest.raises(SpecError, match="fourth_term = 'exact' needs a stream"):
        trained(tiny_stream(), [], method=DPMCL, fourth_term="exact")
    with pytest.raises(SpecError, match="fourth_term = 'estimated' moves inputs and targets"):
        trained(tiny_stream(), [], method=DPMCL, fourth_term="estimated")
