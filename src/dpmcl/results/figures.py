"""Figures of a study: errors against tasks."""

import itertools
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from dpmcl.core.atomic import atomic
from dpmcl.core.choices import FigureFormat
from dpmcl.core.errors import Errors
from dpmcl.exceptions import DpmclError, SpecError, shown
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
"""Options of a text with names of users: a dollar in them is a dollar."""

_NEEDS = "Figures need matplotlib and scipy: pip install 'dpmcl[plot]'."
# Fonts for what the usual one lacks, used if installed: Chinese, Japanese, Korean, emoji.
_FONTS = (
    "Noto Sans CJK SC",
    "Microsoft YaHei",
    "Arial Unicode MS",
    "Noto Emoji",
)
_NARROW = 5.0  # inches; panels of a narrower figure stand one above the other
_CHARACTERS = 15  # of a tick's label in an inch
_SMOOTHEST = 1000  # tasks; the weights of a wider filter take much memory and change no line


@contextmanager
def drawing() -> Iterator[None]:
    """Draw texts with fonts for more than Latin letters; a context manager, or a decorator.

    Raises:
        DpmclError: matplotlib is not installed.
    """
    try:
        import matplotlib.figure
        from matplotlib.font_manager import fontManager
    except ImportError:
        raise DpmclError(_NEEDS) from None
    installed = {font.name for font in fontManager.ttflist}
    fonts = [font for font in _FONTS if font in installed]
    family = [*matplotlib.rcParams["font.family"], *fonts]
    with matplotlib.rc_context({"font.family": family}):
        yield


@dataclass(frozen=True, kw_only=True)
class Look:
    """How a figure of errors is drawn.

    Attributes:
        smooth: Standard deviation, in tasks, of a Gaussian filter on each line (the paper's Figure
            2 uses 2); 0 for none.
        ylim: Lowest and highest error shown; None for those of the data.
        log: Whether errors are on a logarithmic axis; None for those of a regression alone.
        width: Inches; below 5 the panels stand one above the other.
        caption: A line below, such as the settings.

    Raises:
        SpecError: A number is out of range.
    """

    smooth: float = 0.0
    ylim: tuple[float, float] | None = None
    log: bool | None = None
    width: float = 9.0
    caption: str = ""

    def __post_init__(self) -> None:
        if not (isinstance(self.smooth, Real) and 0 <= self.smooth <= _SMOOTHEST):
            raise SpecError(
                f"smooth must be a number of tasks, at least 0 and at most {_SMOOTHEST}, got "
                f"{shown(self.smooth)}."
            )
        if not (isinstance(self.width, Real) and 2 <= self.width <= 40):
            raise SpecError(f"width must be 2 to 40 inches, got {shown(self.width)}.")
        if self.ylim is not None and not self.ylim[0] < self.ylim[1]:
            raise SpecError(f"ylim must be LOW,HIGH with LOW < HIGH, got {shown(self.ylim)}.")


