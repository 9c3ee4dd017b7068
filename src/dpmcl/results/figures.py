"""Figures of a study: errors against tasks."""

import io
import itertools
import logging
import re
import textwrap
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import annotated_types as at
import numpy as np

from dpmcl.core.atomic import write_bytes
from dpmcl.core.choices import FigureFormat
from dpmcl.core.errors import Errors
from dpmcl.core.settings import Settings
from dpmcl.exceptions import DpmclError, SpecError, needed_for, printable, shown
from dpmcl.metrics.cme import cme
from dpmcl.metrics.nte import nte
from dpmcl.results.names import displayed
from dpmcl.results.record import Record
from dpmcl.results.store import StreamInfo

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LOG = logging.getLogger("dpmcl")
# Okabe and Ito's palette, which colour-blind readers can distinguish; markers and dashes
# distinguish lines in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
NAMED = 12  # largest number of tasks that are labelled by name
ERROR = {"classification": "error", "regression": "mean squared error"}
"""What an error is, by the kind of a stream."""
PLAIN: dict[str, Any] = {"parse_math": False}
"""Options of a text that contains users' names, in which a dollar sign must not start a formula."""

# Fallback fonts for Chinese, Japanese, Korean and emoji, used if installed.
_FONTS = (
    "Noto Sans CJK SC",
    "Microsoft YaHei",
    "Arial Unicode MS",
    "Noto Emoji",
)
_NARROW = 5.0  # inches; a narrower figure has its panels one above the other
_CHARACTERS = 15  # of a tick label, per inch
_LARGEST = 1e200
_GLYPH = "Glyph (\\d+) "  # how matplotlib's warning of a character that no font has begins
_SMOOTHEST = 1000  # tasks; a wider filter takes much memory and changes no line


