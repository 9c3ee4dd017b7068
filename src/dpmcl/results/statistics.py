"""Differences between methods, and how sure they are: intervals, paired tests and effect sizes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from dpmcl.exceptions import DpmclError, unknown

LEVEL = 0.95
"""Confidence of intervals; a difference is told apart where p is below 1 - LEVEL."""

FEWEST = 8
"""Pairs of replicas that a test needs: with seven, no Wilcoxon p of two methods passes Holm's
correction for four comparisons."""

_RESAMPLES = 9_999
_SEED = 0  # of the resampling, so that the same results give the same interval

Interval = tuple[float, float]


class Estimate(NamedTuple):
    """A mean over replicas, and how sure it is.

    Attributes:
        replicas: Replicas with a finite value.
        lost: Replicas without one: they diverged.
        mean: Their mean; None if there are none.
        error: Standard error, from the standard deviation with ddof 1; None for one replica.
        interval: 95 % interval of the mean by Student's t; None for one replica.
        bootstrap: The same by resampling (percentiles); None for one replica.
    """

    replicas: int
    lost: int
    mean: float | None
    error: float | None
    interval: Interval | None
    bootstrap: Interval | None


Verdict = Literal["lower", "higher", "not told apart", "too few replicas"]


class Comparison(NamedTuple):
    """A method beside another, on the seeds that both have.

    Attributes:
        method: The method.
        against: The method that it is compared with.
        pairs: Seeds on which both have a finite value.
        lost: Seeds of both on which one has none: it diverged.
        difference: Mean of method - against; None without a pair.
        interval: 95 % interval of the difference by Student's t; None for one pair.
        p: Wilcoxon's signed-rank test, two-sided, corrected by Holm for all comparisons of one
            call; None for fewer than `FEWEST` pairs.
        effect: Matched-pairs rank-biserial correlation, from -1 (lower on every seed) to 1
            (higher); None without a pair.
        verdict: What may be said.
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
    """Return the mean of a metric over replicas, with its standard error and intervals.

    Args:
        values: One value a replica, (replicas,); NaN or infinite for one that diverged.

    Raises:
        DpmclError: SciPy is not installed.
    """
    values = np.fromiter(values, np.float64)
    known = values[np.isfinite(values)]
    lost = len(values) - len(known)
    mean = float(known.mean()) if len(known) else None
    if len(known) < 2:
        return Estimate(len(known), lost, mean, None, None, None)
    error = float(known.std(ddof=1) / math.sqrt(len(known)))
    return Estimate(len(known), lost, mean, error, _students(known), _resampled(known))


def compare(values: Mapping[str, Mapping[int, float]], against: str) -> list[Comparison]:
    """Compare every method with one of them, in pairs of the same seed.

    Args:
        values: A metric by method and seed.
        against: Name of the method that the others are compared with.

    Returns:
        A comparison for each other method, in the order of `values`.

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
    every = {name: _differences(values[name], values[against]) for name in others}
    gaps = {name: gap[np.isfinite(gap)] for name, gap in every.items()}
    tested = [name for name in others if len(gaps[name]) >= FEWEST]
    corrected = dict(zip(tested, holm([_wilcoxon(gaps[name]) for name in tested]), strict=True))
    return [
        Comparison(
            name, against, len(gaps[name]), len(every[name]) - len(gaps[name]),
            *_told(gaps[name], corrected.get(name), len(tested)),
        )
        for name in others
    ]  # fmt: skip


def holm(p: Sequence[float]) -> list[float]:
    """Return p values corrected for how many there are (Holm, 1979), in the same order.

    Args:
        p: Uncorrected values.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected = [0.0] * len(p)
    largest = 0.0
    for rank, place in enumerate(np.argsort(p, kind="stable")):
        largest = max(largest, min(1.0, (len(p) - rank) * p[place]))
        corrected[place] = largest
    return corrected


def _differences(ours: Mapping[int, float], theirs: Mapping[int, float]) -> np.ndarray:
    """Return ours - theirs on the seeds of both: NaN where one is not finite, 0 for rounding."""
    shared = sorted(set(ours) & set(theirs))
    first, second = (np.array([one[seed] for seed in shared], float) for one in (ours, theirs))
    first, second = (np.where(np.isfinite(one), one, np.nan) for one in (first, second))
    return np.where(np.isclose(first, second, rtol=1e-9, atol=0), 0.0, first - second)


def _told(
    gaps: np.ndarray, p: float | None, tests: int
) -> tuple[float | None, Interval | None, float | None, float | None, Verdict]:
    """Return what finite differences and their corrected p say: a comparison's last fields.

    Where not even differences of one sign could pass `tests` tests, there are too few.
    """
    difference = float(gaps.mean()) if len(gaps) else None
    interval = _students(gaps) if len(gaps) > 1 else None
    effect = _rank_biserial(gaps) if len(gaps) else None
    verdict: Verdict = "too few replicas"
    if p is not None and effect is not None:
        if p < 1 - LEVEL:
            verdict = "lower" if effect < 0 else "higher"
        elif tests * 2.0 ** (1 - len(gaps)) < 1 - LEVEL:
            verdict = "not told apart"
    return difference, interval, p, effect, verdict


def _students(values: np.ndarray) -> Interval:
    """Return the interval of a mean by Student's t."""
    stats = _scipy_stats()
    error = values.std(ddof=1) / math.sqrt(len(values))
    reach = float(stats.t.ppf((1 + LEVEL) / 2, len(values) - 1) * error)
    return float(values.mean()) - reach, float(values.mean()) + reach


def _resampled(values: np.ndarray) -> Interval:
    """Return the interval of a mean by resampling."""
    resampled = _scipy_stats().bootstrap(
        (values,),
        np.mean,
        n_resamples=_RESAMPLES,
        confidence_level=LEVEL,
        method="percentile",
        rng=np.random.default_rng(_SEED),
    )
    low, high = resampled.confidence_interval
    return float(low), float(high)


def _wilcoxon(gaps: np.ndarray) -> float:
    """Return p of the signed-rank test; 1 where nothing differs."""
    if not gaps.any():
        return 1.0
    return float(_scipy_stats().wilcoxon(gaps).pvalue)


def _rank_biserial(gaps: np.ndarray) -> float:
    """Return the share of ranks that are above 0, less that of those below; 0 for no difference."""
    gaps = gaps[gaps != 0]
    if not len(gaps):
        return 0.0
    ranks = _scipy_stats().rankdata(np.abs(gaps))
    return float((ranks * np.sign(gaps)).sum() / ranks.sum())


def _scipy_stats() -> Any:
    """Return scipy.stats, which is in the extra `plot`."""
    try:
        from scipy import stats
    except ImportError:
        raise DpmclError("Statistics need scipy: pip install 'dpmcl[plot]'.") from None
    return stats
