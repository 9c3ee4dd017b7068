"""J(t) under a discount: its sums, the statement that holds, and where the proofs do not follow."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.discount import partial_sums
from dpmcl.discounts._discount import Discount
from dpmcl.discounts.constant import Constant
from dpmcl.discounts.exponential import Exponential
from dpmcl.discounts.power import Power
from dpmcl.discounts.window import Window
from dpmcl.theory.discount import verdict

EACH = [Constant(), Exponential(rate=0.3), Power(p=1.5), Power(p=-2), Window(width=4)]


def growth(values: np.ndarray) -> float:
    """Return how much the last half of the tasks adds."""
    return float(values[-1] - values[len(values) // 2 - 1])


@pytest.mark.parametrize("by", ["age", "time"])
@pytest.mark.parametrize("discount", EACH, ids=str)
def test_partial_sums_are_the_double_loop(discount, by):
    tasks, discount = 7, replace(discount, by=by)
    weights = discount.first_weights().tolist()
    losses = np.random.default_rng(0).random((2, tasks, tasks))
    losses[:, *np.triu_indices(tasks, 1)] = np.nan
    J, fixed = partial_sums(losses, discount), partial_sums(losses[:, -1], discount)
    for t in range(tasks):
        w = np.array([weights[t - k if by == "age" else k] for k in range(t + 1)])
        for r in range(2):
            assert J[r, t] == pytest.approx(sum(w * losses[r, t, : t + 1]), rel=1e-12)
            assert fixed[r, t] == pytest.approx(sum(w * losses[r, -1, : t + 1]), rel=1e-12)


CASES = [
    (Constant(), "corollary 1", "diverges", "diverges"),
    (Power(p=0), "corollary 1", "diverges", "diverges"),
    (Power(p=-0.5), "corollary 1", "diverges", "diverges"),
    (Power(p=0.5), "neither", "diverges", "diverges"),
    (Power(p=1), "neither", "diverges", "diverges"),
    (Power(p=1.5), "lemma 1", "converges", "bounded"),
    (Exponential(rate=0.01), "lemma 1", "converges", "bounded"),
    (Window(width=50), "lemma 1", "converges", "bounded"),
]


@pytest.mark.parametrize(("discount", "statement", "by_time", "by_age"), CASES, ids=str)
def test_the_numbers_do_what_the_verdict_says(discount, statement, by_time, by_age):
    """Under the losses of Lemma 1: fixed in time, between eps = 0.5 and L = 1."""
    tasks, eps = 4000, 0.5
    losses = eps + 0.5 * np.random.default_rng(0).random((1, tasks))
    weights, total = discount.first_weights()[:tasks].numpy(), discount.total
    last_half = weights[tasks // 2 :].sum()
    for by, outcome in (("time", by_time), ("age", by_age)):
        holds = verdict(replace(discount, by=by))
        assert holds.outcome == outcome
        # Lemma 1 is written by time; by age J(t) need not converge (below).
        bounded_only = statement == "lemma 1" and by == "age"
        assert holds.statement == ("neither" if bounded_only else statement)
        J = partial_sums(losses, replace(discount, by=by))[0]
        if outcome == "diverges":
            assert "grows without bound" in holds.line
            assert growth(J) >= (eps if by == "time" else eps - 0.1) * last_half
            assert last_half >= math.log(2) - 1e-3
        else:
            assert f"J(t) <= {total:.4g} L" in holds.line
            assert J.max() <= total
        if outcome == "converges":
            assert 0 <= growth(J) <= total - weights[: tasks // 2].sum() + 1e-9


class Told(Discount):
    """Weights s exp(-s), which rise and then fall, with and without a sum that their class says."""

    def weights(self, s):
        return s * torch.exp(-s)


class Summed(Told):
    total = math.exp(-1) / (1 - math.exp(-1)) ** 2


def test_a_users_own_discount_is_unclear_unless_it_says_its_sum():
    unclear = verdict(Told(by="time"))
    assert unclear[:2] == ("neither", "unclear")
    assert "Told" in unclear.line
    assert "`total`" in unclear.line
    rising = verdict(Summed(by="time"))
    assert rising[:2] == ("neither", "converges")
    assert "rises at times" in rising.line
    assert float(Told().first_weights().sum()) == pytest.approx(Summed.total)


# Where the proofs do not follow, by the numbers of the notes in docs/theory_results.md


def test_the_ratio_test_of_the_proof_calls_a_divergent_sum_convergent():
    """Note 1: the ratio of 1 / (1 + t) is below 1 for all t1 < t2, and its sum has no limit."""
    weights = Power(p=1).first_weights()[:4096].numpy()
    assert (weights[1:] / weights[:-1]).max() < 1
    assert verdict(Power(p=1, by="time")).outcome == "diverges"
    assert growth(np.cumsum(weights)) > 0.69
