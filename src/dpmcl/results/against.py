"""A table that compares methods with one of them, in pairs of the same seed."""

import logging
from collections.abc import Mapping, Sequence

from dpmcl.exceptions import SpecError
from dpmcl.results import comparison
from dpmcl.results.names import displayed
from dpmcl.results.statistics import compare
from dpmcl.results.summary import Row
from dpmcl.results.table import Columns, number

COLUMNS: Columns = {
    "stream": lambda row: displayed(row["stream"]),
    "method": lambda row: displayed(row["method"]),
    "against": lambda row: displayed(row["against"]),
    "error": lambda row: row["error"],
    "pairs": lambda row: str(row["pairs"]),
    "left out": lambda row: str(row["lost"]),
    "difference": lambda row: number(row["difference"]),
    "95 % interval": lambda row: number(row["interval"]),
    "p (Holm)": lambda row: number(row["p"]),
    "effect": lambda row: number(row["effect"]),
    "verdict": lambda row: row["verdict"],
}
"""Columns of the table; the first four are text."""

_COMMON = (
    "stream.",
    "network.",
    "evaluation.",
    *comparison.SHARED,
    comparison.VERSION,
    f"{comparison.CODE}network",
    f"{comparison.CODE}stream",
)
"""Beginnings of the settings that the methods of a run have in common."""


def rows(entries: Sequence[comparison.Entry], against: str | None = None) -> list[Row]:
    """Return the comparisons as rows, one for each stream, error and method.

    Logs a warning if runs of one stream differ in settings that no label shows.

    Args:
        entries: The methods of all runs.
        against: Label of the method that the others are compared with; None for the first method
            of each stream. If there are several streams, those without this method are left out.

    Raises:
        SpecError: No stream has this method and another one.
    """
    streams = comparison.entries_by_stream(entries)
    out: list[Row] = []
    for stream, by_label in streams.items():
        _warn_of_differences(stream, by_label)
        baseline = next(iter(by_label)) if against is None else against
        for measure, values in comparison.errors_by_seed(by_label).items():
            if baseline in by_label or len(streams) == 1:
                compared = compare(values, baseline)
                out += [{"stream": stream, "error": measure, **pair._asdict()} for pair in compared]
    if against is not None and not out:
        known = ", ".join(dict.fromkeys(entry.label for entry in entries))
        raise SpecError(
            f"--against must name a method that has others to compare with, got '{against}'; there "
            f"are: {known}."
        )
    return out


def _warn_of_differences(stream: str, by_label: Mapping[str, comparison.Entry]) -> None:
    """Log a warning if entries differ in common settings that no label shows."""
    same_data = len({entry.stream.digest for entry in by_label.values()}) == 1
    unseen = [
        key
        for key in comparison.differing_settings(list(by_label.values()))
        if key.startswith(_COMMON)
        and not (same_data and key.startswith("stream."))
        and not any(key in label for label in by_label)
    ]
    if unseen:
        logging.getLogger("dpmcl").warning(
            f"Runs on '{displayed(stream)}' differ in {', '.join(unseen)}, so a difference between "
            "their methods may be one between these settings; compare methods of equal runs."
        )
