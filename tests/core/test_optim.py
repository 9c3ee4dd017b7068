"""The optimisers are PyTorch's, step for step, as pure functions with finite derivatives."""

import pytest
import torch

from dpmcl.core import optim
from dpmcl.core.tree import at, leaves, stack, tree_map
from dpmcl.exceptions import SpecError

STEPS = 25
LR = 0.05
RULES = {
    "adagrad": ({"name": "adagrad"}, torch.optim.Adagrad, {}),
    "adagrad with options": (
        {"name": "adagrad", "eps": 1e-6, "initial_accumulator": 0.1},
        torch.optim.Adagrad,
        {"eps": 1e-6, "initial_accumulator_value": 0.1},
    ),
    "sgd": ({"name": "sgd"}, torch.optim.SGD, {}),
    "sgd with momentum": ({"name": "sgd", "momentum": 0.9}, torch.optim.SGD, {"momentum": 0.9}),
    "adam": ({"name": "adam"}, torch.optim.Adam, {}),
    "adam with options": (
        {"name": "adam", "beta1": 0.5, "beta2": 0.9, "eps": 1e-4},
        torch.optim.Adam,
        {"betas": (0.5, 0.9), "eps": 1e-4},
    ),
}
each_rule = pytest.mark.parametrize("name", RULES)


def rule_of(name: str) -> optim.Optimiser:
    return optim.build(RULES[name][0], LR)


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
    rule = rule_of(name)
    generator = torch.Generator().manual_seed(0)
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
def test_a_parameter_without_gradient_stays(name):
    rule = rule_of(name)
    theta = {"w": torch.tensor([1.0, -2.0], dtype=torch.float64)}
    state = rule.init(theta)
    for _ in range(3):
        theta, state = rule.step(theta, {"w": torch.zeros(2, dtype=torch.float64)}, state)
    assert theta["w"].tolist() == [1.0, -2.0]


def test_adagrads_first_step_is_the_gradients_sign():
    theta = {"w": torch.zeros(3, dtype=torch.float64)}
    rule = optim.Adagrad(lr=0.1)
    grads = {"w": torch.tensor([100.0, -1e-3, 0.0], dtype=torch.float64)}
    stepped, _ = rule.step(theta, grads, rule.init(theta))
    expected = torch.tensor([-0.1, 0.1, 0.0], dtype=torch.float64)
    torch.testing.assert_close(stepped["w"], expected, rtol=1e-6, atol=0)


@each_rule
def test_a_step_changes_none_of_its_inputs(name):
    rule = rule_of(name)
    generator = torch.Generator().manual_seed(1)
    theta, grads = random_tree(generator), random_tree(generator)
    _, state = rule.step(theta, grads, rule.init(theta))
    before = [leaf.clone() for leaf in leaves((theta, grads, state))]
    rule.step(theta, grads, state)
    for old, new in zip(before, leaves((theta, grads, state)), strict=True):
        assert torch.equal(old, new)


@each_rule
def test_a_part_steps_with_the_same_part_of_the_state(name):
    rule = rule_of(name)
    generator = torch.Generator().manual_seed(2)
    theta = random_tree(generator)
    state = rule.init(theta)
    for _ in range(3):
        theta, state = rule.step(theta, random_tree(generator), state)
    grads = random_tree(generator)
    whole, whole_state = rule.step(theta, grads, state)
    for part in theta:
        some, some_state = rule.step(theta[part], grads[part], state[part])
        for a, b in zip(
            leaves((some, some_state)), leaves((whole[part], whole_state[part])), strict=True
        ):
            assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["adagrad", "adam"])
def test_the_derivative_of_a_step_at_a_zero_gradient_is_finite(name, dtype):
    rule = optim.build(name, LR)
    theta = {"w": torch.tensor([1.0, 2.0, 3.0], dtype=dtype)}
    state = rule.init(theta)

    def after(g):
        return rule.step(theta, {"w": g}, state)[0]["w"].sum()

    g = torch.tensor([0.0, 0.5, -2.0], dtype=dtype)
    slope = torch.func.grad(after)(g)
    assert slope.isfinite().all()
    assert slope[0] < 0


