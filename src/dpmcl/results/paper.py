"""The paper's Table 1, and whether results agree with it."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from dpmcl.results.comparison import Entry, by_seed
from dpmcl.results.statistics import Estimate, estimate
from dpmcl.results.summary import Row
from dpmcl.results.table import Columns, number

STREAMS = ("sine", "omniglot", "mnist", "cifar10")
METHODS = ("naive", "dpmcl", "oml", "cml", "anml", "er")

_TASKS = {"sine": 50, "omniglot": 50, "mnist": 10, "cifar10": 10}

LEAST = 1e-3
"""The smallest standard error that the paper prints; its "(0)" is read as one below this."""

_LINES = {
    ("sine", "CME"): "1e-4(0) 1e-5(0) 1e-5(0) 0.0005(0) 1e-4(0) 1e-5(0)",
    ("sine", "NTE"): "1e-7(0) 1e-7(0) 1e-5(0) 1e-7(0) 1e-7(7) 1e-5(0)",
    (
        "omniglot",
        "CME",
    ): "0.979(0) 0.171(0.007) 0.224(0.010) 0.706(0.245) 0.977(0.001) 0.194(0.008)",
    ("omniglot", "NTE"): "0.001(0) 0.283(0.091) 0.512(0.098) 0.077(0.053) 0.945(0) 0.291(0.071)",
    ("mnist", "CME"): "0.912(0) 0.020(0.001) 0.023(0.001) 0.659(0.004) 0.873(0.002) 0.030(0.001)",
    ("mnist", "NTE"): "0.001(0) 0.003(0) 0.011(0) 0.001(0) 0.884(0) 0.024(0.001)",
    ("cifar10", "CME"): "0.949(2) 0.496(0.003) 0.676(0.006) 0.651(0.004) 0.918(0.016) 0.464(0.002)",
    ("cifar10", "NTE"): "0.01(0) 0.231(0.008) 0.108(0.005) 0.055(0.003) 0.689(0.140) 0.458(0.008)",
}
"""Mean (standard error) of each method, in the order of `METHODS`, as printed."""

Key = tuple[str, str, str]
"""Stream, measure, method."""

PRINTED: Mapping[Key, str] = {
    (stream, measure, method): printed
    for (stream, measure), line in _LINES.items()
    for method, printed in zip(METHODS, line.split(), strict=True)
}
"""The paper's Table 1, as in "0.171(0.007)"."""

Mark = Literal["within", "too uncertain", "same order", "not reproduced", "not run"]
"""Whether a mean is that of the paper (`NOTES` says what the marks mean)."""

BySeed = Mapping[int, float]
"""A measure by seed."""


def values(several: Sequence[Entry]) -> dict[Key, BySeed]:
    """Return CME and NTE of the paper's methods on its streams, by seed.

    Args:
        several: The methods of all runs; those that differ by a setting, and those of other data
            that have a stream's name, are left out.
    """
    return {
        (entry.stream.name, measure, entry.label): values[entry.label]
        for entry in several
        if entry.stream.name in STREAMS
        and entry.label in METHODS
        and entry.settings.get("stream.name") == entry.stream.name
        for measure, values in by_seed({entry.label: entry}).items()
    }


COLUMNS: Columns = {
    "stream": lambda row: row["stream"],
    "method": lambda row: row["method"],
    "error": lambda row: row["error"],
    "paper": lambda row: row["paper"],
    "ours": lambda row: number(row["ours"]) + _in_brackets(row["ours_se"]),
    "replicas": lambda row: str(row["replicas"]),
    "mark": lambda row: row["mark"],
}
"""Columns of the table of `rows`, of which the first three are words."""

NOTES = (
    "within: at most two combined standard errors apart; the paper's (0) counts as "
    f"{LEAST:g}, and its (2) and (7) are no standard errors, so nothing is within those. "
    "On SINE, whose errors it prints to a power of ten, a mean must be within a factor of ten too.",
    "too uncertain: within, but two standard errors of ours exceed the paper's mean, and 0.01.",
    "same order: above and below the same other methods as in the paper.",
)
"""What the marks mean."""


