"""A report of runs: one HTML file that needs no network, or a page of Markdown with figures."""

import io
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from dpmcl.exceptions import DpmclError, needed_for
from dpmcl.results import against as comparisons
from dpmcl.results import claims, comparison, figures, heat_map, paper, theory_figures
from dpmcl.results.comparison import MEASURES, Entry
from dpmcl.results.names import displayed
from dpmcl.results.statistics import FEWEST, bootstrap_interval, estimate
from dpmcl.results.store import Stored
from dpmcl.results.summary import cost_rows
from dpmcl.results.table import cells, columns_of, format_cells, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class _Table:
    """Table of a report; its first `words` columns are text."""

    caption: str
    header: Sequence[str]
    body: Sequence[Sequence[str]]
    words: int = 1


@dataclass(frozen=True)
class _Section:
    """Section of a report; `figures` are SVG by caption, `blocks` collapsible texts by title."""

    title: str
    texts: Sequence[str] = ()
    tables: Sequence[_Table] = ()
    figures: Mapping[str, str] = field(default_factory=dict)
    blocks: Mapping[str, str] = field(default_factory=dict)

    @property
    def anchor(self) -> str:
        """Id of the section's HTML element."""
        return self.title.lower().replace(" ", "-")


_KEYS = ("method", "finished", "engine", "device_name", "dpmcl", "commit", "torch", "python")
"""Keys of environment.json that a report shows."""