@drawing()
def curves(records: Mapping[str, Record], stream: StreamInfo, look: Look | None = None) -> "Figure":
    """Return a figure of CME and NTE against tasks: means over seeds, bands of a standard error.

    Args:
        records: Results by method.
        stream: Names of the stream.
        look: How it is drawn.

    Raises:
        DpmclError: There are no results, or matplotlib is not installed.
    """
    look = look or Look()
    if not records:
        raise DpmclError("There are no results to draw yet; `dpmcl run` makes some.")
    from matplotlib.figure import Figure

    beside = look.width >= _NARROW
    height = 3.6 if beside else 1.7 * look.width
    figure = Figure(figsize=(look.width, height), layout="constrained")
    axes: Any = figure.subplots(*((1, 2) if beside else (2, 1)), sharey=True)
    panels = ((cme, "CME: error on all tasks seen"), (nte, "NTE: error on the newest task"))
    for ax, (measure, title) in zip(axes, panels, strict=True):
        for name, style in styles(records).items():
            curve(ax, measure, records[name].test, style=style, smooth=look.smooth, label=name)
        ax.set_title(title, fontsize=10)
        _axes(ax, stream, look)
    what = "error" if stream.kind == "classification" else "mean squared error"
    for ax in axes[:1] if beside else axes:
        ax.set_ylabel(what)
    lines, names = axes[1].get_lines(), [*records]
    columns = 1 if beside else max(1, int(look.width // 1.1))
    legend(figure, lines, names, frameon=False, fontsize=9, ncols=min(columns, len(names)),
           loc="outside right upper" if beside else "outside lower center")  # fmt: skip
    figure.suptitle(_title(records, stream, look), fontsize=11 if beside else 8, **PLAIN)
    if look.caption:
        lines_of = textwrap.wrap(look.caption, int(look.width * 14))
        figure.supxlabel("\n".join(lines_of), fontsize=7, color="#57606a", **PLAIN)
    return figure


def _title(records: Mapping[str, Record], stream: StreamInfo, look: Look) -> str:
    """Return the stream, how many replicas there are, and what was done to the lines."""
    seeds = sorted({len(record.test.seeds) for record in records.values()})
    band = ", band: one standard error" if seeds[-1] > 1 else ""
    note = f", smoothed over {look.smooth:g} tasks" if look.smooth else ""
    lost = sum(len(record.diverged) for record in records.values())
    frozen = f", {lost} of them diverged" if lost else ""
    title = f"{shortened(stream.name, 40)}, {replicas(seeds)}{frozen}{band}{note}"
    return title if look.width >= _NARROW else "\n".join(textwrap.wrap(title, 40))


def styles(names: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    """Return a colour, a marker and dashes for the line of each name.

    Args:
        names: What the lines stand for.
    """
    cycle = itertools.cycle(zip(COLOURS, MARKERS, itertools.cycle(DASHES), strict=False))
    return dict(zip(names, cycle, strict=False))


def curve(
    ax: Any,
    measure: Callable[..., np.ndarray],
    errors: Errors,
    *,
    style: tuple[Any, ...],
    smooth: float,
    label: str,
) -> Any:
    """Draw a metric after each task, where it is known: the mean, and a band of a standard error.

    Args:
        ax: Axes of matplotlib.
        measure: The metric.
        errors: What it is of.
        style: Colour, marker and dashes.
        smooth: Standard deviation, in tasks, of a Gaussian filter; 0 for none.
        label: Name of the line.

    Returns:
        The line.

    Raises:
        DpmclError: SciPy is not installed.
    """
    try:
        from scipy.ndimage import gaussian_filter1d
    except ImportError:
        raise DpmclError(_NEEDS) from None
    values = np.stack([measure(errors, after=k) for k in range(errors.tasks)], 1)
    known = np.flatnonzero(~np.isnan(values).all(0))
    middle, error = mean_and_error(values[:, known])
    if smooth and len(known) > 1:
        apart = np.diff(known).mean()  # tasks, where not all of them were evaluated
        middle, error = (gaussian_filter1d(v, smooth / apart) for v in (middle, error))
    colour, marker, dashes = style
    x = known + 1
    (line,) = ax.plot(x, middle, linestyle=dashes, color=colour, marker=marker, markersize=4,
                      markevery=max(1, len(x) // 10), linewidth=1.5, label=label)  # fmt: skip
    ax.fill_between(x, middle - error, middle + error, color=colour, alpha=0.2, linewidth=0)
    return line


def _axes(ax: Any, stream: StreamInfo, look: Look) -> None:
    """Label the tasks, and scale errors."""
    panel = (look.width - 1.5) / 2 if look.width >= _NARROW else look.width - 0.5
    named = name_tasks(ax, stream, first=1, width=panel)
    ax.set_xlabel("after task" if named else "tasks seen")
    ax.grid(alpha=0.25, linewidth=0.5)
    ax.spines[["top", "right"]].set_visible(False)
    if look.log or (look.log is None and stream.kind == "regression"):
        ax.set_yscale("log")
    if look.ylim is not None:
        ax.set_ylim(*look.ylim)


def name_tasks(ax: Any, stream: StreamInfo, first: float, width: float = 4.0) -> bool:
    """Label the tasks under an axis: by name if there are few, by number otherwise.

    Args:
        ax: Axes of matplotlib.
        stream: Names of the tasks.
        first: Where the first task stands; each further one is 1 to the right.
        width: Of the axis, in inches: names that do not fit beside each other are turned.

    Returns:
        Whether they have names.
    """
    from matplotlib.ticker import MaxNLocator

    named = len(stream.tasks) <= NAMED and bool(stream.classes)
    if named:
        names = [shortened(name, 18) for name in stream.tasks]
        places = first + np.arange(len(names))
        fits = max(map(len, names)) + 2 <= width * _CHARACTERS / len(names)
        turned: dict[str, Any] = {} if fits else {"rotation": 30, "ha": "right"}
        ax.set_xticks(places, names, fontsize=8, **turned, **PLAIN)
    else:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return named


def legend(ax: Any, lines: Sequence[Any], names: Sequence[str], **options: Any) -> None:
    """Draw a legend of lines with names of users, which may begin with an underscore.

    Args:
        ax: Axes of matplotlib.
        lines: What the names stand for.
        names: Name of each line.
        options: Passed to `Axes.legend`.
    """
    # Names are set afterwards: matplotlib leaves out those that begin with an underscore.
    drawn = ax.legend(lines, [str(k) for k in range(len(names))], **options)
    for text, name in zip(drawn.get_texts(), names, strict=True):
        text.set(text=shortened(name, 60), **PLAIN)


def mean_and_error(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard error over replicas, (n,) each; NaN where all replicas are NaN.

    Args:
        values: (replicas, n); NaN is left out.
    """
    n = (~np.isnan(values)).sum(0)
    with np.errstate(invalid="ignore", over="ignore"):  # infinite errors
        middle = np.where(n > 0, np.nansum(values, 0) / np.maximum(n, 1), np.nan)
        squares = np.nansum((values - middle) ** 2, 0)
    error = np.sqrt(squares / np.maximum(n - 1, 1) / np.maximum(n, 1))
    return middle, np.where(n > 0, error, np.nan)


def replicas(counts: Collection[int]) -> str:
    """Return a number of replicas in words, a range if methods differ.

    Args:
        counts: Number of replicas of each method.
    """
    least, most = min(counts), max(counts)
    count = str(least) if least == most else f"{least} to {most}"
    return f"{count} replica{'' if count == '1' else 's'}"


def shortened(name: str, most: int) -> str:
    """Return a name as a figure shows it: printable, and cut.

    Args:
        name: Any text.
        most: Characters at most, dots included.
    """
    text = displayed(name)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def save(figure: "Figure", path: Path) -> None:
    """Write a figure, whole or not at all.

    Args:
        figure: A figure of matplotlib.
        path: File to write; its suffix says the format (png, svg, pdf).

    Raises:
        SpecError: The suffix is another one.
        FolderError: The file cannot be written.
    """
    style = path.suffix.lstrip(".")
    if style not in get_args(FigureFormat):
        formats = ", ".join(get_args(FigureFormat))
        raise SpecError(f"A figure is one of {formats}, got '{path.name}'.")
    with atomic(path) as temporary:
        figure.savefig(temporary, format=style, dpi=150)
