"""The optimisers are PyTorch's, step for step, as pure functions with finite derivatives."""

import pytest
import torch

from conftest import refused, tiny_task
from dpmcl.core.tree import leaves, tree_map
from dpmcl.exceptions import SpecError
from dpmcl.methods._method import Phase
from dpmcl.methods.naive import Naive
from dpmcl.optimisers._optimiser import Optimiser, build

STEPS = 25
LR = 0.05
RULES = {
    "adagrad": ({}, torch.optim.Adagrad, {}),
    "adagrad, options": (
        {"eps": 1e-6, "initial_accumulator": 0.1, "weight_decay": 0.2},
        torch.optim.Adagrad,
        {"eps": 1e-6, "initial_accumulator_value": 0.1, "weight_decay": 0.2},
    ),
    "sgd": ({}, torch.optim.SGD, {}),
    "sgd, options": (
        {"momentum": 0.9, "weight_decay": 0.2},
        torch.optim.SGD,
        {"momentum": 0.9, "weight_decay": 0.2},
    ),
    "adam": ({}, torch.optim.Adam, {}),
    "adam, options": (
        {"beta1": 0.5, "beta2": 0.9, "eps": 1e-4, "weight_decay": 0.2},
        torch.optim.Adam,
        {"betas": (0.5, 0.9), "eps": 1e-4, "weight_decay": 0.2},
    ),
}
each_rule = pytest.mark.parametrize("name", RULES)


def rule_of(name: str) -> Optimiser:
    return build({"name": name.split(",")[0], **RULES[name][0]}, LR)


def random_tree(generator, dtype=torch.float64):
    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    return {
        "representation": {"weight": normal(4, 3), "bias": normal(4)},
        "prediction": {"weight": normal(2, 4), "scale": normal()},
    }


def gradients(theta, step, generator, dtype):
    """Of varying size; the scale's is always zero, one row's for the first ten steps."""
    grads = tree_map(lambda g: g * 10.0 ** (step % 5 - 2), random_tree(generator, dtype))
    grads["prediction"]["scale"] = torch.zeros_like(theta["prediction"]["scale"])
    if step < 10:
        grads["representation"]["weight"][1] = 0
    if step == 12:
        grads = tree_map(torch.zeros_like, grads)
    return grads


@each_rule
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)], ids=str
)
def test_every_step_is_pytorchs(name, dtype, tolerance):
    _, theirs, options = RULES[name]
    rule, generator = rule_of(name), torch.Generator().manual_seed(0)
    theta = random_tree(generator, dtype)
    own = [leaf.clone().requires_grad_() for leaf in leaves(theta)]
    optimiser = theirs(own, lr=LR, **options)
    state = rule.init(theta)
    for step in range(STEPS):
        grads = gradients(theta, step, generator, dtype)
        theta, state = rule.step(theta, grads, state)
        for parameter, grad in zip(own, leaves(grads), strict=True):
            parameter.grad = grad.clone()
        optimiser.step()
        for mine, other in zip(leaves(theta), own, strict=True):
            assert mine.dtype == dtype
            torch.testing.assert_close(mine, other.detach(), rtol=tolerance, atol=tolerance)


@each_rule
def test_a_step_is_pure_and_a_part_steps_with_the_same_part_of_the_state(name):
    rule, generator = rule_of(name), torch.Generator().manual_seed(2)
    theta = random_tree(generator)
    state = rule.init(theta)
    for _ in range(3):
        theta, state = rule.step(theta, random_tree(generator), state)
    grads = random_tree(generator)
    before = tree_map(torch.clone, (theta, grads, state))
    whole, whole_state = rule.step(theta, grads, state)
    torch.testing.assert_close(before, (theta, grads, state), rtol=0, atol=0)
    for part in theta:
        some = rule.step(theta[part], grads[part], state[part])
        torch.testing.assert_close(some, (whole[part], whole_state[part]), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["adagrad", "adam"])
def test_the_derivative_of_a_step_is_finite_at_zero_and_right_elsewhere(name, dtype):
    rule = build(name, LR)

    def after(w, g):
        return rule.step({"w": w}, {"w": g}, rule.init({"w": w}))[0]["w"].sum()

    slope = torch.func.grad(after, argnums=1)
    g = torch.tensor([0.0, 0.5, -2.0], dtype=dtype)
    w = torch.tensor([1.0, 2.0, 3.0], dtype=dtype)
    assert slope(w, g).isfinite().all()
    assert slope(w, g)[0] < 0

    theta = {"w": torch.tensor([1.0, 2.0], dtype=torch.float64)}
    first = {"w": torch.tensor([0.3, -0.7], dtype=torch.float64)}
    theta, state = rule.step(theta, first, rule.init(theta))
    g = torch.tensor([0.4, 1.1], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda g: rule.step(theta, {"w": g}, state)[0]["w"], (g,))


class Given(Naive):
    """Steps on gradients that stand where a run puts batches."""

    def phases(self, model, task):
        return [Phase("train", 12, {}, lambda state, grads, key: self.descend(state, grads))]


@pytest.mark.parametrize("over", ["task", "run"])
@pytest.mark.parametrize("name", ["constant", "cosine", "step"])
def test_a_schedule_is_pytorchs(name, over):
    """Two tasks of twelve updates; over a task it starts anew with each."""
    tables = {"constant": "constant", "cosine": {"least": 0.1}, "step": {"every": 5, "by": 0.3}}
    schedule = tables[name]
    if name != "constant":
        schedule = {"name": name, "over": over, **schedule}
    settings = {"name": "sgd", "momentum": 0.9}
    method = Given(optimiser=settings, lr=LR, updates=12, schedule=schedule)
    (phase,) = method.planned(None, tiny_task())
    generator, task = torch.Generator().manual_seed(0), tiny_task()
    theta = random_tree(generator)
    state = start = method.start(theta, task)._replace(common=method.common(theta))
    own = [leaf.clone().requires_grad_() for leaf in leaves(theta)]
    optimiser = torch.optim.SGD(own, lr=LR, momentum=0.9)
    length = 12 if over == "task" else 24
    for number in range(2):
        state = method.begin_task(state, start, length, torch.empty(0, 2))
        if number == 0 or over == "task":
            for group in optimiser.param_groups:
                group["lr"] = LR
            theirs = {
                "constant": lambda: torch.optim.lr_scheduler.ConstantLR(optimiser, 1.0),
                "cosine": lambda: torch.optim.lr_scheduler.CosineAnnealingLR(
                    optimiser, length, eta_min=0.1 * LR
                ),
                "step": lambda: torch.optim.lr_scheduler.StepLR(optimiser, 5, 0.3),
            }[name]()
        for _ in range(12):
            grads = random_tree(generator)
            state = phase.update(state, grads, torch.zeros(1, 2, dtype=torch.int64))
            for parameter, grad in zip(own, leaves(grads), strict=True):
                parameter.grad = grad.clone()
            optimiser.step()
            theirs.step()
            for mine, other in zip(leaves(state.theta), own, strict=True):
                torch.testing.assert_close(mine, other.detach(), rtol=1e-12, atol=1e-12)


def test_a_rate_of_zero_is_refused():
    line = "optimiser 'adam': lr must be greater than 0, got 0."
    refused(lambda: build("adam", 0), line, error=SpecError)