@pytest.mark.parametrize("name", ["adagrad", "adam"])
def test_the_derivative_through_two_steps_of_dead_units_is_finite(name):
    rule = optim.build(name, LR)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    first = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    bias = torch.tensor([-100.0, -100.0, 0.0, 0.0], dtype=torch.float64)
    start = {
        "first": first,
        "bias": bias,
        "second": torch.ones(1, 4, dtype=torch.float64),
    }

    def cost(theta):
        hidden = torch.relu(x @ theta["first"].T + theta["bias"])
        return (hidden @ theta["second"].T).square().mean()

    def after_two_steps(theta):
        state = rule.init(theta)
        for _ in range(2):
            theta, state = rule.step(theta, torch.func.grad(cost)(theta), state)
        return cost(theta)

    assert torch.equal(torch.func.grad(cost)(start)["first"][:2], torch.zeros(2, 3).double())
    slopes = torch.func.grad(after_two_steps)(start)
    assert all(slope.isfinite().all() for slope in leaves(slopes))
    assert slopes["first"][2:].abs().sum() > 0


@pytest.mark.parametrize("name", ["adagrad", "adam"])
def test_the_derivative_of_a_step_agrees_with_finite_differences(name):
    rule = optim.build(name, LR)
    theta = {"w": torch.tensor([1.0, 2.0], dtype=torch.float64)}
    g0 = {"w": torch.tensor([0.3, -0.7], dtype=torch.float64)}
    theta, state = rule.step(theta, g0, rule.init(theta))

    def after(g):
        return rule.step(theta, {"w": g}, state)[0]["w"]

    g = torch.tensor([0.4, 1.1], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(after, (g,))


@each_rule
def test_replicas_step_under_vmap_as_they_do_alone(name):
    rule = rule_of(name)
    generator = torch.Generator().manual_seed(4)
    thetas = stack([random_tree(generator) for _ in range(3)])
    grads = [stack([random_tree(generator) for _ in range(3)]) for _ in range(4)]
    together = thetas
    state = torch.func.vmap(rule.init)(together)
    for grad in grads:
        together, state = torch.func.vmap(rule.step)(together, grad, state)
    for replica in range(3):
        alone = at(thetas, replica)
        own = rule.init(alone)
        for grad in grads:
            alone, own = rule.step(alone, at(grad, replica), own)
        for many, one in zip(leaves(at(together, replica)), leaves(alone), strict=True):
            torch.testing.assert_close(many, one, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("name", ["adagrad", "adam"])
def test_the_derivative_at_zero_is_finite_under_vmap(name):
    rule = optim.build(name, LR)

    def slope(w, g):
        state = rule.init({"w": w})
        return torch.func.grad(lambda g: rule.step({"w": w}, {"w": g}, state)[0]["w"].sum())(g)

    found = torch.func.vmap(slope)(torch.ones(3, 2), torch.tensor([[0.0, 1.0]] * 3))
    assert found.isfinite().all()


@pytest.mark.parametrize("name", ["adagrad", "sgd", "adam"])
def test_a_name_and_a_table_mean_the_same(name):
    assert optim.build(name, 0.3) == optim.build({"name": name}, 0.3)
    assert optim.build(name, 0.3).lr == 0.3


def test_building_leaves_the_table_alone():
    table = {"name": "sgd", "momentum": 0.9}
    optim.build(table, 0.1)
    assert table == {"name": "sgd", "momentum": 0.9}


@pytest.mark.parametrize(
    ("setting", "lr", "line"),
    [
        (
            "adagard",
            0.1,
            "No optimiser 'adagard'. Did you mean 'adagrad'? "
            "There are: adagrad, sgd, adam, theorem.",
        ),
        (
            {"name": "sgd", "momentun": 0.9},
            0.1,
            "No setting 'momentun'. Did you mean 'momentum'? In optimiser 'sgd'. "
            "It has: lr, momentum.",
        ),
        ("adam", 0, "optimiser 'adam' lr must be greater than 0, got 0."),
        ("sgd", -0.5, "optimiser 'sgd' lr must be greater than 0, got -0.5."),
        ({}, 0.1, "optimiser needs a name, as in optimiser = 'adagrad'."),
        ({"name": 3}, 0.1, "optimiser needs a name, as in optimiser = 'adagrad'."),
        (
            {"name": "sgd", "momentum": 1},
            0.1,
            "optimiser 'sgd' momentum must be less than 1, got 1.",
        ),
        (
            {"name": "adam", "beta2": -0.1},
            0.1,
            "optimiser 'adam' beta2 must be greater than or equal to 0, got -0.1.",
        ),
    ],
)
def test_a_setting_that_breaks_a_rule_is_refused_in_one_line(setting, lr, line):
    with pytest.raises(SpecError) as caught:
        optim.build(setting, lr)
    assert str(caught.value) == line
