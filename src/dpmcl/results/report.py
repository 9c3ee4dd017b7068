"""A report of runs: one HTML file that needs no network, or a page of Markdown with figures."""

import io
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import tomli_w

from dpmcl.exceptions import DpmclError
from dpmcl.results import claims, comparison, figures, heat_map, paper, theory_figures
from dpmcl.results.comparison import MEASURES, Entry
from dpmcl.results.names import displayed
from dpmcl.results.statistics import Interval, compare, estimate
from dpmcl.results.store import Stored
from dpmcl.results.table import COSTS, cost_rows, formatted

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class _Cell(NamedTuple):
    """A cell of a table: its text, and for a number the key by which it is sorted."""

    text: str
    key: float | None = None


@dataclass(frozen=True)
class _Table:
    """A table; `words` of its columns, from the first, are text."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[_Cell]]
    words: int = 1


class _Picture(NamedTuple):
    """A figure as SVG."""

    caption: str
    svg: str


class _Block(NamedTuple):
    """A text that is folded in."""

    title: str
    text: str


@dataclass(frozen=True)
class _Section:
    """A part of the report."""

    title: str
    texts: Sequence[str] = ()
    tables: Sequence[_Table] = ()
    figures: Sequence[_Picture] = ()
    blocks: Sequence[_Block] = ()
    anchor: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "anchor", self.title.lower().replace(" ", "-"))


def html(runs: Mapping[str, Stored], against: str | None = None) -> str:
    """Return a report of runs as HTML.

    Args:
        runs: What run folders hold, by name.
        against: The method that the others are compared with; None for the first one.

    Raises:
        DpmclError: There are no results, or matplotlib or SciPy is not installed.
        SpecError: There is no method of that name.
    """
    try:
        import jinja2
    except ImportError:
        raise DpmclError("A report needs jinja2: pip install 'dpmcl[plot]'.") from None
    title, sections = _content(runs, against)
    template = files("dpmcl.results").joinpath("report.html.jinja").read_text("utf-8")
    made = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return made.from_string(template).render(title=title, sections=sections)


def markdown(
    runs: Mapping[str, Stored], against: str | None = None, *, stem: str = "report"
) -> dict[str, str]:
    """Return a report of runs as the contents of files: a page of Markdown, and its figures.

    Args:
        runs: What run folders hold, by name.
        against: The method that the others are compared with; None for the first one.
        stem: Name of the page without its suffix, with which the names of figures begin.

    Raises:
        DpmclError: There are no results, or matplotlib or SciPy is not installed.
        SpecError: There is no method of that name.
    """
    title, sections = _content(runs, against)
    lines = [f"# {title}"]
    out: dict[str, str] = {}
    for section in sections:
        lines += [f"## {section.title}", *section.texts]
        for table in section.tables:
            body = [[cell.text for cell in row] for row in table.rows]
            lines.append(f"{table.caption}:")
            lines.append(formatted(table.header, body, "markdown", words=table.words))
        for picture in section.figures:
            name = f"{stem}-{len(out) + 1}.svg"
            out[name] = picture.svg
            lines.append(f"![{picture.caption}]({name})")
        for block in section.blocks:
            lines += [f"{block.title}:", f"```\n{block.text.rstrip()}\n```"]
    return {f"{stem}.md": "\n\n".join(lines) + "\n", **out}


def _content(runs: Mapping[str, Stored], against: str | None) -> tuple[str, list[_Section]]:
    """Return the title and the sections of a report."""
    entries = comparison.entries(runs)
    if not entries:
        raise DpmclError("There are no results to report yet; `dpmcl run` makes some.")
    labels = comparison.labels(entries)
    sections = [
        _asked(runs),
        _protocol(runs),
        _results(entries, labels),
        _statistics(entries, against),
        _paper(entries, labels),
        _pictures(entries),
        _settings(entries, labels),
        _cost(entries, labels),
        _made(runs),
    ]
    streams = dict.fromkeys(displayed(entry.stream.name) for entry in entries)
    title = f"Continual learning on {', '.join(streams)}"
    return title, [section for section in sections if section is not None]


def _asked(runs: Mapping[str, Stored]) -> _Section:
    """Return what was asked for: each run's spec, and the command that repeats it."""
    texts, blocks = [], []
    for name, stored in runs.items():
        spec = stored.spec
        methods = ", ".join(displayed(method) for method in spec.get("methods", {}))
        scenario = f" ({displayed(stored.stream.scenario)})" if stored.stream.scenario else ""
        texts.append(
            f"{displayed(name)}: {methods} on {displayed(stored.stream.name)}, "
            f"{len(stored.stream.tasks)} tasks{scenario}, {spec.get('replicas', '?')} replicas "
            f"from seed {spec.get('seed', 0)}. Repeat it with: dpmcl run "
            f"{shlex.quote(f'{name}/spec.toml')} --out again"
        )
        blocks.append(_Block(f"{displayed(name)}/spec.toml", tomli_w.dumps(spec)))
    return _Section("What was asked", texts, blocks=blocks)


