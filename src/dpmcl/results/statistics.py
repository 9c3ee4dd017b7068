"""Means and differences of methods, with intervals, paired tests and effect sizes."""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from dpmcl.exceptions import needed_for, unknown

LEVEL = 0.95
"""Confidence level of intervals. A difference is significant if p is below 1 - LEVEL."""

FEWEST = 8
"""Smallest number of pairs for a test: with seven, no p of Wilcoxon's test can pass Holm's
correction for four comparisons."""

_RESAMPLES = 9_999
_SEED = 0  # seed of the resampling, so that equal results give equal intervals

Interval = tuple[float, float]


class Estimate(NamedTuple):
    """Mean over replicas, with its standard error and confidence interval.

    Attributes:
        replicas: Number of replicas with a finite value.
        lost: Number of replicas without a finite value, such as those that diverged.
        mean: Mean of the finite values; None if there are none.
        error: Standard error, from the standard deviation with ddof=1. None, as is the interval,
            for fewer than two finite values.
        interval: 95 % interval of the mean by Student's t.
    """

    replicas: int
    lost: int
    mean: float | None
    error: float | None
    interval: Interval | None


Verdict = Literal[
    "lower", "higher", "mean and ranks disagree", "not significant", "too few replicas"
]


class Comparison(NamedTuple):
    """Comparison of a method with another one, on the seeds that both have.

    Attributes:
        method: Name of the method.
        against: Name of the method that it is compared with.
        pairs: Number of seeds on which both have a finite value.
        lost: Number of seeds that both have but on which one has no finite value.
        difference: Mean of method - against; None without a pair.
        interval: 95 % interval of the difference by Student's t; None for fewer than two pairs.
        p: Two-sided p value of Wilcoxon's signed-rank test, with Holm's correction for all
            comparisons of one call; None for fewer than `FEWEST` pairs.
        effect: Matched-pairs rank-biserial correlation over the seeds on which the two differ, from
            -1 (lower on all of these) to 1 (higher on all); 0 if they never differ; None without a
            pair.
        verdict: "lower" or "higher" for a significant difference, or "mean and ranks disagree" if
            its sign is not that of the effect; "not significant" for any other difference;
            "too few replicas" without p, or if no p of as many pairs could be significant.
    """

    method: str
    against: str
    pairs: int
    lost: int
    difference: float | None
    interval: Interval | None
    p: float | None
    effect: float | None
    verdict: Verdict


def estimate(values: Iterable[float]) -> Estimate:
    """Return the mean of a metric over replicas, with its standard error and interval.

    Args:
        values: Value of each replica, (replicas,). NaN and infinite values are left out.

    Raises:
        DpmclError: SciPy is not installed.
    """
    values = np.fromiter(values, np.float64)
    known = values[np.isfinite(values)]
    several = len(known) > 1
    return Estimate(
        replicas=len(known),
        lost=len(values) - len(known),
        mean=float(known.mean()) if len(known) else None,
        error=standard_error(known) if several else None,
        interval=t_interval(known) if several else None,
    )


def standard_error(values: np.ndarray) -> float:
    """Return the standard error of a mean; exactly 0 if all values are equal.

    It is computed from the standard deviation with ddof=1. Section 4 of the paper gives
    sigma / sqrt(50) and does not state ddof.

    Args:
        values: At least two finite values, (replicas,).
    """
    # The mean of equal values may be rounded, and their deviations are then not 0.
    return float((values - values[0]).std(ddof=1) / math.sqrt(len(values)))


def compare(values: Mapping[str, Mapping[int, float]], against: str) -> list[Comparison]:
    """Compare every method with one of them, in pairs of the same seed.

    Args:
        values: Values of a metric by method and seed.
        against: Name of the method that the others are compared with.

    Returns:
        A comparison for each of the other methods, in the order of `values`.

    Raises:
        SpecError: There is no method of that name.
        DpmclError: SciPy is not installed.

    >>> ours = {seed: 0.1 + seed / 100 for seed in range(8)}
    >>> theirs = {seed: 0.3 + seed / 90 for seed in range(8)}
    >>> compare({"dpmcl": ours, "er": theirs}, "er")[0].verdict
    'lower'
    """
    if against not in values:
        names = ", ".join(values)
        raise unknown("method to compare with", against, list(values), f"There are: {names}.")
    others = [name for name in values if name != against]
    gaps = {name: differences(values[name], values[against]) for name in others}
    tested = [name for name in others if len(gaps[name]) >= FEWEST]
    p = holm([_wilcoxon(tuple(gaps[name].tolist())) for name in tested])
    corrected = dict(zip(tested, p, strict=True))
    return [
        Comparison(
            method=name,
            against=against,
            pairs=len(gap),
            lost=len(values[name].keys() & values[against].keys()) - len(gap),
            difference=mean_difference(gap) if len(gap) else None,
            interval=t_interval(gap) if len(gap) > 1 else None,
            p=corrected.get(name),
            effect=_rank_biserial(gap) if len(gap) else None,
            verdict=_verdict(gap, corrected.get(name), len(tested)),
        )
        for name, gap in gaps.items()
    ]


