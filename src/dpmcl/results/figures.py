"""Figures of a study: errors against tasks."""

import itertools
import logging
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmcl.core.atomic import atomic
from dpmcl.core.errors import Errors
from dpmcl.exceptions import DpmclError, SpecError, printable, shown
from dpmcl.metrics.cme import cme
from dpmcl.metrics.nte import nte
from dpmcl.results.names import displayed
from dpmcl.results.record import Record
from dpmcl.results.store import StreamInfo

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by colour-blind readers; markers and dashes tell them apart
# in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
NAMED = 12  # tasks that still fit under the axis by name
PLAIN: dict[str, Any] = {"parse_math": False}
"""For a text that has names of users in it: a dollar is a dollar."""

_FORMATS = ("png", "svg", "pdf")
_NEEDS = "Figures need matplotlib and scipy: pip install 'dpmcl[plot]'."
# For what the usual font lacks, where one of these is installed: Chinese, Japanese, Korean, emoji.
_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "WenQuanYi Micro Hei",
    "Microsoft YaHei",
    "Yu Gothic",
    "Malgun Gothic",
    "Arial Unicode MS",
    "Noto Emoji",
    "Segoe UI Emoji",
)
_SMOOTHEST = 1000  # the filter's weights take room, and over fewer tasks no line looks otherwise


@contextmanager
def drawing() -> Iterator[None]:
    """A context, or a decorator, in which texts are made: with fonts for more than Latin letters.

    Raises DpmclError where matplotlib is not installed.
    """
    try:
        import matplotlib.figure
        from matplotlib.font_manager import fontManager
    except ImportError:
        raise DpmclError(_NEEDS) from None
    here = {font.name for font in fontManager.ttflist}
    family = [*matplotlib.rcParams["font.family"], *(font for font in _FONTS if font in here)]
    with matplotlib.rc_context({"font.family": family}):
        yield