def _protocol(runs: Mapping[str, Stored]) -> _Section:
    """Return the rules of a fair comparison, each with whether it held."""
    rows = [
        [
            _Cell(displayed(name)),
            _Cell(rule.rule),
            _Cell("not held" if rule.violations else "held"),
            _Cell(displayed(" ".join(rule.violations) or "-")),
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
        told = ", ".join(unchecked)
        texts.append(f"Not checked: {told}; `dpmcl run` with the folder checks it.")
    header = ["run", "rule", "held", "where not"]
    tables = [_Table("Rules of a fair comparison", header, rows, words=4)] if rows else []
    return _Section("Protocol", texts, tables)


def _results(entries: Sequence[Entry], labels: Sequence[str]) -> _Section:
    """Return CME and NTE of each method, and how sure they are."""
    text = (
        "CME is the mean error on all tasks at the end, NTE the error on the last task when it "
        "was new: 1 - accuracy for classes, mean squared error for numbers; lower is better. "
        "Replicas that diverged are left out of the means."
    )
    header = (
        "stream",
        "method",
        "replicas",
        "diverged",
        "mean",
        "standard error",
        "95 % interval (t)",
        "95 % interval (bootstrap)",
    )
    tables = []
    for name, measure in MEASURES.items():
        rows = []
        for entry, label in zip(entries, labels, strict=True):
            errors, lost = entry.record.test, len(entry.record.diverged)
            ours = estimate(measure(errors))
            rows.append(
                [
                    _Cell(displayed(entry.stream.name)),
                    _Cell(displayed(label)),
                    _Cell(str(len(errors.seeds)), len(errors.seeds)),
                    _Cell(str(lost), lost),
                    _number(ours.mean),
                    _number(ours.error),
                    _interval(ours.interval),
                    _interval(ours.bootstrap),
                ]
            )
        tables.append(_Table(f"{name} on test rows", header, rows, words=2))
    return _Section("Results", [text], tables)


def _statistics(entries: Sequence[Entry], against: str | None) -> _Section | None:
    """Return every method compared with one, stream by stream; None where there is but one."""
    tables = []
    for stream, ours in comparison.by_stream(entries).items():
        if len(ours) < 2:
            continue
        chosen = against if against is not None else next(iter(ours))
        records = {label: entry.record for label, entry in ours.items()}
        for name, values in comparison.by_seed(records).items():
            rows = [
                [
                    _Cell(displayed(one.method)),
                    _Cell(str(one.pairs), one.pairs),
                    _number(one.difference),
                    _interval(one.interval),
                    _number(one.p),
                    _number(one.effect),
                    _Cell(one.verdict),
                ]
                for one in compare(values, chosen)
            ]
            caption = f"{displayed(stream)}: {name} of each method less that of {displayed(chosen)}"
            header = ["method", "pairs", "difference", "95 % interval", "p", "effect", "verdict"]
            tables.append(_Table(caption, header, rows))
    text = (
        "Pairs are the seeds that both methods have. p is of Wilcoxon's signed-rank test, "
        "corrected by Holm for the methods of a table; effect is the rank-biserial correlation, "
        "-1 where a method is lower on every seed."
    )
    return _Section("Statistics", [text], tables) if tables else None


def _paper(entries: Sequence[Entry], labels: Sequence[str]) -> _Section | None:
    """Return the paper's Table 1 and claims beside results; None where they are of other things."""
    ours = claims.table1_values(entries, labels)
    zeta, kappa = (claims.figure3_values(entries, axis) for axis in ("zeta", "kappa"))
    told = claims.of_table1(ours)
    if any(len(points["CME"]) > 1 for points in (zeta, kappa)):
        told += claims.of_figure3(zeta, kappa)
    if not told:
        return None
    cells = paper.compared(
        {key: estimate(np.array(list(values.values()))) for key, values in ours.items()}
    )
    rows = [
        [
            *map(_Cell, (cell.stream, cell.method, cell.measure, cell.printed)),
            _number(cell.ours.mean),
            _number(cell.ours.error),
            _Cell(cell.mark),
        ]
        for cell in cells
        if cell.ours is not None
    ]
    header = ["stream", "method", "error", "paper", "ours", "standard error", "mark"]
    answers = [[_Cell(one.text), _Cell(one.answer), _Cell(one.figures)] for one in told]
    tables = [_Table("The paper's Table 1", header, rows, words=4)] * bool(rows)
    tables.append(_Table("Its claims", ["claim", "holds here", "our figures"], answers, words=3))
    text = (
        "Within: at most two combined standard errors apart; same order: above and below the same "
        "other methods as in the paper. A claim holds where the 95 % intervals of paired "
        'differences say so; "in direction" is a difference of the printed sign and another size.'
    )
    return _Section("Beside the paper", [text], tables)


def _pictures(entries: Sequence[Entry]) -> _Section:
    """Return the figures of each stream."""
    pictures = []
    for ours in comparison.by_stream(entries).values():
        stream = next(reversed(ours.values())).stream
        records = {label: entry.record for label, entry in ours.items()}
        name = displayed(stream.name)
        caption = f"{name}: errors against tasks"
        pictures.append(_picture(caption, figures.curves(records, stream)))
        caption = f"{name}: error on each task (across) after each task (down)"
        pictures.append(_picture(caption, heat_map.heat_maps(records, stream)))
        readings = {k: r.readings for k, r in records.items() if r.readings is not None}
        for what in ("terms", "stability") if readings else ():
            try:
                figure = theory_figures.draw(readings, stream, what)
            except DpmclError:  # the run recorded the other one
                continue
            pictures.append(_picture(f"{name}: {what} as monitored", figure))
    return _Section("Figures", figures=pictures)


def _settings(entries: Sequence[Entry], labels: Sequence[str]) -> _Section | None:
    keys = comparison.differing(entries)
    if not keys:
        return None
    rows = [
        [
            _Cell(displayed(label)),
            *(_Cell(displayed(comparison.written(entry.settings.get(key)))) for key in keys),
        ]
        for entry, label in zip(entries, labels, strict=True)
    ]
    table = _Table("Settings in which runs differ", ["method", *keys], rows, words=1 + len(keys))
    return _Section("Settings that differ", tables=[table])


def _cost(entries: Sequence[Entry], labels: Sequence[str]) -> _Section:
    rows = []
    for entry, label in zip(entries, labels, strict=True):
        (spent,) = cost_rows({entry.method: entry.record}, entry.stream)
        words = [_Cell(displayed(entry.stream.name)), _Cell(displayed(label))]
        rows.append([*words, *(_count(spent[kind]) for kind in COSTS)])
    caption = "Cost of a replica's updates, and what it keeps, mean over seeds"
    table = _Table(caption, ["stream", "method", *COSTS.values()], rows, words=2)
    return _Section("Cost", tables=[table])


def _made(runs: Mapping[str, Stored]) -> _Section:
    """Return what computed the results."""
    blocks = [
        _Block(f"{displayed(name)}/environment.json", json.dumps(stored.environment, indent=1))
        for name, stored in runs.items()
        if stored.environment
    ]
    return _Section("Environment", blocks=blocks)


def _picture(caption: str, figure: "Figure") -> _Picture:
    """Return a figure as SVG without a file's header; the same figure gives the same bytes."""
    import matplotlib

    out = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({"svg.hashsalt": caption}):  # ids of one page must differ
        figure.savefig(out, format="svg", metadata=nothing)
    return _Picture(caption, "<svg" + out.getvalue().partition("<svg")[2])


def _number(value: float | None) -> _Cell:
    return _Cell("-") if value is None else _Cell(f"{value:.3g}", value)


def _interval(ends: Interval | None) -> _Cell:
    return _Cell("-") if ends is None else _Cell(f"{ends[0]:.3g} to {ends[1]:.3g}", ends[0])


def _count(value: float | None) -> _Cell:
    return _Cell("-") if value is None else _Cell(f"{value:,.0f}", value)
