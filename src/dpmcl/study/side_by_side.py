"""Join several runs in one table or figure."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from dpmcl.exceptions import DpmclError, SpecError
from dpmcl.results import comparison
from dpmcl.results.record import Record
from dpmcl.results.statistics import compare
from dpmcl.results.store import StreamInfo
from dpmcl.results.summary import Row, mean
from dpmcl.results.table import Layout, columns_of
from dpmcl.study.result import Result

_RUN = "run"

Rows = Callable[[Result], list[Row]]
"""Function that returns the rows of a run's table, in the order of its methods."""


class SideBySide:
    """Several runs that are shown together.

    Args:
        runs: Results by name of the run.
    """

    def __init__(self, runs: Mapping[str, Result]) -> None:
        self.runs = runs
        self.entries = comparison.entries(runs)

    def rows(self, rows: Rows, layout: Layout) -> tuple[list[Row], Layout]:
        """Return the rows of all runs, with columns for the settings that differ, and their layout.

        Args:
            rows: Returns the rows of one run.
            layout: Layout that the user asked for.
        """
        keys = comparison.differing_settings(self.entries)
        if any(entry.label.endswith(f"[{entry.run}]") for entry in self.entries):
            keys = [_RUN, *keys]
        titles: dict[str, str] = {}
        entry_of = {(entry.run, entry.method): entry for entry in self.entries}
        out: list[Row] = []
        for run, result in self.runs.items():
            for row in rows(result):
                entry = entry_of[run, row["method"]]
                settings = {_RUN: run, **entry.settings}
                names = {"stream": entry.stream.name, "method": row["method"]}
                used_titles = {"name", *row, *columns_of([row])}
                titles = {key: f"{key} (setting)" if key in used_titles else key for key in keys}
                differing = {titles[key]: settings.get(key) for key in keys}
                out.append({**names, **differing, **row, **names})
        return out, replace(layout, settings=[*titles.values()], best=self._best)

    def of_one_stream(self) -> tuple[dict[str, Record], StreamInfo]:
        """Return the records of all runs by the label of each method, and their stream.

        Raises:
            SpecError: The runs have several streams.
            DpmclError: They have no results.
        """
        if not self.entries:
            raise DpmclError("There are no results to draw yet; `dpmcl run` makes some.")
        names = dict.fromkeys(entry.stream.name for entry in self.entries)
        if len(names) > 1:
            raise SpecError(
                f"A figure shows one stream, and these folders hold {', '.join(names)}; draw each."
            )
        records = {entry.label: entry.record for entry in self.entries}
        return records, comparison.common_stream(self.entries)

    def _best(self) -> list[tuple[int, str]]:
        """Return the cells (row, title) whose means are lower than all others by a paired test."""
        numbers = {(e.stream.name, e.label): number for number, e in enumerate(self.entries)}
        out = []
        for stream, by_label in comparison.entries_by_stream(self.entries).items():
            for title, values in comparison.errors_by_seed(by_label).items():
                means = {name: mean(np.array([*seeds.values()])) for name, seeds in values.items()}
                by_mean = {value: name for name, value in means.items() if value is not None}
                if by_mean and len(values) > 1:
                    lowest = by_mean[min(by_mean)]
                    verdicts = {pair.verdict for pair in compare(values, lowest)}
                    out += [(numbers[stream, lowest], title)] * (verdicts == {"higher"})
        return out
