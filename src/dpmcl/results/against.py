"""A table that compares methods with one of them, in pairs of the same seed."""

from collections.abc import Sequence

from dpmcl.exceptions import SpecError
from dpmcl.results.comparison import Entry, by_seed, by_stream
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


def rows(several: Sequence[Entry], against: str | None = None) -> list[Row]:
    """Return the comparisons as rows, one for each stream, error and method.

    Args:
        several: The methods of all runs.
        against: Label of the method that the others are compared with; None for the first method
            of each stream. If there are several streams, those without this method are left out.

    Raises:
        SpecError: No stream has this method and another one.
    """
    streams = by_stream(several)
    out: list[Row] = []
    for stream, ours in streams.items():
        chosen = next(iter(ours)) if against is None else against
        for measure, values in by_seed(ours).items():
            if chosen in ours or len(streams) == 1:
                compared = compare(values, chosen)
                out += [{"stream": stream, "error": measure, **one._asdict()} for one in compared]
    if against is not None and not out:
        known = ", ".join(dict.fromkeys(entry.label for entry in several))
        raise SpecError(
            f"--against names a method with others beside it, got '{against}'; there are: {known}."
        )
    return out
