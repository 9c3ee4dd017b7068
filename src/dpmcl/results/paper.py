"""The paper's Table 1, and its agreement with other results."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from dpmcl import plugins
from dpmcl.results.comparison import Entry, errors_by_seed, setting_text
from dpmcl.results.statistics import Estimate, estimate
from dpmcl.results.summary import Row
from dpmcl.results.table import Columns, number

STREAMS = ("sine", "omniglot", "mnist", "cifar10")
METHODS = ("naive", "dpmcl", "oml", "cml", "anml", "er")

_TASKS = {"sine": 50, "omniglot": 50, "mnist": 10, "cifar10": 10}

LEAST = 1e-3
"""Smallest standard error that the paper prints. Its "(0)" is read as this value."""

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
"""Printed mean (standard error) of each method, in the order of `METHODS`."""

Key = tuple[str, str, str]
"""Names of a stream, a measure and a method."""

PRINTED: Mapping[Key, str] = {
    (stream, measure, method): printed
    for (stream, measure), line in _LINES.items()
    for method, printed in zip(METHODS, line.split(), strict=True)
}
"""Cells of the paper's Table 1, for example "0.171(0.007)"."""

Mark = Literal["within", "too uncertain", "same order", "not reproduced", "not run"]
"""Agreement of a mean with the paper's (`NOTES` explains the marks)."""

BySeed = Mapping[int, float]
"""Value of a measure by seed."""


def on_its_streams(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries on streams of the paper, without those on data that share only a name.

    Args:
        entries: The methods of all runs.
    """
    return [
        entry
        for entry in entries
        if entry.stream.name in STREAMS and entry.settings.get("stream.name") == entry.stream.name
    ]


def values(entries: Sequence[Entry]) -> dict[Key, BySeed]:
    """Return CME and NTE of the paper's methods on its streams, by seed.

    Args:
        entries: The methods of all runs. A method is left out if several entries of the stream
            have its name.
    """
    return {
        (entry.stream.name, measure, entry.label): by_label[entry.label]
        for entry in on_its_streams(entries)
        if entry.label in METHODS
        for measure, by_label in errors_by_seed({entry.label: entry}).items()
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
"""Columns of the table of `rows`; the first three are text."""

NOTES = (
    "within: at most two combined standard errors apart; the paper's (0) counts as "
    f"{LEAST:g}, and its (2) and (7) are no standard errors, so nothing is within those. "
    "On SINE, whose errors it prints to a power of ten, a mean must be within a factor of ten too.",
    "too uncertain: within, but two standard errors of ours exceed the paper's mean, and 0.01.",
    "same order: above and below the same other methods as in the paper.",
)
"""Explanations of the marks."""


def notes(entries: Sequence[Entry]) -> list[str]:
    """Return explanations of the marks, and how the streams of the runs differ from the paper's.

    Args:
        entries: The methods of all runs.
    """
    lines = (line for entry in on_its_streams(entries) for line in _differences(entry))
    return [*NOTES, *dict.fromkeys(lines)]


def _differences(entry: Entry) -> Iterator[str]:
    """Yield the differences of an entry's tasks and evaluation from the paper's, as lines."""
    name, tasks = entry.stream.name, len(entry.stream.tasks)
    if tasks != _TASKS[name]:
        yield f"{name}: {tasks} tasks, and the paper's errors are of {_TASKS[name]}."
    stream = plugins.find("stream", name)
    printed = {f"stream.{key}": value for key, value in stream().to_table().items()}
    ignored = {f"stream.{key}" for key in ("name", "tasks", *stream.places)}
    for key, value in entry.settings.items():
        compared = key.startswith(("stream.", "evaluation.")) and key not in ignored
        if compared and setting_text(value) != setting_text(printed.get(key)):
            yield f"{name}: {key} {setting_text(value)}, unlike in the paper."


def rows(entries: Sequence[Entry]) -> list[Row]:
    """Return rows that compare the paper's Table 1 with results, for the streams that were run.

    Args:
        entries: The methods of all runs.
    """
    ours = {key: estimate(seeds.values()) for key, seeds in values(entries).items()}
    streams = {entry.stream.name for entry in on_its_streams(entries)}
    return [row for row in cell_rows(ours) if row["stream"] in streams]


def cell_rows(ours: Mapping[Key, Estimate]) -> list[Row]:
    """Return rows that compare the paper's Table 1 with estimates, one for each cell.

    Args:
        ours: Estimates of CME and NTE by stream, measure and method.
    """
    out: list[Row] = []
    for (stream, measure, method), printed in PRINTED.items():
        key = stream, measure, method
        cell = ours.get(key)
        known = cell is not None and cell.mean is not None
        out.append(
            {
                "stream": stream,
                "method": method,
                "error": measure,
                "paper": printed,
                "ours": cell.mean if cell else None,
                "ours_se": cell.error if cell else None,
                "replicas": cell.replicas if cell and known else 0,
                "mark": _mark(key, ours) if known else "not run",
            }
        )
    return out


def read(printed: str) -> tuple[float, float | None]:
    """Return the mean and standard error of a cell of Table 1.

    Args:
        printed: The cell, for example "0.171(0.007)"; "(0)" is read as `LEAST`.

    Returns:
        The mean, and the standard error; None if the printed number cannot be one.
    """
    mean, error = printed.removesuffix(")").split("(")
    if error == "0":
        return float(mean), LEAST
    # An error rate, or a mean of 1e-7, cannot have a standard error of 1 or more.
    return float(mean), float(error) if float(error) < 1 else None


def _in_brackets(error: float | None) -> str:
    return "" if error is None else f" ({number(error)})"


def _mark(key: Key, ours: Mapping[Key, Estimate]) -> Mark:
    """Return the mark of a cell."""
    paper, error = read(PRINTED[key])
    if error is not None and _is_within(key[0], ours[key], paper, error):
        return "within" if _is_precise(ours[key], paper) else "too uncertain"
    return "same order" if _has_same_order(key, ours) else "not reproduced"


def _is_within(stream: str, ours: Estimate, paper: float, error: float) -> bool:
    """Return whether means differ by at most two combined standard errors.

    On SINE a mean must also be within a factor of ten: its errors are printed as powers of ten,
    below the standard error that its "(0)" stands for.
    """
    assert ours.mean is not None
    if stream == "sine" and not paper / 10 <= ours.mean <= 10 * paper:
        return False
    return abs(ours.mean - paper) <= 2 * math.hypot(ours.error or 0.0, error)


def _is_precise(ours: Estimate, paper: float) -> bool:
    """Return whether twice our standard error is at most the paper's mean or 0.01."""
    return 2 * (ours.error or 0.0) <= max(paper, 0.01)


def _has_same_order(key: Key, ours: Mapping[Key, Estimate]) -> bool:
    """Return whether the same other methods are above and below a method as in the paper.

    Methods with the same printed mean are ignored. False if there is no other method.
    """
    mine, signs = ours[key].mean, []
    for other in METHODS:
        theirs = ours.get((*key[:2], other))
        gap = read(PRINTED[key])[0] - read(PRINTED[(*key[:2], other)])[0]
        if theirs is not None and theirs.mean is not None and mine is not None and gap != 0:
            signs.append((mine - theirs.mean) * gap > 0)
    return bool(signs) and all(signs)