@contextmanager
def drawing() -> Iterator[None]:
    """Draw text with fallback fonts for non-Latin scripts. A context manager or a decorator.

    Raises:
        DpmclError: matplotlib is not installed.
    """
    with needed_for("A figure", "dpmcl[plot]"):
        import matplotlib.figure
        from matplotlib.font_manager import fontManager
    installed = {font.name for font in fontManager.ttflist}
    fonts = [font for font in _FONTS if font in installed]
    family = [*matplotlib.rcParams["font.family"], *fonts]
    with matplotlib.rc_context({"font.family": family}):
        yield


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure.

    Args:
        width, height: Size in inches.
    """
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


@dataclass(frozen=True, kw_only=True)
class Look(Settings):
    """Appearance of a figure of errors.

    Attributes:
        smooth: Standard deviation, in tasks, of a Gaussian filter on each line (the paper's Figure
            2 uses 2); 0 for no filter.
        ylim: Lowest and highest error shown; None for the range of the data.
        log: Whether the axis of errors is logarithmic (`set_log_scale`); None means for a
            regression only.
        width: Width in inches. Below 5 the panels are one above the other.
        caption: Text below the figure, such as the settings.

    Raises:
        SpecError: A number is out of range.
    """

    smooth: Annotated[float, at.Ge(0), at.Le(_SMOOTHEST)] = 0.0
    ylim: tuple[float, float] | None = None
    log: bool | None = None
    width: Annotated[float, at.Ge(2), at.Le(40)] = 9.0
    caption: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ylim is not None and self.ylim[0] >= self.ylim[1]:
            raise SpecError(f"ylim must be LOW,HIGH with LOW < HIGH, got {shown(self.ylim)}.")


@drawing()
def curves(records: Mapping[str, Record], stream: StreamInfo, look: Look | None = None) -> "Figure":
    """Return a figure of CME and NTE against tasks: means over seeds, bands of a standard error.

    Args:
        records: Results by method.
        stream: Description of the stream.
        look: Appearance; None for the default.

    Raises:
        DpmclError: There are no results, or matplotlib is not installed.
    """
    look = look or Look()
    if not records:
        raise DpmclError("There are no results to draw yet; `dpmcl run` makes some.")
    side_by_side = look.width >= _NARROW
    figure = new_figure(look.width, 3.6 if side_by_side else 1.7 * look.width)
    axes: Any = figure.subplots(*((1, 2) if side_by_side else (2, 1)), sharey=True)
    panels = ((cme, "CME: error on all tasks seen"), (nte, "NTE: error on the newest task"))
    for ax, (measure, title) in zip(axes, panels, strict=True):
        for name, style in styles(records).items():
            curve(ax, measure, records[name].test, style=style, smooth=look.smooth, label=name)
        ax.set_title(title, fontsize=10)
        _set_axes(ax, stream, look)
    if look.log or (look.log is None and stream.kind == "regression"):
        set_log_scale(axes)
    for ax in axes[:1] if side_by_side else axes:
        ax.set_ylabel(ERROR[stream.kind])
    lines, names = axes[1].get_lines(), [*records]
    columns = 1 if side_by_side else max(1, int(look.width // 1.1))
    loc = "outside right upper" if side_by_side else "outside lower center"
    legend(figure, lines, names, fontsize=9, ncols=min(columns, len(names)), loc=loc)
    figure.suptitle(_title(records, stream, look), fontsize=11 if side_by_side else 8, **PLAIN)
    if look.caption:
        _draw_caption(figure, axes, look)
    return figure


def _draw_caption(figure: "Figure", axes: Any, look: Look) -> None:
    """Draw the caption below the axes; in a narrow figure the legend is below the caption."""
    caption = "\n".join(textwrap.wrap(look.caption, int(look.width * 14)))
    font: dict[str, Any] = {"fontsize": 7, "color": "#57606a", **PLAIN}
    if look.width >= _NARROW:
        figure.supxlabel(caption, **font)
        return
    # A label of the figure would be drawn over the legend.
    below: Any = {"xytext": (0, -4), "textcoords": "offset points", "va": "top", "ha": "center"}
    axes[1].annotate(caption, (0.5, 0), xycoords=axes[1].xaxis.label, **below, **font)


def _title(records: Mapping[str, Record], stream: StreamInfo, look: Look) -> str:
    """Return a title with the stream, the number of replicas, the band and the smoothing."""
    counts = [len(record.test.seeds) for record in records.values()]
    note = f", smoothed over {look.smooth:g} tasks" if look.smooth else ""
    lost = sum(len(record.diverged) for record in records.values())
    diverged = f"{lost} of all {sum(counts)} diverged" if lost else ""
    title = f"{shortened(stream.name, 40)}, {replicas_text(counts, diverged)}{note}"
    return title if look.width >= _NARROW else "\n".join(textwrap.wrap(title, 40))


def styles(names: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    """Return a colour, a marker and dashes for the line of each name; up to 40 lines differ.

    Args:
        names: Names of the lines.
    """
    cycles = zip(*map(itertools.cycle, (COLOURS, MARKERS, DASHES)), strict=False)
    return dict(zip(names, cycles, strict=False))


def curve(
    ax: Any,
    measure: Callable[..., np.ndarray],
    errors: Errors,
    *,
    style: tuple[Any, ...],
    smooth: float,
    label: str,
) -> Any:
    """Draw a metric after each evaluated task: the mean, and a band of one standard error.

    Args:
        ax: Axes of matplotlib.
        measure: The metric.
        errors: Errors on which the metric is computed.
        style: Colour, marker and dashes.
        smooth: Standard deviation, in tasks, of a Gaussian filter; 0 for no filter.
        label: Name of the line.

    Returns:
        The line.

    Raises:
        DpmclError: SciPy is not installed.
    """
    with needed_for("A figure", "dpmcl[plot]"):
        from scipy.ndimage import gaussian_filter1d
    values = np.stack([measure(errors, after=k) for k in range(errors.tasks)], 1)
    evaluated = np.flatnonzero(~np.isnan(values).all(0))
    middle, error = mean_and_error(values[:, evaluated])
    if smooth and len(evaluated) > 1:
        spacing = np.diff(evaluated).mean()  # in tasks; above 1 if not all tasks were evaluated
        middle, error = (gaussian_filter1d(v, smooth / spacing) for v in (middle, error))
    colour, marker, dashes = style
    return line_and_band(ax, evaluated + 1, middle, error, color=colour, linestyle=dashes,
                         marker=marker, markersize=4, markevery=max(1, len(evaluated) // 10),
                         linewidth=1.5, label=label)  # fmt: skip


def line_and_band(
    ax: Any, x: np.ndarray, middle: np.ndarray, error: np.ndarray, **line: Any
) -> Any:
    """Draw a line of means and a band of one standard error, and return the line.

    Values that are not finite are left out, and those beyond 1e200 are clipped, since the length of
    an axis must be finite.

    Args:
        ax: Axes of matplotlib.
        x: Positions (n,).
        middle: Means (n,).
        error: Standard errors (n,).
        line: Options of the line: its color, label and so on.
    """
    with np.errstate(invalid="ignore", over="ignore"):  # infinite errors
        low, high = middle - error, middle + error
    middle, low, high = (
        np.where(np.isfinite(v), v.clip(-_LARGEST, _LARGEST), np.nan) for v in (middle, low, high)
    )
    (drawn,) = ax.plot(x, middle, **line)
    ax.fill_between(x, low, high, color=line["color"], alpha=0.2, linewidth=0)
    return drawn


def _set_axes(ax: Any, stream: StreamInfo, look: Look) -> None:
    """Label the axis of tasks and limit the axis of errors."""
    panel = (look.width - 1.5) / 2 if look.width >= _NARROW else look.width - 0.5
    named = name_tasks(ax, stream, first=1, width=panel)
    ax.set_xlabel("after task" if named else "tasks seen")
    set_frame(ax)
    if look.ylim is not None:
        ax.set_ylim(*look.ylim)


def set_frame(ax: Any, grid: Literal["both", "y"] = "both") -> None:
    """Draw faint grid lines, and no frame at the top and on the right.

    Args:
        ax: Axes of matplotlib.
        grid: Axes that have grid lines.
    """
    ax.grid(axis=grid, alpha=0.25, linewidth=0.5)
    ax.spines[["top", "right"]].set_visible(False)


def set_log_scale(axes: Iterable[Any]) -> None:
    """Set a logarithmic scale of errors, linear from 0 to the smallest positive one if any is 0.

    The scale stays linear if no error is positive.

    Args:
        axes: Axes of matplotlib with one scale, with their lines.
    """
    axes = list(axes)
    heights = np.concatenate([line.get_ydata() for ax in axes for line in ax.get_lines()])
    positive, has_zeros = heights[heights > 0], bool((heights == 0).any())
    if not len(positive):
        return  # a logarithmic axis shows none of them
    for ax in axes:
        if has_zeros:
            ax.set_yscale("symlog", linthresh=positive.min(), linscale=0.3)
            # Errors are at least 0, and lines at 0 stay visible.
            ax.set_ylim(bottom=max(-0.3 * positive.min(), ax.get_ylim()[0]))
        else:
            ax.set_yscale("log")


def name_tasks(ax: Any, stream: StreamInfo, first: float, width: float = 4.0) -> bool:
    """Label the tasks under an axis: by name if there are few, by number otherwise.

    Args:
        ax: Axes of matplotlib.
        stream: Description of the stream.
        first: Position of the first task on the axis; each further task is 1 to the right.
        width: Width of the axis in inches. Names that do not fit side by side are rotated.

    Returns:
        Whether the tasks are labelled by name.
    """
    from matplotlib.ticker import MaxNLocator

    named = len(stream.tasks) <= NAMED and bool(stream.classes)
    if named:
        names = [shortened(name, 18) for name in stream.tasks]
        places = first + np.arange(len(names))
        fits = max(map(len, names)) + 2 <= width * _CHARACTERS / len(names)
        rotation: dict[str, Any] = {} if fits else {"rotation": 30, "ha": "right"}
        ax.set_xticks(places, names, fontsize=8, **rotation, **PLAIN)
    else:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return named


def legend(ax: Any, lines: Sequence[Any], names: Sequence[str], **options: Any) -> None:
    """Draw a legend with users' names, which may begin with an underscore.

    Args:
        ax: Axes or figure of matplotlib.
        lines: The lines.
        names: Name of each line.
        options: Passed to the method `legend` of `ax`.
    """
    # Names are set afterwards, since matplotlib omits those that begin with an underscore.
    drawn = ax.legend(lines, [str(k) for k in range(len(names))], frameon=False, **options)
    for text, name in zip(drawn.get_texts(), names, strict=True):
        text.set(text=shortened(name, 60), **PLAIN)


def mean_and_error(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard error over replicas, (n,) each; NaN where all replicas are NaN.

    Args:
        values: Array (replicas, n); NaN is ignored.
    """
    n = (~np.isnan(values)).sum(0)
    with np.errstate(invalid="ignore", over="ignore"):  # infinite errors
        middle = np.where(n > 0, np.nansum(values, 0) / np.maximum(n, 1), np.nan)
        squares = np.nansum((values - middle) ** 2, 0)
    error = np.sqrt(squares / np.maximum(n - 1, 1) / np.maximum(n, 1))
    return middle, np.where(n > 0, error, np.nan)


