"""Tables and figures of several runs side by side."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from dpmcl.exceptions import SpecError
from dpmcl.results import comparison
from dpmcl.results.record import Record
from dpmcl.results.statistics import compare
from dpmcl.results.store import StreamInfo
from dpmcl.results.summary import Row, mean
from dpmcl.results.table import Layout, columns_of
from dpmcl.study.result import Result

_RUN = "run"

Rows = Callable[[Result], list[Row]]
"""Returns the rows of a run's table, in the order of its methods."""


class SideBySide:
    """Several runs.

    Args:
        runs: Their results, by name.
    """

    def __init__(self, runs: Mapping[str, Result]) -> None:
        self.runs = runs
        self.entries = comparison.entries(runs)

    def rows(self, rows: Rows, layout: Layout) -> tuple[list[Row], Layout]:
        """Return the rows of all runs, with the settings that tell them apart, and how they layout.

        Args:
            rows: Makes the rows of one run.
            layout: What the user asked for.
        """
        keys = comparison.differing(self.entries)
        if any(entry.label.endswith(f"[{entry.run}]") for entry in self.entries):
            keys = [_RUN, *keys]
        titles: dict[str, str] = {}
        by_place = {(entry.run, entry.method): entry for entry in self.entries}
        out: list[Row] = []
        for run, result in self.runs.items():
            for row in rows(result):
                settings = {_RUN: run, **by_place[run, row["method"]].settings}
                first = {key: row[key] for key in ("stream", "method")}
                taken = {"name", *row, *columns_of([row])}
                titles = {key: f"{key} (setting)" if key in taken else key for key in keys}
                told = {titles[key]: settings.get(key) for key in keys}
                out.append({**first, **told, **row})
        return out, replace(layout, settings=[*titles.values()], best=self._best)

    def of_one_stream(self) -> tuple[dict[str, Record], StreamInfo]:
        """Return the records of all runs by what each method is called, and their stream.

        Raises:
            SpecError: They are of several streams.
        """
        names = dict.fromkeys(entry.stream.name for entry in self.entries)
        if len(names) > 1:
            raise SpecError(
                f"A figure shows one stream, and these folders hold {', '.join(names)}; draw each."
            )
        records = {entry.label: entry.record for entry in self.entries}
        return records, comparison.described(self.entries)

    def _best(self) -> list[tuple[int, str]]:
        """Return the places of the means that are lower than all others, by a paired test."""
        numbers = {(e.stream.name, e.label): number for number, e in enumerate(self.entries)}
        out = []
        for stream, ours in comparison.by_stream(self.entries).items():
            for title, values in comparison.by_seed(ours).items():
                means = {name: mean(np.array([*seeds.values()])) for name, seeds in values.items()}
                known = {value: name for name, value in means.items() if value is not None}
                if known and len(values) > 1:
                    lowest = known[min(known)]
                    verdicts = {one.verdict for one in compare(values, lowest)}
                    out += [(numbers[stream, lowest], title)] * (verdicts == {"higher"})
        return out
