"""Tables of the results below results/, as the pages of the documentation show them.

Pages hold the calls in comments, which cog fills: `make pages` writes every number anew, and a test
asks whether any would change.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpmcl.results import comparison, store
from dpmcl.results.comparison import MEASURES, Entry
from dpmcl.results.statistics import Comparison, compare, estimate
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
    """Print the errors of a run's methods, smallest CME first, with what an update took.

    Args:
        folder: The run's, below results/.
        settings: Settings that are shown too.
    """
    body = []
    for entry in sorted(entries(folder), key=lambda one: _mean(one, "CME")):
        work = next(iter(entry.record.work.values()))
        flops = work.flops / len(entry.stream.tasks)
        body.append(
            [
                entry.method,
                str(len(entry.record.test.seeds)),
                *(_error(entry, measure) for measure in MEASURES),
                *(comparison.written(entry.settings.get(key)) for key in settings),
                f"{flops / 1e9:.2f}",
            ]
        )
    show(("method", "replicas", *MEASURES, *settings, "GFLOP a task"), body)


def paired(folder: str, against: str) -> None:
    """Print every method of a run less another, in pairs of the same seed.

    Args:
        folder: The run's, below results/.
        against: The other method.
    """
    _pairs({one.method: one for one in entries(folder)}, against)


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
    folders = sorted(path.parent for path in (ROOT / study).glob("*/errors.parquet"))
    cells: dict[tuple[str, ...], dict[Any, str]] = {}
    for entry in entries(*(str(folder.relative_to(ROOT)) for folder in folders)):
        if entry.method == "dpmcl":
            row = tuple(comparison.written(entry.settings[key]) for key in down)
            column = entry.settings[across]
            cells.setdefault(row, {})[column] = _error(entry, measure)
    columns = sorted({value for row in cells.values() for value in row})
    header = (*down, *(f"{across} {comparison.written(value)}" for value in columns))
    body = [[*row, *(cells[row].get(value, "-") for value in columns)] for row in sorted(cells)]
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


def _mean(entry: Entry, measure: str) -> float:
    mean = estimate(MEASURES[measure](entry.record.test)).mean
    return float("inf") if mean is None else mean


def _error(entry: Entry, measure: str) -> str:
    """Return mean and standard error, with how many replicas diverged."""
    one = estimate(MEASURES[measure](entry.record.test))
    lost = f", {one.lost} diverged" if one.lost else ""
    if one.mean is None:
        return "all diverged"
    return f"{one.mean:.3g} ({one.error or 0:.2g}){lost}"


def _compared(one: Comparison) -> tuple[str, str]:
    """Return a difference with its interval, and what may be said."""
    if one.difference is None or one.interval is None:
        return "-", one.verdict
    low, high = one.interval
    return f"{one.difference:+.3g} [{low:.3g}, {high:.3g}]", one.verdict
