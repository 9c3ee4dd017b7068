"""The table of a study: one row a method, means and standard errors over seeds."""

import csv
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from rich.cells import cell_len

from dpmcl import plugins
from dpmcl.core.errors import Errors
from dpmcl.exceptions import SpecError, printable, reason, shown
from dpmcl.metrics.accuracy import accuracy
from dpmcl.metrics.cme import cme
from dpmcl.metrics.cme_micro import cme_micro
from dpmcl.metrics.forgetting import forgetting
from dpmcl.metrics.nte import nte
from dpmcl.metrics.nte_path import nte_path
from dpmcl.results.names import displayed
from dpmcl.results.record import Record
from dpmcl.results.store import StreamInfo

Format = Literal["text", "json", "csv", "markdown", "latex"]
Row = dict[str, Any]

_NAMES = ("stream", "method", "name")
# An underscore or a colon within a word marks nothing.
_MARKDOWN = re.compile(r"[\\`*\[\]<>|~&$#@]|(?<![^\W_])_|_(?![^\W_])|:(?=[\w+-]+:)")
_LATEX = str.maketrans(
    {c: f"\\{c}" for c in "{}$&#_%"}
    | {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "`": r"\textasciigrave{}"}
)


def mean(values: np.ndarray) -> float | None:
    """The mean over the replicas that have a value (others diverged); None where none has."""
    known = values[~np.isnan(values)]
    return _number(known.mean()) if len(known) else None


def standard_error(values: np.ndarray) -> float | None:
    """The standard error of the mean; None for one replica.

    The standard deviation has ddof 1; section 4 of the paper gives sigma / sqrt(50) and no ddof.
    """
    known = values[~np.isnan(values)]
    return _number(known.std(ddof=1) / math.sqrt(len(known))) if len(known) > 1 else None


def rows(
    records: Mapping[str, Record], stream: StreamInfo, metrics: Sequence[str] = ()
) -> list[Row]:
    """One row a method; means and standard errors are over the replicas that did not diverge.

    metrics: names of further metrics to add, each as NAME_mean and NAME_se. Errors are 1 - accuracy
    for classification (accuracy is None for regression), mean squared errors for regression. All
    are macro means over tasks but cme_micro, the mean over test rows, in which large tasks weigh
    more. Work is per replica, the mean where replicas differ.
    """
    out = []
    for name, record in records.items():
        errors = record.test
        work = [record.work[seed] for seed in errors.seeds if seed in record.work]
        row: Row = {
            "stream": stream.name,
            "method": name,
            "replicas": len(errors.seeds),
            "cme_mean": mean(cme(errors)),
            "cme_se": standard_error(cme(errors)),
            "cme_micro_mean": mean(cme_micro(errors)),
            "cme_micro_se": standard_error(cme_micro(errors)),
            "nte_mean": mean(nte(errors)),
            "nte_se": standard_error(nte(errors)),
            "nte_path_mean": mean(nte_path(errors)),
            "accuracy_mean": mean(accuracy(errors)) if stream.kind == "classification" else None,
            "forgetting_mean": mean(forgetting(errors)),
            "gradient_evaluations": _whole([w.gradient_evaluations for w in work]),
            "rows_backpropagated": _whole([w.rows_backpropagated for w in work]),
            "diverged": len(record.diverged),
            "diverged_seeds": " ".join(map(str, sorted(record.diverged))),
        }
        for metric in metrics:
            values = _measured(metric, errors)
            row[f"{metric}_mean"], row[f"{metric}_se"] = mean(values), standard_error(values)
        out.append(row)
    return out


def _measured(metric: str, errors: Errors) -> np.ndarray:
    """A metric's values, one a replica. Raises SpecError for a metric that gives none."""
    measure = plugins.find("metric", metric)
    try:
        values = np.asarray(measure(errors), dtype=np.float64)
        if values.shape != (len(errors.seeds),):
            raise ValueError(f"it has the shape {values.shape}")
    except Exception as error:
        raise SpecError(
            f"metric '{metric}' must make a number a replica of Errors, and fails: {reason(error)}."
        ) from None
    return values


def rows_by_task(records: Mapping[str, Record], stream: StreamInfo) -> list[Row]:
    """One row a method and task: its error just after it was learned, and after the last task."""
    out = []
    for name, record in records.items():
        errors = record.test
        for task, title in enumerate(stream.tasks):
            row: Row = {
                "stream": stream.name,
                "method": name,
                "task": task,
                "name": title,
                "replicas": len(errors.seeds),
                "diverged": len(record.diverged),
            }
            for when, after in (("new", task), ("last", errors.tasks - 1)):
                values = errors.after[:, after, task]
                row[f"{when}_mean"] = mean(values)
                row[f"{when}_se"] = standard_error(values)
            out.append(row)
    return out


