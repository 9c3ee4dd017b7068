"""What a learner has kept of old chunks: rows held out as they came, and the error on them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from dpmcl.core import keys
from dpmcl.learner.answers import error
from dpmcl.learner.knowledge import Knowledge
from dpmcl.learner.pool import Examples, Group

if TYPE_CHECKING:
    import pandas

GROUPS = 20
"""Groups of chunks that are told apart; older ones are merged."""

ROWS = 50
"""Rows that are held out of a group."""


@dataclass(frozen=True)
class Line:
    """The error on one group of chunks.

    Attributes:
        first, last: Numbers of the chunks, from 0.
        rows: Rows held out of them.
        then: Error just after they were learned.
        now: Error now.
        broken: Conditions of Theorem 1 that broke while they were learned, as "cost" and "step"
            (docs/theory.md); None if they were not watched.
    """

    first: int
    last: int
    rows: int
    then: float
    now: float
    broken: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Report:
    """Errors on what was learned, from rows that were held out as they came.

    Attributes:
        lines: One for each group of chunks, in order.
    """

    lines: tuple[Line, ...]

    @property
    def cme(self) -> float:
        """Return the error now, mean over groups of chunks (CME)."""
        return _mean([line.now for line in self.lines])

    @property
    def nte(self) -> float:
        """Return the error on the newest chunk (NTE)."""
        return self.lines[-1].now

    @property
    def forgetting(self) -> float:
        """Return by how much the error on older groups has grown since they were learned, mean."""
        return _mean([line.now - line.then for line in self.lines[:-1]])

    def to_pandas(self) -> "pandas.DataFrame":
        """Return the lines as a DataFrame."""
        import pandas

        return pandas.DataFrame([asdict(line) for line in self.lines])

    def __repr__(self) -> str:
        rows = [
            f"{_span(line):>11} {line.rows:6} {line.then:8.3g} {line.now:8.3g}{_verdict(line)}"
            for line in self.lines
        ]
        watched = any(line.broken is not None for line in self.lines)
        head = f"{'chunks':>11} {'rows':>6} {'then':>8} {'now':>8}{'  theory' * watched}"
        tail = f"CME {self.cme:.3g}, NTE {self.nte:.3g}, forgetting {self.forgetting:.3g}"
        return "\n".join([head, *rows, tail])


def report(known: Knowledge) -> Report:
    """Return the errors on what was learned.

    Args:
        known: What the learner knows.
    """
    return Report(
        tuple(
            Line(
                group.first,
                group.last,
                len(group.x),
                group.then,
                error(known, group.x, group.y),
                group.broken,
            )
            for group in known.groups
        )
    )


def with_chunk(known: Knowledge, rows: Examples) -> Knowledge:
    """Return what is known with the rows held out of the newest chunk, of which 50 are kept.

    Args:
        known: What the learner knows after the chunk.
        rows: The rows; there may be none.
    """
    if not len(rows.x):
        return known
    number = known.chunks - 1
    group = _few(Group(number, number, 0.0, rows.x, rows.y, known.broken))
    out = [*known.groups, group._replace(then=error(known, group.x, group.y))]
    if len(out) > GROUPS:
        spans = [b.last - a.first for a, b in pairwise(out[:-1])]
        k = spans.index(min(spans))
        out[k : k + 2] = [_merged(out[k], out[k + 1])]
    return replace(known, groups=tuple(out), held_out=known.held_out + len(rows.x))


def forgotten(before: Knowledge, after: Knowledge) -> float:
    """Return by how much the error on older chunks grew while the newest was learned, mean.

    Args:
        before, after: What the learner knew, and knows.
    """
    rows = [(group.x, group.y) for group in before.groups]
    return _mean([error(after, *each) - error(before, *each) for each in rows])


def _merged(a: Group, b: Group) -> Group:
    """Return two groups as one, whose rows are drawn from both by their numbers of chunks."""
    n, m = a.last - a.first + 1, b.last - b.first + 1
    then = (n * a.then + m * b.then) / (n + m)
    share = n / (n + m)
    from_a = min(len(a.x), max(round(ROWS * share), ROWS - len(b.x), 1))
    a, b = _few(a, from_a), _few(b, ROWS - from_a)
    broken = None
    if a.broken is not None or b.broken is not None:
        broken = tuple(dict.fromkeys([*(a.broken or ()), *(b.broken or ())]))
    return Group(a.first, b.last, then, torch.cat([a.x, b.x]), torch.cat([a.y, b.y]), broken)


def _few(group: Group, most: int = ROWS) -> Group:
    """Return a group with so many of its rows at most, drawn by a key."""
    if len(group.x) <= most:
        return group
    key = keys.derive(most, keys.Purpose.SPLIT, group.first, 1, step=group.last)
    kept = keys.permutation(key, len(group.x))[:most].sort().values.to(group.x.device)
    return group._replace(x=group.x[kept], y=group.y[kept])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _verdict(line: Line) -> str:
    """Return what the monitor found, as the table shows it; nothing if it did not watch."""
    if line.broken is None:
        return ""
    return f"  {', '.join(line.broken)} broke" if line.broken else "  holds"


def _span(line: Line) -> str:
    return str(line.first) if line.first == line.last else f"{line.first}-{line.last}"
