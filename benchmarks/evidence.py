"""Tables of the results below results/, as the pages of the documentation show them.

Pages hold the calls in comments, which cog fills: `make pages` writes every number anew, and a test
asks whether any would change.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from dpmcl.results import comparison, store
from dpmcl.results.comparison import MEASURES, Entry
from dpmcl.results.statistics import Comparison, compare
from dpmcl.results.summary import mean, standard_error
from dpmcl.results.table import formatted

ROOT = Path(__file__).parents[1] / "results"

Row = Sequence[str]


def entries(*folders: str) -> list[Entry]:
    """Return the methods of run folders below results/."""
    return comparison.entries({folder: store.load(ROOT / folder) for folder in folders})


def show(header: Row, body: Sequence[Row], words: int = 1) -> None:
    """Print a table of Markdown, for cog."""
    print(formatted(header, body, "markdown", words=words))


def methods(folder: str, settings: Sequence[str] = ("lr",)) -> None:
    """Print the errors of a run's methods, smallest CME first, what they took and what they keep.

    Args:
        folder: The run's, below results/.
        settings: Settings that are shown too.
    """
    body = []
    for entry in sorted(entries(folder), key=_by_cme):
        work = next(iter(entry.record.work.values()))
        flops = work.flops / len(entry.stream.tasks)
        kept = work.memory_bytes + work.notes_bytes + work.copies_bytes
        body.append(
            [
                entry.method,
                str(len(entry.record.test.seeds)),
                *(_error(entry, measure) for measure in MEASURES),
                *(comparison.written(entry.settings.get(key)) for key in settings),
                f"{flops / 1e9:.2f}",
                f"{kept / 1e3:,.0f}",
            ]
        )
    show(("method", "replicas", *MEASURES, *settings, "GFLOP a task", "kB kept"), body)


def rates(study: str, measure: str) -> None:
    """Print a measure of each method at each rate of a study.

    Args:
        study: The study's folder, below results/.
        measure: "CME" or "NTE".
    """
    cells = {((one.method,), one.settings["lr"]): _error(one, measure) for one in _runs(study)}
    _pivot((measure,), "lr", cells)


def paired(folder: str, against: str) -> None:
    """Print every method of a run less another, in pairs of the same seed.

    Args:
        folder: The run's, below results/.
        against: The other method.
    """
    _pairs({one.method: one for one in entries(folder)}, against)


def ranks(*folders: str) -> None:
    """Print each method's rank in runs, the mean over seeds; 1 has the lowest error of a seed.

    Args:
        folders: The runs', below results/, which have the same methods. Replicas that diverged
            share the last rank.
    """
    columns: dict[str, NDArray[np.float64]] = {}
    for folder in folders:
        ours = entries(folder)
        for name, measure in MEASURES.items():
            errors = np.array([measure(one.record.test) for one in ours])
            rank = rankdata(np.where(np.isfinite(errors), errors, np.inf), axis=0)
            columns[f"{name}, {ours[0].stream.name}"] = rank.mean(1)
    table = np.array([*columns.values()]).T
    names = [one.method for one in ours]
    order = np.argsort(table[:, :: len(MEASURES)].mean(1), kind="stable")
    body = [[names[row], *(f"{rank:.1f}" for rank in table[row])] for row in order]
    show(("method", *columns), body)


def paired_runs(study: str, runs: Mapping[str, str], against: str) -> None:
    """Print DPMCL in runs of a study less that in another of them, in pairs of the same seed.

    Args:
        study: The study's folder, below results/.
        runs: Names of its runs, by what each is called here.
        against: What the other one is called.
    """
    _pairs({name: entries(f"{study}/{run}")[0] for name, run in runs.items()}, against)


def grid(study: str, down: Sequence[str], across: str, measure: str) -> None:
    """Print a measure of DPMCL over a study: a row for each setting of some, a column for another.

    Args:
        study: The study's folder, below results/.
        down: Settings that make rows.
        across: The setting that makes columns.
        measure: "CME" or "NTE".
    """
    cells = {
        (
            tuple(comparison.written(one.settings[key]) for key in down),
            one.settings[across],
        ): _error(one, measure)
        for one in _runs(study)
        if one.method == "dpmcl"
    }
    _pivot(down, across, cells)


def _runs(study: str) -> list[Entry]:
    """Return the methods of all runs of a study."""
    folders = sorted(path.parent for path in (ROOT / study).glob("*/errors.parquet"))
    return entries(*(str(folder.relative_to(ROOT)) for folder in folders))


def _pivot(down: Row, across: str, cells: Mapping[Any, str]) -> None:
    """Print a table of cells by their row, a tuple of words, and their column, a number."""
    rows, columns = (sorted(set(keys)) for keys in zip(*cells, strict=True))
    header = (*down, *(f"{across} {comparison.written(value)}" for value in columns))
    body = [[*row, *(cells.get((row, value), "-") for value in columns)] for row in rows]
    show(header, body, words=len(down))


def _pairs(several: Mapping[str, Entry], against: str) -> None:
    by_seed = comparison.by_seed(several)
    found = {name: compare(values, against) for name, values in by_seed.items()}
    body = [
        [each[0].method, *(text for one in each for text in _compared(one))]
        for each in zip(*found.values(), strict=True)
    ]
    header = [text for name in found for text in (f"{name} less {against}'s", "which is")]
    show(("method", *header), body)


def _by_cme(entry: Entry) -> float:
    middle = mean(MEASURES["CME"](entry.record.test))
    return float("inf") if middle is None else middle


def _error(entry: Entry, measure: str) -> str:
    """Return mean and standard error, with how many replicas diverged."""
    values = MEASURES[measure](entry.record.test)
    middle, error = mean(values), standard_error(values)
    if middle is None:
        return "all diverged"
    diverged = int((~np.isfinite(values)).sum())
    return f"{middle:.3g} ({error or 0:.2g})" + f", {diverged} diverged" * bool(diverged)


def _compared(one: Comparison) -> tuple[str, str]:
    """Return a difference with its interval, and what may be said."""
    if one.difference is None or one.interval is None:
        return "-", one.verdict
    low, high = one.interval
    return f"{one.difference:+.3g} [{low:.3g}, {high:.3g}]", one.verdict
