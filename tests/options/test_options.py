"""Options that every method can have, against the formulas of their docstrings."""

import torch

from conftest import tiny_run
from dpmcl import plugins
from dpmcl.core import keys
from dpmcl.core.tree import leaves
from dpmcl.methods.naive import Naive
from dpmcl.options.shrink_perturb import ShrinkPerturb

KEY = torch.tensor([3, 4])


def test_shrink_and_perturb_shrinks_and_adds_noise_of_its_own_to_each_weight():
    theta = {"representation": torch.ones(200, 100), "prediction": torch.ones(100).double()}
    h, g = leaves(ShrinkPerturb(shrink=0.5, noise=0.1).begin_task(theta, KEY))
    assert (h.dtype, g.dtype) == (torch.float32, torch.float64)
    assert abs(float(h.mean()) - 0.5) < 0.003
    assert abs(float(h.std()) - 0.1) < 0.002
    assert not torch.equal(h[0].double(), g)
    noise = keys.normal(KEY, (100_000,))
    for power, moment in ((1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0)):
        assert abs(float((noise**power).mean()) - moment) < 0.08


def test_every_method_takes_them():
    """In each step of theta, and before each task; a run of plain gradient descent differs."""
    small = {"optimiser": "sgd", "lr": 0.05, "batch": 4, "updates": 3, "memory": 10}
    options = [{"name": "l2_init", "strength": 0.1}, "shrink_perturb"]
    for name in plugins.names("method"):
        method = plugins.find("method", name)
        plain, with_them = (
            leaves(tiny_run(method(**small, options=o), (0,), tasks=1).theta) for o in ((), options)
        )
        assert not any(torch.equal(*pair) for pair in zip(plain, with_them, strict=True)), name


def test_an_option_alone_is_that_of_the_formula():
    """theta after one step: g + 2 strength (theta - theta_0) is g at the first update."""
    small = {"optimiser": "sgd", "lr": 0.05, "batch": 4}
    runs = {}
    for n in (1, 2):
        for strength in (0.0, 0.5):
            method = Naive(**small, updates=n, options=[{"name": "l2_init", "strength": strength}])
            runs[n, strength] = leaves(tiny_run(method, (0,), tasks=1).theta)
    start = leaves(tiny_run(Naive(**{**small, "lr": 1e-30}, updates=1), (0,), tasks=1).theta)
    for once, pulled, two, moved, initial in zip(
        runs[1, 0.0], runs[1, 0.5], runs[2, 0.0], runs[2, 0.5], start, strict=True
    ):
        assert torch.equal(once, pulled)
        torch.testing.assert_close(moved, two - 0.05 * 2 * 0.5 * (once - initial))


def test_only_a_penalty_keeps_the_initial_weights():
    bytes_of = {
        name: tiny_run(Naive(updates=1, batch=4, options=(name,))).work.copies_bytes
        for name in ("l2_init", "shrink_perturb")
    }
    assert bytes_of["l2_init"] > bytes_of["shrink_perturb"] == 0