def holm(p: Sequence[float]) -> list[float]:
    """Return p values with Holm's correction (1979) for their number, in the same order.

    Args:
        p: Uncorrected p values.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected = [0.0] * len(p)
    largest = 0.0
    for rank, index in enumerate(np.argsort(p, kind="stable")):
        largest = max(largest, min(1.0, (len(p) - rank) * p[index]))
        corrected[index] = largest
    return corrected


def differences(ours: Mapping[int, float], theirs: Mapping[int, float]) -> np.ndarray:
    """Return ours - theirs on the seeds on which both are finite; 0 if they differ by rounding.

    They are rounded, so that differences of equal size have equal ranks.

    Args:
        ours, theirs: Value of a metric by seed.
    """
    shared = sorted(ours.keys() & theirs.keys())
    pairs = np.array([[ours[seed], theirs[seed]] for seed in shared], float).reshape(-1, 2)
    first, second = pairs[np.isfinite(pairs).all(1)].T
    gaps = np.where(np.isclose(first, second, rtol=1e-9, atol=0), 0.0, first - second)
    return np.array([rounded(gap) for gap in gaps])


def rounded(value: float) -> float:
    """Return a number with ten significant digits: equal ones that floating point told apart.

    Args:
        value: Any number.

    >>> 9 / 12 - 7 / 12 == 5 / 12 - 3 / 12, rounded(9 / 12 - 7 / 12) == rounded(5 / 12 - 3 / 12)
    (False, True)
    """
    return float(f"{value:.9e}")


def mean_difference(gaps: np.ndarray) -> float:
    """Return the mean of differences; exactly 0 if they cancel but for rounding.

    Args:
        gaps: At least one difference, as `differences` returns them.
    """
    mean = float(gaps.mean())
    return 0.0 if abs(mean) < 1e-9 * float(np.abs(gaps).max()) else mean


def _verdict(gaps: np.ndarray, p: float | None, tests: int) -> Verdict:
    """Return the verdict on finite differences.

    There are too few replicas if even differences of one sign could not pass Holm's correction for
    `tests` tests.
    """
    if p is not None and p < 1 - LEVEL:
        effect = _rank_biserial(gaps)
        if effect * mean_difference(gaps) < 0:
            return "mean and ranks disagree"
        return "lower" if effect < 0 else "higher"
    if p is None or tests * 2.0 ** (1 - len(gaps)) >= 1 - LEVEL:
        return "too few replicas"
    return "not significant"


def t_interval(values: np.ndarray, level: float = LEVEL) -> Interval:
    """Return the confidence interval of a mean by Student's t.

    Args:
        values: At least two finite values, (replicas,).
        level: Confidence level.

    Raises:
        DpmclError: SciPy is not installed.
    """
    stats = _scipy_stats()
    half_width = float(stats.t.ppf((1 + level) / 2, len(values) - 1) * standard_error(values))
    return float(values.mean()) - half_width, float(values.mean()) + half_width


def bootstrap_interval(values: np.ndarray) -> Interval | None:
    """Return the confidence interval of a mean by the percentile bootstrap.

    Args:
        values: Value of each replica, (replicas,). NaN and infinite values are left out.

    Returns:
        The interval; None for fewer than `FEWEST` finite values, whose resampled means cover the
        mean too rarely.

    Raises:
        DpmclError: SciPy is not installed.
    """
    known = values[np.isfinite(values)]
    if len(known) < FEWEST:
        return None
    resampled = _scipy_stats().bootstrap(
        (known,),
        np.mean,
        n_resamples=_RESAMPLES,
        confidence_level=LEVEL,
        method="percentile",
        rng=np.random.default_rng(_SEED),
    )
    low, high = resampled.confidence_interval
    return float(low), float(high)


@functools.cache  # a report tests the same differences for several tables
def _wilcoxon(gaps: tuple[float, ...]) -> float:
    """Return the p value of Wilcoxon's signed-rank test; 1 if all differences are 0."""
    others = [gap for gap in gaps if gap]  # with zeros, SciPy approximates p from 14 pairs on
    return float(_scipy_stats().wilcoxon(others).pvalue) if others else 1.0


def _rank_biserial(gaps: np.ndarray) -> float:
    """Return the share of the rank sum of positive differences less that of negative ones.

    0 if all differences are 0.
    """
    gaps = gaps[gaps != 0]
    if not len(gaps):
        return 0.0
    ranks = _scipy_stats().rankdata(np.abs(gaps))
    return float((ranks * np.sign(gaps)).sum() / ranks.sum())


def _scipy_stats() -> Any:
    """Import scipy.stats, which the extra `plot` installs."""
    with needed_for("A statistic", "dpmcl[plot]"):
        from scipy import stats
    return stats