def replicas_text(counts: Collection[int], lost: str = "", mark: str = "band") -> str:
    """Return the number of replicas, and what bands or bars show if a mean has several replicas.

    Args:
        counts: Number of replicas of each mean; the text has their range.
        lost: What became of some of the replicas; empty if there is nothing to say.
        mark: "band" or "bars".
    """
    low, high = min(counts), max(counts)
    count = str(low) if low == high else f"{low} to {high}"
    replicas = f"{count} replica{'' if count == '1' else 's'}"
    error = f"{mark}: one standard error" if high > 1 else ""
    return ", ".join(filter(None, (replicas, lost, error)))


def shortened(name: str, most: int) -> str:
    """Return a name made printable and truncated, for a figure.

    Args:
        name: Any text.
        most: Largest number of characters, including the dots of a truncated name.
    """
    text = displayed(name)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def save(figure: "Figure", path: Path) -> None:
    """Write a figure to a file atomically.

    Args:
        figure: A figure of matplotlib.
        path: File to write. Its suffix is the format: png, svg or pdf.

    Raises:
        SpecError: The suffix is none of these.
        FolderError: The file cannot be written.
    """
    suffix = path.suffix.lstrip(".")
    if suffix not in get_args(FigureFormat):
        formats = ", ".join(get_args(FigureFormat))
        raise SpecError(f"A figure is one of {formats}, got '{path.name}'.")
    content = io.BytesIO()  # matplotlib's own files raise errors of many types on a full disk
    write(figure, content, format=suffix, dpi=150)
    write_bytes(path, content.getvalue())


def write(figure: "Figure", file: Any, **options: Any) -> None:
    """Write a figure, and log in one line which characters no font has; they are drawn as boxes.

    Args:
        figure: A figure of matplotlib.
        file: Path or open file.
        options: Passed to the method `savefig` of the figure.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", _GLYPH)
        figure.savefig(file, **options)
    missing: dict[str, None] = {}
    for warning in caught:
        if match := re.match(_GLYPH, str(warning.message)):
            missing[chr(int(match[1]))] = None
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    if missing:
        _LOG.warning(
            "No font of matplotlib has %s, so a figure shows boxes for them; install one that has, "
            "such as %s.",
            printable(" ".join(missing)),
            _FONTS[0],
        )