@drawing()
def curves(records: Mapping[str, Record], stream: StreamInfo, smooth: float = 0.0) -> "Figure":
    """CME and NTE against tasks seen: the mean over seeds, a band of one standard error each side.

    smooth: standard deviation, in tasks, of a Gaussian filter on each line (the paper's Figure 2
    uses 2); 0 for none. Raises DpmclError where matplotlib is not installed.
    """
    if not (isinstance(smooth, Real) and 0 <= smooth <= _SMOOTHEST):
        raise SpecError(
            f"smooth must be a number of tasks, at least 0 and at most {_SMOOTHEST}, got "
            f"{shown(smooth)}."
        )
    if not records:
        raise DpmclError("There are no results to draw yet; `dpmcl run` makes some.")
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    try:
        from scipy.ndimage import gaussian_filter1d
    except ImportError:
        raise DpmclError(_NEEDS) from None

    def line(measure: Callable[..., np.ndarray], errors: Errors) -> tuple[np.ndarray, ...]:
        """Tasks seen, mean and standard error, where it was evaluated."""
        values = np.stack([measure(errors, after=k) for k in range(errors.tasks)], 1)
        known = np.flatnonzero(~np.isnan(values).all(0))
        values = values[:, known]
        pair = mean_and_error(values)
        return known + 1, *((gaussian_filter1d(v, smooth) for v in pair) if smooth else pair)

    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    axes: Any = figure.subplots(1, 2, sharey=True)
    unit = "error" if stream.kind == "classification" else "mean squared error"
    panels = ((cme, "CME: error on all tasks seen"), (nte, "NTE: error on the newest task"))
    for ax, (measure, title) in zip(axes, panels, strict=True):
        styles = itertools.cycle(zip(COLOURS, MARKERS, itertools.cycle(DASHES), strict=False))
        for (name, record), (colour, marker, dashes) in zip(records.items(), styles, strict=False):
            x, middle, error = line(measure, record.test)
            every = max(1, len(x) // 10)
            ax.plot(x, middle, linestyle=dashes, color=colour, marker=marker, markersize=4,
                    markevery=every, linewidth=1.5, label=name)  # fmt: skip
            ax.fill_between(x, middle - error, middle + error, color=colour, alpha=0.2, linewidth=0)
        ax.set_title(title, fontsize=10)
        if len(stream.tasks) <= NAMED and stream.classes:
            names = [shortened(name, 18) for name in stream.tasks]
            ax.set_xticks(
                np.arange(1, len(names) + 1), names, rotation=30, ha="right", fontsize=8, **PLAIN
            )
            ax.set_xlabel("tasks seen, up to")
        else:
            ax.set_xlabel("tasks seen")
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.grid(alpha=0.25, linewidth=0.5)
        ax.spines[["top", "right"]].set_visible(False)
        if stream.kind == "regression":
            ax.set_yscale("log")
        else:
            ax.set_ylim(-0.03, 1.03)
    axes[0].set_ylabel(unit)
    legend(axes[1], axes[1].get_lines(), [*records], frameon=False, fontsize=9, loc="best")
    seeds = sorted({len(record.test.seeds) for record in records.values()})
    band = ", band: one standard error" if seeds[-1] > 1 else ""
    note = f", smoothed over {smooth:g} tasks" if smooth else ""
    lost = sum(len(record.diverged) for record in records.values())
    frozen = f", {lost} of them diverged" if lost else ""
    title = f"{shortened(stream.name, 40)}, {replicas(seeds)}{frozen}{band}{note}"
    figure.suptitle(title, fontsize=11, **PLAIN)
    return figure


def legend(ax: Any, lines: Sequence[Any], names: Sequence[str], **options: Any) -> None:
    """Draws a legend in which lines have names of users.

    Names are set afterwards: matplotlib leaves out those that begin with an underscore.
    """
    drawn = ax.legend(lines, [str(k) for k in range(len(names))], **options)
    for text, name in zip(drawn.get_texts(), names, strict=True):
        text.set(text=shortened(name, 60), **PLAIN)


def mean_and_error(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard error over replicas, (n,) each, of (replicas, n); NaN counts for nothing.

    NaN where all replicas are.
    """
    n = (~np.isnan(values)).sum(0)
    with np.errstate(invalid="ignore", over="ignore"):  # infinite errors
        middle = np.where(n > 0, np.nansum(values, 0) / np.maximum(n, 1), np.nan)
        squares = np.nansum((values - middle) ** 2, 0)
    error = np.sqrt(squares / np.maximum(n - 1, 1) / np.maximum(n, 1))
    return middle, np.where(n > 0, error, np.nan)


def replicas(counts: Collection[int]) -> str:
    """How many replicas, in words; a range where methods differ."""
    least, most = min(counts), max(counts)
    count = str(least) if least == most else f"{least} to {most}"
    return f"{count} replica{'' if count == '1' else 's'}"


def shortened(name: str, most: int) -> str:
    """A name as a figure shows it: printable, and cut to so many characters, dots included."""
    text = displayed(name)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def save(figure: "Figure", path: Path) -> None:
    """Writes a figure whole or not at all; the suffix says the format (png, svg, pdf).

    Characters that no font has are logged, in one line, where matplotlib warns of each.
    """
    style = path.suffix.lstrip(".")
    if style not in _FORMATS:
        raise SpecError(f"A figure is one of {', '.join(_FORMATS)}, got '{path.name}'.")
    with atomic(path) as temporary, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        figure.savefig(temporary, format=style, dpi=150)
    missing: dict[str, None] = {}
    for warning in warned:
        if glyph := re.match(r"Glyph (\d+) .*missing from", str(warning.message)):
            missing[chr(int(glyph[1]))] = None
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    if missing:
        logging.getLogger("dpmcl").warning(
            "%s: no font here has %s%s; boxes stand for them, until one is installed (as Noto).",
            printable(str(path)), " ".join([*missing][:10]), " ..." * (len(missing) > 10),
        )  # fmt: skip
