"""Statistics against SciPy, and against numbers worked out by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from dpmcl.exceptions import SpecError
from dpmcl.results.statistics import FEWEST, bootstrap_interval, compare, estimate, holm
from dpmcl.results.summary import standard_error

SEEDS = range(10)


def values_by_seed(values: np.ndarray) -> dict[int, float]:
    return dict(enumerate(values.tolist()))


def test_an_estimate_is_that_of_scipy() -> None:
    values = np.random.default_rng(3).gamma(2.0, size=12)
    ours = estimate(np.append(values, [np.nan, np.inf]))
    assert (ours.replicas, ours.lost) == (12, 2)
    assert ours.mean == pytest.approx(values.mean())
    assert ours.error == pytest.approx(stats.sem(values))
    theirs = stats.t.interval(0.95, 11, loc=values.mean(), scale=stats.sem(values))
    assert ours.interval == pytest.approx(theirs)
    resampled = values[np.random.default_rng(1).integers(12, size=(20_000, 12))].mean(1)
    bootstrap = bootstrap_interval(np.append(values, np.nan))
    assert bootstrap == pytest.approx(np.quantile(resampled, [0.025, 0.975]), rel=0.03)
    assert bootstrap_interval(values) == bootstrap  # and again


@pytest.mark.parametrize(("values", "mean"), [([], None), ([np.nan], None), ([0.25], 0.25)])
def test_one_replica_has_no_interval(values: list[float], mean: float | None) -> None:
    ours = estimate(np.array(values))
    assert ours.mean == mean
    assert ours.error is ours.interval is None


def test_few_replicas_have_no_bootstrap_and_equal_values_no_error() -> None:
    assert bootstrap_interval(np.arange(FEWEST - 1)) is None
    ours = estimate([0.98] * 10)  # their mean is rounded
    assert ours.error == standard_error(np.full(10, 0.98)) == 0


def test_no_verdict_hides_that_the_mean_and_the_ranks_have_other_signs() -> None:
    gaps = np.append(-np.arange(1.0, 10.0) / 100, 5.0)  # lower on nine seeds, far higher on one
    ours = compare({"a": values_by_seed(gaps), "b": dict.fromkeys(SEEDS, 0.0)}, "b")[0]
    assert ours.difference > 0 > ours.effect and ours.verdict == "not significant"
    gaps = np.append(-np.arange(1.0, 20.0) / 100, 5.0)
    ours = compare({"a": values_by_seed(gaps), "b": dict.fromkeys(range(20), 0.0)}, "b")[0]
    assert ours.p < 0.05 and ours.verdict == "mean and ranks disagree"


def test_holm_by_hand() -> None:
    # 0.01 * 3; 0.03 * 2; 0.04 * 1 is less than the one before, so it is 0.06 too
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_methods_are_compared_in_pairs_of_one_seed() -> None:
    rng = np.random.default_rng(0)
    base = rng.uniform(0.2, 0.4, 10)
    values = {
        "er": values_by_seed(base),
        "better": values_by_seed(base - rng.uniform(0.01, 0.05, 10)),
        "same": values_by_seed(base + rng.normal(0, 0.01, 10)),
        "equal": values_by_seed(base),
    }
    better, same, equal = compare(values, "er")
    raw = [
        stats.wilcoxon(np.subtract(list(values[name].values()), base)).pvalue
        for name in ("better", "same")
    ]
    assert [better.p, same.p, equal.p] == pytest.approx(holm([*raw, 1.0]))
    assert (better.verdict, same.verdict) == ("lower", "not significant")
    assert better.effect == -1 and equal.effect == 0
    gaps = np.subtract(list(values["better"].values()), base)
    assert better.difference == pytest.approx(gaps.mean())
    theirs = stats.t.interval(0.95, 9, loc=gaps.mean(), scale=stats.sem(gaps))
    assert better.interval == pytest.approx(theirs)


def test_what_differs_by_rounding_alone_is_the_same() -> None:
    ours = compare({"a": dict.fromkeys(SEEDS, 0.1 + 0.2), "b": dict.fromkeys(SEEDS, 0.3)}, "b")[0]
    assert (ours.difference, ours.p, ours.effect, ours.verdict) == (0, 1, 0, "not significant")


def test_differences_that_cancel_have_a_mean_of_exactly_0() -> None:
    ours = dict(enumerate([0.2, 0.4, -0.6, 0.2, 0.2, -0.4, 0.0, 0.0]))
    assert sum(ours.values()) != 0
    assert compare({"a": ours, "b": dict.fromkeys(ours, 0.0)}, "b")[0].difference == 0


def test_the_effect_by_hand() -> None:
    gaps = [1.0, 2.0, 3.0, -4.0]  # ranks 1 + 2 + 3 above 0, 4 below: (6 - 4) / 10
    ours = compare({"a": values_by_seed(np.array(gaps)), "b": values_by_seed(np.zeros(4))}, "b")[0]
    assert ours.effect == pytest.approx(0.2)
    assert ours.verdict == "too few replicas" and ours.p is None


def test_equal_differences_have_equal_ranks_although_floating_point_rounds_them() -> None:
    ours = np.array([2, 2, 6, 1, 8, 0, 5, 8, 8, 8])  # errors on twelve rows
    theirs = np.array([0, 8, 9, 8, 11, 7, 10, 12, 5, 5])
    one = compare({"a": values_by_seed(ours / 12), "b": values_by_seed(theirs / 12)}, "b")[0]
    assert one.p == pytest.approx(stats.wilcoxon(ours - theirs).pvalue)
    ranks = stats.rankdata(abs(ours - theirs))
    assert one.effect == pytest.approx(ranks @ np.sign(ours - theirs) / ranks.sum())
    assert one.verdict == "not significant"


def test_pairs_without_a_difference_leave_the_test_exact() -> None:
    gaps = np.append(np.arange(1.0, 6.0), np.zeros(10))  # five of one sign: p = 2 / 2^5
    one = compare({"a": values_by_seed(gaps), "b": values_by_seed(np.zeros(15))}, "b")[0]
    assert (one.p, one.verdict) == (0.0625, "not significant")


def test_only_seeds_that_both_have_count_and_diverged_ones_do_not() -> None:
    ours = dict.fromkeys(range(FEWEST + 2), 0.5)
    theirs = dict.fromkeys(range(1, FEWEST + 3), 0.6)
    assert compare({"a": ours, "b": theirs}, "b")[0].pairs == FEWEST + 1
    theirs[1], ours[2] = math.nan, math.inf
    few = compare({"a": ours, "b": theirs}, "b")[0]
    assert (few.pairs, few.lost, few.verdict) == (FEWEST - 1, 2, "too few replicas")
    assert few.difference == pytest.approx(-0.1)


def test_the_chosen_method_must_be_there() -> None:
    with pytest.raises(SpecError, match="method to compare with"):
        compare({"er": {0: 0.1}}, "ER")


@pytest.mark.parametrize(("methods", "verdict"), [(6, "lower"), (7, "too few replicas")])
def test_so_many_methods_that_none_could_be_told_apart_are_too_few_replicas(methods, verdict):
    """Eight differences of one sign have p = 2 / 2^8, and seven times that exceeds 0.05."""
    errors = {f"m{k}": {seed: 0.1 + seed / 100 for seed in range(FEWEST)} for k in range(methods)}
    errors["er"] = {seed: 0.5 + seed / 90 for seed in range(FEWEST)}
    assert {pair.verdict for pair in compare(errors, "er")} == {verdict}
