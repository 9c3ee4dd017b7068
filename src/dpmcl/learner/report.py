"""Errors of a learner on the rows held out of earlier chunks."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from dpmcl.core import keys
from dpmcl.exceptions import needed_for
from dpmcl.learner.answers import error, row_errors
from dpmcl.learner.knowledge import Knowledge
from dpmcl.learner.pool import Examples, Group

if TYPE_CHECKING:
    import pandas

GROUPS = 20
"""Largest number of groups of chunks; above it, two neighbouring groups are merged."""

ROWS = 50
"""Largest number of held-out rows that a group keeps."""


@dataclass(frozen=True)
class Line:
    """Error on one group of chunks.

    Attributes:
        first, last: Numbers of the first and the last chunk, from 0.
        rows: Number of held-out rows that the error is measured on.
        then: Error on these rows just after their chunks were learned.
        now: Error now.
        broken: Conditions of Theorem 1 that were broken while the chunks were learned, such as
            "cost" and "step" (docs/theory.md); None if they were not checked.
    """

    first: int
    last: int
    rows: int
    then: float
    now: float
    broken: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Report:
    """Errors on earlier chunks, measured on the rows held out of each.

    Attributes:
        lines: A line for each group of chunks, in order.
    """

    lines: tuple[Line, ...]

    @property
    def cme(self) -> float:
        """Return the mean of the present errors over groups of chunks (CME)."""
        return _mean([line.now for line in self.lines])

    @property
    def nte(self) -> float:
        """Return the present error on the newest chunk (NTE)."""
        return self.lines[-1].now

    @property
    def forgetting(self) -> float:
        """Return the mean increase of the error on earlier groups since they were learned."""
        return _mean([line.now - line.then for line in self.lines[:-1]])

    def to_pandas(self) -> "pandas.DataFrame":
        """Return the lines as a DataFrame.

        Raises:
            DpmclError: pandas is not installed.
        """
        with needed_for("A DataFrame", "pandas"):
            import pandas

        return pandas.DataFrame([asdict(line) for line in self.lines])

    def __repr__(self) -> str:
        rows = [
            f"{_span(line):>11} {line.rows:6} {line.then:8.3g} {line.now:8.3g}{_verdict(line)}"
            for line in self.lines
        ]
        checked = any(line.broken is not None for line in self.lines)
        head = f"{'chunks':>11} {'rows':>6} {'then':>8} {'now':>8}{'  theory' * checked}"
        tail = f"CME {self.cme:.3g}, NTE {self.nte:.3g}, forgetting {self.forgetting:.3g}"
        return "\n".join([head, *rows, tail])


def report(known: Knowledge) -> Report:
    """Return the errors on earlier chunks, measured on the rows held out of each.

    Args:
        known: Knowledge of the learner.
    """
    return Report(
        tuple(
            Line(
                group.first,
                group.last,
                len(group.x),
                float(group.then.mean()),
                error(known, group.x, group.y),
                group.broken,
            )
            for group in known.groups
        )
    )


def with_group(known: Knowledge, rows: Examples) -> Knowledge:
    """Return the knowledge with a new group: at most 50 of the rows held out of the newest chunk.

    Args:
        known: Knowledge after the chunk.
        rows: The rows held out; there may be none.
    """
    if not len(rows.x):
        return known
    number = known.chunks - 1
    unknown = torch.zeros(len(rows.x), dtype=torch.float64)
    group = _subset(Group(number, number, unknown, rows.x, rows.y, known.broken))
    out = [*known.groups, group._replace(then=row_errors(known, group.x, group.y))]
    if len(out) > GROUPS:
        spans = [b.last - a.first for a, b in pairwise(out[:-1])]
        k = spans.index(min(spans))
        out[k : k + 2] = [_merge(out[k], out[k + 1])]
    return replace(known, groups=tuple(out), held_out=known.held_out + len(rows.x))


def forgetting(before: Knowledge, after: Knowledge) -> float:
    """Return the mean increase of the error on earlier groups while the newest chunk was learned.

    Args:
        before, after: Knowledge before and after the newest chunk.
    """
    groups = [(group.x, group.y) for group in before.groups]
    return _mean([error(after, *rows) - error(before, *rows) for rows in groups])


def _merge(a: Group, b: Group) -> Group:
    """Merge two groups. Each contributes rows in proportion to its number of chunks."""
    n, m = a.last - a.first + 1, b.last - b.first + 1
    share = n / (n + m)
    from_a = min(len(a.x), max(round(ROWS * share), ROWS - len(b.x), 1))
    a, b = _subset(a, from_a), _subset(b, ROWS - from_a)
    broken = None
    if a.broken is not None or b.broken is not None:
        broken = tuple(dict.fromkeys([*(a.broken or ()), *(b.broken or ())]))
    then = torch.cat([a.then, b.then])
    return Group(a.first, b.last, then, torch.cat([a.x, b.x]), torch.cat([a.y, b.y]), broken)


def _subset(group: Group, limit: int = ROWS) -> Group:
    """Return a group with at most `limit` of its rows, drawn at random by a key."""
    if len(group.x) <= limit:
        return group
    key = keys.derive(limit, keys.Purpose.SPLIT, group.first, 1, step=group.last)
    chosen = keys.permutation(key, len(group.x))[:limit].sort().values
    at = chosen.to(group.x.device)
    return group._replace(then=group.then[chosen], x=group.x[at], y=group.y[at])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _verdict(line: Line) -> str:
    """Return the column "theory" of a line; empty if the conditions were not checked."""
    if line.broken is None:
        return ""
    return f"  {', '.join(line.broken)} broke" if line.broken else "  holds"


def _span(line: Line) -> str:
    return str(line.first) if line.first == line.last else f"{line.first}-{line.last}"
