"""Tables of several runs side by side: results, costs, and comparisons with one method."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from dpmcl.core.choices import TableFormat
from dpmcl.exceptions import SpecError
from dpmcl.results import comparison
from dpmcl.results.comparison import Entry
from dpmcl.results.names import displayed
from dpmcl.results.record import Record
from dpmcl.results.statistics import Comparison, compare
from dpmcl.results.store import Stored, StreamInfo
from dpmcl.results.table import Look, Row, best, formatted, render
from dpmcl.study.study import Result

_RUN = "run"

_HEADER = (
    "stream",
    "method",
    "against",
    "error",
    "pairs",
    "difference",
    "95 % interval",
    "p (Holm)",
    "effect",
    "verdict",
)

Rows = Callable[[Result], list[Row]]
"""Returns the rows of a run's table, in the order of its methods."""


class SideBySide:
    """Several runs.

    Args:
        runs: Their results, by name.
    """

    def __init__(self, runs: Mapping[str, Result]) -> None:
        self.runs = runs
        stored = {k: Stored(dict(r.spec), r.stream, dict(r.records)) for k, r in runs.items()}
        self.entries = comparison.entries(stored)
        self.labels = comparison.labels(self.entries)

    def rows(self, rows: Rows, look: Look) -> tuple[list[Row], Look]:
        """Return the rows of all runs, with the settings that tell them apart, and how they look.

        Args:
            rows: Makes the rows of one run.
            look: What the user asked for.
        """
        keys = comparison.differing(self.entries)
        if any(label.endswith(f"[{e.run}]") for e, label in self._named()):
            keys = [_RUN, *keys]
        by_place = {(entry.run, entry.method): entry for entry in self.entries}
        out: list[Row] = []
        for run, result in self.runs.items():
            for row in rows(result):
                settings = {_RUN: run, **by_place[run, row["method"]].settings}
                first = {key: row[key] for key in ("stream", "method")}
                told = {key: settings.get(key) for key in keys}
                out.append({**first, **told, **row})
        return out, replace(look, settings=keys, best=self._best)

    def compared(self, against: str) -> dict[tuple[str, str], list[Comparison]]:
        """Return each method compared with one, by stream and measure ("CME", "NTE").

        Args:
            against: Its name, as in a table; with settings, as in "er (lr 0.1)", where several
                runs have it.

        Raises:
            SpecError: No stream has it beside another method.
        """
        out = {}
        streams = comparison.by_stream(self.entries)
        for stream, ours in streams.items():
            if against not in ours and len(streams) > 1:
                continue
            records = {label: entry.record for label, entry in ours.items()}
            for name, values in comparison.by_seed(records).items():
                out[stream, name] = compare(values, against)
        if not any(out.values()):
            known = ", ".join(dict.fromkeys(self.labels))
            raise SpecError(
                f"--against names a method with others beside it, got '{against}'; there are: "
                f"{known}."
            )
        return out

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
        named = zip(self.labels, self.entries, strict=True)
        return {label: entry.record for label, entry in named}, self.entries[0].stream

    def _named(self) -> Sequence[tuple[Entry, str]]:
        return list(zip(self.entries, self.labels, strict=True))

    def _best(self) -> list[tuple[int, str]]:
        """Return the places of the means that are best beyond doubt."""
        out = []
        for stream, ours in comparison.by_stream(self.entries).items():
            for label, title in best({k: entry.record for k, entry in ours.items()}):
                places = [
                    row
                    for row, (entry, name) in enumerate(self._named())
                    if (entry.stream.name, name) == (stream, label)
                ]
                out.append((places[0], title))
        return out


def render_comparisons(
    compared: Mapping[tuple[str, str], Sequence[Comparison]], style: TableFormat
) -> str:
    """Return comparisons as text.

    Args:
        compared: As `SideBySide.compared` returns them.
        style: Format of the table.
    """
    rows: list[Row] = [
        {"stream": stream, "error": measure, **one._asdict()}
        for (stream, measure), several in compared.items()
        for one in several
    ]
    if style in ("json", "csv"):
        return render(rows, style)

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.3g}"

    body = []
    for row in rows:
        ends = " to ".join(map(number, row["interval"])) if row["interval"] else "-"
        names = [displayed(row["stream"]), displayed(row["method"]), displayed(row["against"])]
        numbers = [number(row[key]) for key in ("p", "effect")]
        body.append(
            [
                *names,
                row["error"],
                f"{row['pairs']}",
                number(row["difference"]),
                ends,
                *numbers,
                row["verdict"],
            ]
        )
    return formatted(_HEADER, body, style, words=4)
