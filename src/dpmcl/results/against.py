"""A table that compares methods with one of them, in pairs of the same seed."""

from collections.abc import Sequence

from dpmcl.exceptions import SpecError
from dpmcl.results.comparison import Entry, entries_by_stream, errors_by_seed
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


def rows(entries: Sequence[Entry], against: str | None = None) -> list[Row]:
    """Return the comparisons as rows, one for each stream, error and method.

    Args:
        entries: The methods of all runs.
        against: Label of the method that the others are compared with; None for the first method
            of each stream. If there are several streams, those without this method are left out.

    Raises:
        SpecError: No stream has this method and another one.
    """
    streams = entries_by_stream(entries)
    out: list[Row] = []
    for stream, by_label in streams.items():
        baseline = next(iter(by_label)) if against is None else against
        for measure, values in errors_by_seed(by_label).items():
            if baseline in by_label or len(streams) == 1:
                compared = compare(values, baseline)
                out += [{"stream": stream, "error": measure, **pair._asdict()} for pair in compared]
    if against is not None and not out:
        known = ", ".join(dict.fromkeys(entry.label for entry in entries))
        raise SpecError(
            f"--against names a method with others beside it, got '{against}'; there are: {known}."
        )
    return out