def html(runs: Mapping[str, Stored], against: str | None = None) -> str:
    """Return a report of runs as one HTML page.

    Args:
        runs: Contents of run folders, by name.
        against: Method that the others are compared with; None for the first one.

    Raises:
        DpmclError: There are no results, or matplotlib or SciPy is not installed.
        SpecError: There is no method of that name.
    """
    with needed_for("A report", "dpmcl[plot]"):
        import jinja2
    title, sections = _content(runs, against)
    template = files("dpmcl.results").joinpath("report.html.jinja").read_text("utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(template).render(title=title, sections=sections)


def markdown(
    runs: Mapping[str, Stored], against: str | None = None, *, stem: str = "report"
) -> dict[str, str]:
    """Return a report of runs as a page of Markdown and its figures, by file name.

    Args:
        runs: Contents of run folders, by name.
        against: Method that the others are compared with; None for the first one.
        stem: File name of the page without suffix. Names of the figures begin with it.

    Raises:
        DpmclError: There are no results, or matplotlib or SciPy is not installed.
        SpecError: There is no method of that name.
    """
    heading, sections = _content(runs, against)
    lines = [f"# {heading}"]
    out: dict[str, str] = {}
    for section in sections:
        lines += [f"## {section.title}", *section.texts]
        for table in section.tables:
            lines.append(f"{table.caption}:")
            lines.append(format_cells(table.header, table.body, "markdown", words=table.words))
        for caption, svg in section.figures.items():
            name = f"{stem}-{len(out) + 1}.svg"
            out[name] = svg
            lines.append(f"![{caption}]({name})")
        for title, text in section.blocks.items():
            lines += [f"{title}:", f"```\n{text.rstrip()}\n```"]
    return {f"{stem}.md": "\n\n".join(lines) + "\n", **out}


def _content(runs: Mapping[str, Stored], against: str | None) -> tuple[str, list[_Section]]:
    """Return the title and the sections of a report."""
    entries = comparison.entries(runs)
    if not entries:
        raise DpmclError("There are no results to report yet; `dpmcl run` makes some.")
    sections = [
        _overview(runs),
        _results(entries),
        _figures(entries),
        _statistics(entries, against),
        _paper(entries),
        _settings(entries),
        _cost(entries),
        _protocol(runs),
        _environment(runs),
        _specs(runs),
    ]
    streams = dict.fromkeys(displayed(entry.stream.name) for entry in entries)
    title = f"Continual learning on {', '.join(streams)}"
    return title, [section for section in sections if section is not None]


def _overview(runs: Mapping[str, Stored]) -> _Section:
    """Return the methods, streams and seeds of the runs, and the commands that repeat them."""
    texts = []
    for name, stored in runs.items():
        scenario = f" ({displayed(stored.stream.scenario)})" if stored.stream.scenario else ""
        for (first, count), methods in _calls(stored).items():
            texts.append(
                f"{displayed(name)}: {', '.join(map(displayed, methods))} on "
                f"{displayed(stored.stream.name)}, {len(stored.stream.tasks)} tasks{scenario}, "
                f"{count} replica{'s' * (count != 1)} from seed {first}. "
                f"{_how_to_repeat(name, stored.spec, methods, first, count)}"
            )
    return _Section("What was asked", texts)


def _calls(stored: Stored) -> dict[tuple[int, int], list[str]]:
    """Return the methods of a run by the first seed and the number of consecutive seeds."""
    calls: dict[tuple[int, int], list[str]] = {}
    for method, record in stored.records.items():
        numbered = enumerate(record.test.seeds)
        for _, group in groupby(numbered, lambda pair: pair[1] - pair[0]):
            seeds = [seed for _, seed in group]
            calls.setdefault((seeds[0], len(seeds)), []).append(method)
    return calls


def _how_to_repeat(name: str, spec: Mapping[str, Any], methods: list[str], *seeds: int) -> str:
    """Return a sentence with the command that repeats methods with their first seed and number."""
    objects = "python" in (spec.get(table, {}).get("name") for table in ("stream", "network"))
    if objects or "__main__:" in str(spec):
        return "It was made in Python, by objects of a script; call dpmcl.run again to repeat it."
    command = ["dpmcl", "run", f"{name}/spec.toml"]
    if (methods, *seeds) != ([*spec["methods"]], spec.get("seed"), spec.get("replicas")):
        command += [word for method in methods for word in ("--method", method)]
        command += ["--seed", str(seeds[0]), "--replicas", str(seeds[1])]
    return f"Repeat it with: {shlex.join([*command, '--out', f'again/{Path(name).name}'])}"


def _protocol(runs: Mapping[str, Stored]) -> _Section:
    """Return the rules of a fair comparison and their violations."""
    rows = [
        [
            displayed(name),
            rule.rule,
            "not held" if rule.violations else "held",
            displayed(" ".join(rule.violations) or "-"),
        ]
        for name, stored in runs.items()
        for rule in (stored.protocol.rules if stored.protocol else ())
    ]
    unchecked = [displayed(name) for name, stored in runs.items() if stored.protocol is None]
    texts = [
        "Rows that training may not see are refused as they are drawn; the other rules are checked "
        "on results."
    ]
    if unchecked:
        names = ", ".join(unchecked)
        texts.append(f"Not checked: {names}; `dpmcl run` with the folder checks it.")
    header = ["run", "rule", "held", "where not"]
    tables = [_Table("Rules of a fair comparison", header, rows, words=4)] if rows else []
    return _Section("Protocol", texts, tables)


def _results(entries: Sequence[Entry]) -> _Section:
    """Return CME and NTE of each method, with standard errors and intervals."""
    text = (
        "CME is the mean error on all tasks at the end, NTE the error on the last task when it "
        "was new: 1 - accuracy for classes, mean squared error for numbers; lower is better. "
        "Replicas without a finite error, such as those that diverged, are left out of the means. "
        f"The bootstrap needs {FEWEST} replicas."
    )
    header = (
        "stream",
        "method",
        "replicas",
        "left out",
        "mean",
        "standard error",
        "95 % interval (t)",
        "95 % interval (bootstrap)",
    )
    held_out = {entry.settings.get("evaluation.held_out") is not None for entry in entries}
    rows = " and on ".join("rows held out" if held else "test rows" for held in sorted(held_out))
    tables = []
    for name, measure in MEASURES.items():
        body = []
        for entry in entries:
            values = measure(entry.record.test)
            summary = estimate(values)
            numbers = (summary.mean, summary.error, summary.interval, bootstrap_interval(values))
            body.append(
                [
                    displayed(entry.stream.name),
                    displayed(entry.label),
                    str(len(values)),
                    str(summary.lost),
                    *map(number, numbers),
                ]
            )
        tables.append(_Table(f"{name} on {rows}", header, body, words=2))
    return _Section("Results", [text], tables)


def _statistics(entries: Sequence[Entry], against: str | None) -> _Section | None:
    """Return the comparison of all methods with one, by stream; None if there is only one."""
    rows = comparisons.rows(entries, against)
    if not rows:
        return None
    columns = comparisons.COLUMNS
    table = _Table("Each method less another", list(columns), cells(rows, columns), words=4)
    text = (
        "Pairs are the seeds on which both have a finite error. p is of Wilcoxon's signed-rank "
        "test, corrected by Holm for the methods of a stream; effect is the rank-biserial "
        "correlation, -1 where a method is lower on every seed on which the two differ."
    )
    return _Section("Statistics", [text], [table])


def _paper(entries: Sequence[Entry]) -> _Section | None:
    """Return the paper's Table 1 and claims beside the results; None if no result concerns them."""
    zeta, kappa = (claims.figure3_values(entries, axis) for axis in ("zeta", "kappa"))
    answers = claims.of_table1(paper.values(entries))
    if any(len(points["CME"]) > 1 for points in (zeta, kappa)):
        answers += claims.of_figure3(zeta, kappa)
    if not answers:
        return None
    rows = [row for row in paper.rows(entries) if row["replicas"]]
    body = cells(rows, paper.COLUMNS)
    tables = [_Table("The paper's Table 1", list(paper.COLUMNS), body, words=4)] * bool(rows)
    tables.append(_Table("Its claims", ["claim", "holds here", "our figures"], answers, words=3))
    text = (
        "A claim holds where the 95 % intervals of all its paired differences say so, and fails "
        "where one of them, with Bonferroni's correction for their number, says the opposite; "
        '"in direction" is a difference of the printed sign and another size. The claim about '
        "powers of ten on SINE is answered by the means alone."
    )
    return _Section("Beside the paper", [*paper.notes(entries), text], tables)


def _figures(entries: Sequence[Entry]) -> _Section:
    """Return the figures of each stream."""
    by_caption: dict[str, Figure] = {}
    for by_label in comparison.entries_by_stream(entries).values():
        stream = comparison.common_stream([*by_label.values()])
        records = {label: entry.record for label, entry in by_label.items()}
        name = displayed(stream.name)
        by_caption[f"{name}: errors against tasks"] = figures.curves(records, stream)
        caption = f"{name}: error on each task (across) after each task (down)"
        by_caption[caption] = heat_map.heat_maps(records, stream)
        readings = {k: r.readings for k, r in records.items() if r.readings is not None}
        for what in ("terms", "stability") if readings else ():
            with suppress(DpmclError):  # the run recorded only the other one
                figure = theory_figures.draw(readings, stream, what)
                by_caption[f"{name}: {what} as monitored"] = figure
    return _Section(
        "Figures", figures={name: _svg(name, figure) for name, figure in by_caption.items()}
    )


def _settings(entries: Sequence[Entry]) -> _Section | None:
    """Return the settings in which the runs differ; None if there are none."""
    keys = comparison.differing_settings(entries)
    if not keys:
        return None
    body = [
        [
            displayed(entry.stream.name),
            displayed(entry.label),
            *(displayed(comparison.setting_text(entry.settings.get(key))) for key in keys),
        ]
        for entry in entries
    ]
    header = ["stream", "method", *keys]
    table = _Table("Settings in which runs differ", header, body, words=len(header))
    return _Section("Settings that differ", tables=[table])


def _cost(entries: Sequence[Entry]) -> _Section:
    """Return the cost of each method's updates, and the memory that it uses."""
    rows = [row for e in entries for row in cost_rows({e.label: e.record}, e.stream)]
    columns = {
        "stream": lambda row: displayed(row["stream"]),
        "method": lambda row: displayed(row["method"]),
        **columns_of(rows),
    }
    caption = "Cost of a replica's updates, and what it keeps, mean over seeds"
    table = _Table(caption, list(columns), cells(rows, columns), words=2)
    return _Section("Cost", tables=[table])


def _environment(runs: Mapping[str, Stored]) -> _Section:
    """Return the software and hardware that computed the results."""
    body = [
        [displayed(name), *(displayed(str(entry.get(key, "-"))) for key in _KEYS)]
        for name, stored in runs.items()
        for entry in stored.environment
    ]
    text = "The environment.json of a run has the rest: seeds, versions, threads, variables."
    table = _Table("What computed the results", ["run", *_KEYS], body, words=1 + len(_KEYS))
    return _Section("Environment", [text], [table] if body else [])


def _specs(runs: Mapping[str, Stored]) -> _Section:
    """Return the complete spec of each run."""
    texts = {f"{displayed(name)}/spec.toml": tomli_w.dumps(run.spec) for name, run in runs.items()}
    return _Section("Specs", blocks=texts)


def _svg(caption: str, figure: "Figure") -> str:
    """Return a figure as an SVG element; equal figures give equal bytes."""
    import matplotlib

    out = io.StringIO()
    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({"svg.hashsalt": caption}):  # ids must be unique within a page
        figures.write(figure, out, format="svg", metadata=no_metadata)
    return "<svg" + out.getvalue().partition("<svg")[2]
