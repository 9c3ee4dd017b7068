"""Discounts: their weights against formulas, their sums, their settings, and a user's own."""

import math
from dataclasses import dataclass

import pytest
import torch

from conftest import refused
from dpmcl import plugins
from dpmcl.discounts._discount import Discount, gamma
from dpmcl.discounts.constant import Constant
from dpmcl.discounts.exponential import Exponential
from dpmcl.discounts.power import Power
from dpmcl.discounts.window import Window
from dpmcl.exceptions import SpecError

FORMULAS = {
    "constant": ({"name": "constant"}, lambda s: 1.0),
    "exponential": ({"name": "exponential", "rate": 0.3}, lambda s: math.exp(-0.3 * s)),
    "power": ({"name": "power", "p": 1.5}, lambda s: 1 / (1 + s) ** 1.5),
    "growing": ({"name": "power", "p": -2}, lambda s: (1 + s) ** 2),
    "window": ({"name": "window", "width": 4}, lambda s: float(s < 4)),
}
each_formula = pytest.mark.parametrize(("setting", "formula"), FORMULAS.values(), ids=FORMULAS)


@each_formula
@pytest.mark.parametrize("by", ["age", "time"])
def test_gamma_counts_from_the_newest_task_or_from_the_first(setting, formula, by):
    discount, newest = plugins.from_setting("discount", {**setting, "by": by}), torch.arange(7)
    mapped = torch.func.vmap(lambda now: gamma(discount, now, torch.arange(7)))(newest)
    for now in range(7):
        expected = [0.0 if k > now else formula(now - k if by == "age" else k) for k in range(7)]
        weights = gamma(discount, now, torch.arange(7))
        assert weights.tolist() == pytest.approx(expected, rel=1e-14)
        torch.testing.assert_close(mapped[now], weights, rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    ("discount", "total"),
    [
        (Constant(), math.inf),
        (Power(p=1), math.inf),
        (Power(p=-0.5), math.inf),
        (Exponential(rate=0.05), 1 / (1 - math.exp(-0.05))),
        (Power(p=2), math.pi**2 / 6),
        (Power(p=1.5), 2.6123753486854883),
        (Window(width=7), 7.0),
    ],
    ids=str,
)
def test_the_total_is_the_closed_form_and_the_brute_sum(discount, total):
    assert discount.total == pytest.approx(total, rel=1e-12)
    if math.isfinite(total):
        n = 1_000_000
        brute = float(discount.weights(torch.arange(n, dtype=torch.float64)).sum())
        # What is left of a power: the integral from n, within half of its first term.
        rest = n ** (1 - discount.p) / (discount.p - 1) if isinstance(discount, Power) else 0.0
        assert brute + rest == pytest.approx(total, rel=1e-9)


@dataclass(frozen=True, kw_only=True)
class Halving(Discount):
    """A user's own."""

    half: float = 2.0

    def weights(self, s):
        return 2 ** (-s / self.half)


def test_a_users_own_discount_has_options_and_the_same_uses():
    setting = {"name": f"{__name__}:Halving", "half": 3.0, "by": "time"}
    discount = plugins.from_setting("discount", setting)
    weights = gamma(discount, 9, torch.tensor([0, 3, 6, 12]))
    assert weights.dtype == torch.float64
    assert weights.tolist() == pytest.approx([1, 0.5, 0.25, 0])
    assert discount.total is None


def normalised(s):
    w = torch.exp(-s / 9)
    return w / w.sum()


@pytest.mark.parametrize(
    ("weights", "line"),
    [
        (lambda s: 1 / s, "must be finite, at least 0 and not all 0, got inf at s = 0"),
        (lambda s: 0.0 * s, "not all 0, got 0 at s = 0"),
        (lambda s: s.numpy() + 1, "must return a tensor of the shape of s"),
        (lambda s: s.exp() if s.max() < 3 else torch.ones_like(s), "under torch.func.vmap too"),
        (normalised, "from its own s alone"),
    ],
)
def test_weights_that_no_run_could_use_are_refused_when_they_are_built(weights, line):
    own = type("Own", (Discount,), {"weights": lambda self, s: weights(s)})
    refused(own, line, error=SpecError)


@pytest.mark.parametrize("total", [1.9, -2.0, math.nan])
def test_a_sum_that_the_weights_exceed_is_refused(total):
    """J(t) would be said to stay below a bound that it exceeds."""
    with pytest.raises(SpecError, match=r"at least 2, got"):
        type("Wrong", (Discount,), {"weights": lambda self, s: 0.5**s, "total": total})()
