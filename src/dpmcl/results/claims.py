"""Claims of the paper about its results, and whether other results support them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from dpmcl.results.comparison import Entry, errors_by_seed
from dpmcl.results.paper import STREAMS, BySeed, Key, on_its_streams
from dpmcl.results.statistics import (
    LEVEL,
    differences,
    estimate,
    mean_difference,
    rounded,
    t_interval,
)
from dpmcl.results.table import number

Answer = Literal["yes", "no", "in direction", "not significant", "not run"]

Values = Mapping[str, Mapping[float, BySeed]]
"""Measures along an axis of Figure 3, by name and by value of the axis."""

_ZETA, _KAPPA = 2, 200
"""Values that Figure 3 fixes: zeta while kappa varies, and kappa while zeta varies."""

_ABOUT = 2.0
"""A difference is "about" the printed one if it is between half and twice as large."""

_RANKED = 3
"""Smallest number of points of a trend."""


class Claim(NamedTuple):
    """A claim of the paper's section 4 that results can confirm or contradict.

    Attributes:
        text: The claim.
        answer: "yes" if the 95 % intervals of all its paired differences have the claimed sign;
            "no" if one of these intervals, with Bonferroni's correction for their number, has the
            opposite sign; "in direction" for a difference of the printed sign but another size;
            "not significant" in other cases; "not run" if results are missing.
        figures: Means of the results, with standard errors.
    """

    text: str
    answer: Answer
    figures: str


def figure3_values(entries: Sequence[Entry], axis: Literal["zeta", "kappa"]) -> Values:
    """Return CME and NTE of DPMCL on Omniglot along an axis of Figure 3, by seed.

    Args:
        entries: Methods of runs. A value of the axis that several entries have is left out, since
            they differ in another setting.
        axis: "zeta", with kappa = 200, or "kappa", with zeta = 2.
    """
    fixed, fixed_value = ("kappa", _KAPPA) if axis == "zeta" else ("zeta", _ZETA)
    along_axis = [
        entry
        for entry in on_its_streams(entries)
        if (entry.stream.name, entry.method) == ("omniglot", "dpmcl")
        and entry.settings.get(fixed) == fixed_value
        and axis in entry.settings
    ]
    values = [entry.settings[axis] for entry in along_axis]
    return errors_by_seed(
        {x: entry for x, entry in zip(values, along_axis, strict=True) if values.count(x) == 1}
    )


def of_table1(values: Mapping[Key, BySeed]) -> list[Claim]:
    """Return the claims about Table 1 on the streams that were run.

    Args:
        values: CME and NTE of each seed, by stream, measure and method.
    """
    claims: list[Claim] = []
    for stream in STREAMS:
        ours = {
            measure: {
                key[2]: value for key, value in values.items() if key[:2] == (stream, measure)
            }
            for measure in ("CME", "NTE")
        }
        if any(ours.values()):
            claims += _stream_claims(stream, ours["CME"], ours["NTE"])
    return claims


def of_figure3(zeta: Values, kappa: Values) -> list[Claim]:
    """Return the claims about Figure 3: DPMCL on Omniglot against zeta and kappa.

    Args:
        zeta: CME and NTE of each seed, by measure and value of zeta.
        kappa: CME and NTE of each seed, by measure and value of kappa.
    """
    claims: list[Claim] = []
    for measure, points in zeta.items():
        named = {f"zeta {value:g}": points[value] for value in sorted(points)}
        claims += [
            _extreme(f"omniglot: {measure} is worst with zeta = 0", named, ["zeta 0"], "highest"),
            _trend(f"omniglot: {measure} falls as zeta grows", points),
            _extreme(f"omniglot: {measure} is best with zeta = 20", named, ["zeta 20"], "lowest"),
        ]
    for measure, points in kappa.items():
        if measure == "CME":
            claims.append(_trend("omniglot: CME falls as kappa grows", points))
        else:
            claims.append(_levels_off(points))
    return claims


def _stream_claims(
    stream: str, cme: Mapping[str, BySeed], nte: Mapping[str, BySeed]
) -> Iterable[Claim]:
    """Yield the claims about one stream, given its measures by method."""
    if stream == "sine":
        yield _sine_claim(cme)
    elif stream == "cifar10":
        yield _gap("ER's CME is lower than DPMCL's, by 0.032", cme, ("er", "dpmcl"), -0.032)
        yield _gap("ER's NTE is higher than DPMCL's, by 0.227", nte, ("er", "dpmcl"), 0.227)
        yield _gap("OML's NTE is lower than DPMCL's, by 0.123", nte, ("oml", "dpmcl"), -0.123)
        yield _gap("OML's CME is higher than DPMCL's, by 0.180", cme, ("oml", "dpmcl"), 0.180)
    else:
        yield _extreme(f"{stream}: DPMCL has the lowest CME", cme, ["dpmcl"], "lowest")
    text = f"{stream}: Naive and CML have the lowest NTE"
    yield _extreme(text, nte, ["naive", "cml"], "lowest")
    yield _extreme(f"{stream}: ANML has the highest NTE", nte, ["anml"], "highest")


def _extreme(
    text: str,
    values: Mapping[str, BySeed],
    chosen: Sequence[str],
    which: Literal["lowest", "highest"],
) -> Claim:
    """Return the claim that each chosen method (or value) is below, or above, all the others."""
    others = [name for name in values if name not in chosen]
    if not others or not all(name in values for name in chosen):
        return Claim(text, "not run", _figures(values))
    sign = -1 if which == "lowest" else 1
    margins = [sign * differences(values[one], values[other]) for one in chosen for other in others]
    return Claim(text, _answer(margins), _figures(values))


def _sine_claim(cme: Mapping[str, BySeed]) -> Claim:
    """Return the claim about SINE, whose errors the paper prints only as powers of ten."""
    text = "sine: DPMCL, OML and ER have a CME within a factor of ten"
    by_method = {name: cme[name] for name in ("dpmcl", "oml", "er") if name in cme}
    means = [estimate(seeds.values()).mean for seeds in by_method.values()]
    known = [mean for mean in means if mean is not None]
    if len(known) < 3:
        return Claim(text, "not run", _figures(by_method))
    return Claim(text, "yes" if max(known) < 10 * min(known) else "no", _figures(by_method))


def _gap(text: str, values: Mapping[str, BySeed], pair: tuple[str, str], printed: float) -> Claim:
    """Return the claim that two methods on CIFAR10 differ by about the printed number."""
    text = f"cifar10: {text}"
    both = {name: values[name] for name in pair if name in values}
    if len(both) < 2:
        return Claim(text, "not run", _figures(both))
    gaps = differences(both[pair[0]], both[pair[1]])
    difference = mean_difference(gaps) if len(gaps) else None
    answer = _answer([math.copysign(1, printed) * gaps])
    if answer == "yes" and not 1 / _ABOUT <= gaps.mean() / printed <= _ABOUT:
        answer = "in direction"
    return Claim(text, answer, f"{_figures(both)}; difference {number(difference)}")


def _trend(text: str, points: Mapping[float, BySeed]) -> Claim:
    """Return the claim that a measure falls: its mean rank correlation over seeds is below 0."""
    xs = sorted(points)
    seeds = set.intersection(*(set(points[x]) for x in xs)) if xs else set()
    if len(xs) < _RANKED or len(seeds) < 2:
        return Claim(text, "not run", _figures_along(points))
    slopes = {seed: _rank_correlation([points[x][seed] for x in xs]) for seed in sorted(seeds)}
    falls = differences(dict.fromkeys(slopes, 0.0), slopes)
    return Claim(text, _answer([falls]), _figures_along(points))


def _levels_off(points: Mapping[float, BySeed]) -> Claim:
    """Return the claim that NTE falls up to kappa 200 and no further from 250 on."""
    text = "omniglot: NTE falls with kappa up to 200, and no further from 250 on"
    to_200 = {x: points[x] for x in points if x <= 200}
    if len(to_200) < 2 or not {250, 300} <= points.keys():
        return Claim(text, "not run", _figures_along(points))
    falls = differences(points[min(to_200)], points[max(to_200)])
    no_fall = differences(points[300], points[250])
    return Claim(text, _answer([falls], not_below=[no_fall]), _figures_along(points))


def _answer(above: Sequence[np.ndarray], not_below: Sequence[np.ndarray] = ()) -> Answer:
    """Return the answer to the claim that some means are above 0, and others not below it."""
    both = [*above, *not_below]
    if any(_sign(gaps, len(both)) < 0 for gaps in both):
        return "no"
    return "yes" if all(_sign(gaps) > 0 for gaps in above) else "not significant"


def _sign(gaps: np.ndarray, tests: int = 1) -> int:
    """Return the sign of a mean; 0 if its interval, corrected for `tests` tests, contains 0."""
    if len(gaps) < 2:
        return 0
    low, high = t_interval(gaps, 1 - (1 - LEVEL) / tests)
    return (low > 0) - (high < 0)


def _rank_correlation(values: Sequence[float]) -> float:
    """Return Spearman's rank correlation between values and their positions; 0 for equal values."""
    values = [rounded(value) for value in values]
    if len(set(values)) == 1:
        return 0.0
    from scipy import stats

    return float(stats.spearmanr(range(len(values)), values).statistic)


def _figures(values: Mapping[str, BySeed]) -> str:
    """Return means with standard errors as text, smallest first."""
    ours = {key: estimate(seeds.values()) for key, seeds in values.items()}
    known = sorted((one.mean, key) for key, one in ours.items() if one.mean is not None)
    return ", ".join(f"{key} {number(mean)} ({number(ours[key].error)})" for mean, key in known)


def _figures_along(points: Mapping[float, BySeed]) -> str:
    """Return means with standard errors as text, in the order of the axis."""
    return ", ".join(_figures({f"{x:g}:": points[x]}) for x in sorted(points))