def notes(several: Sequence[Entry]) -> list[str]:
    """Return what the marks mean, and where a stream's tasks are not as many as the paper's.

    Args:
        several: The methods of all runs.
    """
    tasks = {entry.stream.name: len(entry.stream.tasks) for entry in several}
    other = [
        f"{stream}: {tasks[stream]} tasks, and the paper's errors are of {printed}."
        for stream, printed in _TASKS.items()
        if tasks.get(stream, printed) != printed
    ]
    return [*NOTES, *other]


def rows(several: Sequence[Entry]) -> list[Row]:
    """Return the paper's Table 1 beside results, cell by cell, on the streams that were run.

    Args:
        several: The methods of all runs.
    """
    ours = {key: estimate(seeds.values()) for key, seeds in values(several).items()}
    streams = {entry.stream.name for entry in several}
    return [row for row in compared(ours) if row["stream"] in streams]


def compared(ours: Mapping[Key, Estimate]) -> list[Row]:
    """Return the paper's Table 1 beside estimates, cell by cell.

    Args:
        ours: Estimates of CME and NTE by stream, measure and method.
    """
    out: list[Row] = []
    for (stream, measure, method), printed in PRINTED.items():
        key = stream, measure, method
        one = ours.get(key)
        known = one is not None and one.mean is not None
        out.append(
            {
                "stream": stream,
                "method": method,
                "error": measure,
                "paper": printed,
                "ours": one.mean if one else None,
                "ours_se": one.error if one else None,
                "replicas": one.replicas if one and known else 0,
                "mark": _mark(key, ours) if known else "not run",
            }
        )
    return out


def read(printed: str) -> tuple[float, float | None]:
    """Return mean and standard error of a printed cell; None where what is printed can be none.

    Args:
        printed: As in "0.171(0.007)"; "(0)" is read as `LEAST`.
    """
    mean, error = printed.removesuffix(")").split("(")
    if error == "0":
        return float(mean), LEAST
    # A standard error above 1 is none of an error rate, or of a mean of 1e-7.
    return float(mean), float(error) if float(error) < 1 else None


def _in_brackets(error: float | None) -> str:
    return "" if error is None else f" ({number(error)})"


def _mark(key: Key, ours: Mapping[Key, Estimate]) -> Mark:
    paper, error = read(PRINTED[key])
    if error is not None and _within(key[0], ours[key], paper, error):
        return "within" if _sure(ours[key], paper) else "too uncertain"
    return "same order" if _same_order(key, ours) else "not reproduced"


def _within(stream: str, ours: Estimate, paper: float, error: float) -> bool:
    """Return whether means differ by at most two combined standard errors.

    SINE's errors are printed to a power of ten, below what its "(0)" can tell apart: there a mean
    must be within a factor of ten too.
    """
    assert ours.mean is not None
    if stream == "sine" and not paper / 10 <= ours.mean <= 10 * paper:
        return False
    return abs(ours.mean - paper) <= 2 * math.hypot(ours.error or 0.0, error)


def _sure(ours: Estimate, paper: float) -> bool:
    """Return whether two standard errors of ours are at most the paper's mean, or 0.01."""
    return 2 * (ours.error or 0.0) <= max(paper, 0.01)


def _same_order(key: Key, ours: Mapping[Key, Estimate]) -> bool:
    """Return whether a method has the same others above and below it; ties in print do not count.

    False where no other method was run.
    """
    mine, signs = ours[key].mean, []
    for other in METHODS:
        theirs = ours.get((*key[:2], other))
        gap = read(PRINTED[key])[0] - read(PRINTED[(*key[:2], other)])[0]
        if theirs is not None and theirs.mean is not None and mine is not None and gap != 0:
            signs.append((mine - theirs.mean) * gap > 0)
    return bool(signs) and all(signs)