def render(rows: Sequence[Row], style: Format) -> str:
    """The rows in a format.

    json, csv: every digit, and names exactly as they are. The others: three decimals, and names
    made printable and escaped for the format.
    """
    if not (isinstance(style, str) and style in get_args(Format)):
        raise SpecError(f"A table is one of {', '.join(get_args(Format))}, got {shown(style)}.")
    if style == "json":
        return json.dumps(list(rows), indent=1, allow_nan=False)
    if style == "csv":
        keys = list(rows[0]) if rows else []
        return "\n".join(map(_csv, [keys, *([row[key] for key in keys] for row in rows)]))
    rows = [{k: displayed(v) if k in _NAMES else v for k, v in row.items()} for row in rows]
    header, body = _task_cells(rows) if rows and "task" in rows[0] else _cells(rows)
    header = [printable(name) for name in header]
    left = _left(header)
    if style == "markdown":
        rule = [*["---"] * left, *["--:"] * (len(header) - left)]
        header, *body = ([_markdown(cell) for cell in line] for line in (header, *body))
        return "\n".join("| " + " | ".join(line) + " |" for line in [header, rule, *body])
    if style == "latex":
        lines = [_latex_line(line) for line in [header, *body]]
        columns = "l" * left + "r" * (len(header) - left)
        top = [rf"\begin{{tabular}}{{{columns}}}", r"\hline", lines[0], r"\hline"]
        return "\n".join([*top, *lines[1:], r"\hline", r"\end{tabular}"])
    return "\n".join([_text(header, body), *_footer(rows)])


def _footer(rows: Sequence[Row]) -> list[str]:
    """Return the lines under a table: what its numbers do not say by themselves."""
    lost = [
        f"{row['method']} on {row['stream']}: seed{'s' * (row['diverged'] > 1)} "
        f"{row['diverged_seeds'].replace(' ', ', ')} diverged; its means are over the survivors, "
        f"{row['replicas'] - row['diverged']} of {row['replicas']} replicas."
        for row in rows
        if row.get("diverged_seeds")
    ]
    more = [
        f"{row['method']} on {row['stream']}: trains on validation rows too, which methods without "
        "this line never see."
        for row in rows
        if row.get("trains_on_validation")
    ]
    return lost + list(dict.fromkeys(more))


def _left(header: Sequence[str]) -> int:
    """How many columns are words; the rest are numbers."""
    return 3 if header[2] == "task" else 2


def _task_cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    header = ["stream", "method", "task", "replicas", "error when new", "error at last"]
    body = [
        [
            row["stream"],
            row["method"],
            f"{row['task']}: {row['name']}",
            _replicas(row),
            _pair(row["new_mean"], row["new_se"]),
            _pair(row["last_mean"], row["last_se"]),
        ]
        for row in rows
    ]
    return header, body


def _cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    micro = not all(_alike(row["cme_mean"], row["cme_micro_mean"]) for row in rows)
    means = ["CME (macro)", "CME (micro)"] if micro else ["CME"]
    header = ["stream", "method", "replicas", *means, "NTE", "NTE path", "accuracy", "forgetting"]
    known = ("cme", "cme_micro", "nte")
    extra = [
        key.removesuffix("_se")
        for key in (rows[0] if rows else {})
        if key.endswith("_se") and key.removesuffix("_se") not in known
    ]
    body = [
        [
            row["stream"],
            row["method"],
            _replicas(row),
            _pair(row["cme_mean"], row["cme_se"]),
            *[_pair(row["cme_micro_mean"], row["cme_micro_se"])] * micro,
            _pair(row["nte_mean"], row["nte_se"]),
            _decimal(row["nte_path_mean"]),
            _decimal(row["accuracy_mean"]),
            _decimal(row["forgetting_mean"]),
            *(_pair(row[f"{name}_mean"], row[f"{name}_se"]) for name in extra),
            _count(row["gradient_evaluations"]),
            _count(row["rows_backpropagated"]),
        ]
        for row in rows
    ]
    return [*header, *extra, "gradients", "rows"], body


def _replicas(row: Row) -> str:
    return f"{row['replicas']}" + f", {row['diverged']} diverged" * bool(row["diverged"])


def _text(header: list[str], body: list[list[str]]) -> str:
    words = _left(header)
    widths = [max(map(cell_len, column)) for column in zip(header, *body, strict=True)]

    def line(cells: Sequence[str]) -> str:
        blanks = [" " * (w - cell_len(c)) for c, w in zip(cells, widths, strict=True)]
        left = [c + blank for c, blank in zip(cells[:words], blanks[:words], strict=True)]
        right = [blank + c for c, blank in zip(cells[words:], blanks[words:], strict=True)]
        return "  ".join([*left, *right]).rstrip()

    rule = "  ".join("-" * w for w in widths)
    return "\n".join([line(header), rule, *map(line, body)])


def _csv(cells: Sequence[Any]) -> str:
    """A line of CSV, without its end: only beside "\\r\\n" does the writer quote both of them."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerow(cells)
    return out.getvalue().removesuffix("\r\n")


def _markdown(cell: str) -> str:
    return _MARKDOWN.sub(r"\\\g<0>", cell)


def _latex_line(cells: Sequence[str]) -> str:
    line = " & ".join(cell.translate(_LATEX) for cell in cells) + r" \\"
    line = re.sub("-(?=-)", r"-\\/", line)  # else two hyphens are a dash
    # After the \\ of the line before, these two would be its argument.
    return "{}" + line if line.startswith(("[", "*")) else line


def _pair(value: float | None, error: float | None) -> str:
    return _decimal(value) + (f" ({_decimal(error)})" if error is not None else "")


def _alike(first: float | None, second: float | None) -> bool:
    """Return True if two means are one number, to rounding."""
    if first is None or second is None:
        return first is second
    return math.isclose(first, second, rel_tol=1e-9, abs_tol=1e-12)


def _decimal(value: float | None) -> str:
    """Three decimals, or two digits and an exponent where three decimals would say nothing."""
    if value is None:
        return "-"
    return f"{value:.3f}" if value == 0 or 5e-4 <= abs(value) < 1e4 else f"{value:.1e}"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _number(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def _whole(values: Sequence[int]) -> int | None:
    return round(sum(values) / len(values)) if values else None
