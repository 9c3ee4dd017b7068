"""Tables of the results in results/, for the pages of the documentation.

The pages contain calls of these functions in comments, and cog inserts their output: `make pages`
writes every number again, and a test checks that none would change.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from dpmcl.results import claims, comparison, store
from dpmcl.results.comparison import MEASURES, Entry
from dpmcl.results.statistics import Comparison, compare, estimate
from dpmcl.results.table import format_cells

ROOT = Path(__file__).parents[1] / "results"

Row = Sequence[str]


def entries(*folders: str) -> list[Entry]:
    """Return the methods of run folders, whose paths are relative to results/."""
    return comparison.entries({folder: store.load(ROOT / folder) for folder in folders})


def show(header: Row, body: Sequence[Row], words: int = 1) -> None:
    """Print a Markdown table, for cog."""
    print(format_cells(header, body, "markdown", words=words))


def methods(folder: str, settings: Sequence[str] = ("lr",)) -> None:
    """Print the errors, FLOPs and bytes kept of a run's methods, smallest CME first.

    Args:
        folder: Folder of the run, relative to results/.
        settings: Names of settings that are shown too.
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
                *(comparison.setting_text(entry.settings.get(key)) for key in settings),
                f"{flops / 1e9:.2f}",
                f"{kept / 1e3:,.0f}",
            ]
        )
    show(("method", "replicas", *MEASURES, *settings, "GFLOP a task", "kB kept"), body)


def rates(study: str, measure: str) -> None:
    """Print a measure of each method at each learning rate of a study.

    Args:
        study: Folder of the study, relative to results/.
        measure: "CME" or "NTE".
    """
    cells = {((one.method,), one.settings["lr"]): _error(one, measure) for one in _runs(study)}
    _print_grid((measure,), "lr", cells)


def paired(folder: str, against: str, methods: Sequence[str] = ()) -> None:
    """Print the differences between the methods of a run and one of them, in pairs of equal seed.

    Args:
        folder: Folder of the run, relative to results/.
        against: Name of the method that is subtracted.
        methods: The methods that are compared with it; all if there are none.
    """
    of_run = entries(folder)
    compared = [one for one in of_run if not methods or one.method in (against, *methods)]
    _print_differences({entry.method: entry for entry in compared}, against)


def ranks(*folders: str) -> None:
    """Print each method's rank in some runs, averaged over seeds; rank 1 is the lowest error.

    Replicas that diverged share the last rank of their seed.

    Args:
        folders: Folders of runs with the same methods, relative to results/.
    """
    columns: dict[str, NDArray[np.float64]] = {}
    for folder in folders:
        in_run = entries(folder)
        for name, measure in MEASURES.items():
            errors = np.array([measure(entry.record.test) for entry in in_run])
            rank = rankdata(np.where(np.isfinite(errors), errors, np.inf), axis=0)
            columns[f"{name}, {in_run[0].stream.name}"] = rank.mean(1)
    table = np.array([*columns.values()]).T
    names = [entry.method for entry in in_run]
    order = np.argsort(table[:, :: len(MEASURES)].mean(1), kind="stable")
    body = [[names[row], *(f"{rank:.1f}" for rank in table[row])] for row in order]
    show(("method", *columns), body)


def paired_runs(study: str, runs: Mapping[str, str], against: str) -> None:
    """Print the differences of DPMCL between runs of a study, in pairs of equal seed.

    Args:
        study: Folder of the study, relative to results/.
        runs: Names of its runs, by the label that the table shows.
        against: Label of the run that is subtracted.
    """
    _print_differences({name: entries(f"{study}/{run}")[0] for name, run in runs.items()}, against)


def grid(study: str, down: Sequence[str], across: str, measure: str) -> None:
    """Print a measure of DPMCL in the runs of a study, as a table over its settings.

    Args:
        study: Folder of the study, relative to results/.
        down: Settings whose combinations of values are the rows.
        across: Setting whose values are the columns.
        measure: "CME" or "NTE".
    """
    cells = {
        (tuple(entry.settings[key] for key in down), entry.settings[across]): _error(entry, measure)
        for entry in _runs(study)
        if entry.method == "dpmcl"
    }
    _print_grid(down, across, cells)


def figure3_claims() -> None:
    """Print the paper's claims about Figure 3, and whether they hold in results/figure3."""
    runs = _runs("figure3")
    zeta, kappa = (claims.figure3_values(runs, axis) for axis in ("zeta", "kappa"))
    answers = claims.of_figure3(zeta, kappa)
    show(("claim", "holds here", "our figures"), answers, words=3)


def _runs(study: str) -> list[Entry]:
    """Return the methods of all runs of a study."""
    folders = sorted(path.parent for path in (ROOT / study).glob("*/errors.parquet"))
    return entries(*(str(folder.relative_to(ROOT)) for folder in folders))


def _print_grid(down: Row, across: str, cells: Mapping[Any, str]) -> None:
    """Print a table of cells, which are keyed by the values of the settings (down, across)."""
    rows, columns = (sorted(set(keys)) for keys in zip(*cells, strict=True))
    header = (*down, *(f"{across} {comparison.setting_text(value)}" for value in columns))
    body = [
        [*map(comparison.setting_text, row), *(cells.get((row, value), "-") for value in columns)]
        for row in rows
    ]
    show(header, body, words=len(down))


def _print_differences(by_name: Mapping[str, Entry], against: str) -> None:
    by_seed = comparison.errors_by_seed(by_name)
    compared = {name: compare(values, against) for name, values in by_seed.items()}
    body = [
        [each[0].method, *(text for comparison in each for text in _texts(comparison))]
        for each in zip(*compared.values(), strict=True)
    ]
    header = [text for name in compared for text in (f"{name} less {against}'s", "which is")]
    show(("method", *header), body)


def _by_cme(entry: Entry) -> float:
    average = estimate(MEASURES["CME"](entry.record.test)).mean
    return float("inf") if average is None else average


def _error(entry: Entry, measure: str) -> str:
    """Return mean and standard error, with the number of replicas without a finite error."""
    ours = estimate(MEASURES[measure](entry.record.test))
    if ours.mean is None:
        return "all diverged"
    diverged = f", {ours.lost} diverged" * bool(ours.lost)
    return f"{ours.mean:.3g} ({ours.error or 0:.2g}){diverged}"


def _texts(comparison: Comparison) -> tuple[str, str]:
    """Return a difference with its interval, and the verdict."""
    if comparison.difference is None or comparison.interval is None:
        return "-", comparison.verdict
    low, high = comparison.interval
    return f"{comparison.difference:+.3g} [{low:.3g}, {high:.3g}]", comparison.verdict
