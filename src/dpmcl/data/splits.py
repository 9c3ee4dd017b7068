"""How a task's rows are split into those that train, validate and test."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dpmcl.core import keys
from dpmcl.data.stream import Stream
from dpmcl.exceptions import DataError


class Rows(NamedTuple):
    """One split's rows for every replica, task after task.

    row: int64 (replicas, n) pool rows. task: int64 (replicas, n), the task that each belongs to.
    offset: int64 (replicas, tasks + 1); what arrives with task k is at offset[k] .. offset[k+1]-1.
    """

    row: Tensor
    task: Tensor
    offset: Tensor

    def at_most(self, rows: int) -> "Rows":
        """The first rows of each task, no more than so many."""
        count = self.offset.diff(dim=1).clamp(max=rows)
        place, inside = _places(self.offset, self.row.shape[1])
        rank = torch.arange(self.row.shape[1], device=self.row.device) - self.offset.gather(
            1, place
        )
        return _select(self.row, self.task, inside & (rank < rows), count)


class Splits(NamedTuple):
    """The disjoint rows that train, validate and test."""

    train: Rows
    validation: Rows
    test: Rows

    def named(self, name: str) -> Rows:
        """The split of a name: "train", "validation" or "test"."""
        rows: Rows = getattr(self, name)
        return rows


def split(stream: Stream, seeds: Sequence[int], shares: tuple[float, float, float]) -> Splits:
    """Each task's rows in an order of the seed's own: first train, then validation, then test.

    Every class of a task is split by itself, so that each split has all of the task's classes.
    shares: of the rows, adding up to 1 (60/20/20 in the paper, section 4). Train and test counts
    are rounded to the nearest row, validation takes the rest; none gets less than one row.
    Where the stream blurs its boundaries, training and validation rows move to the neighbours.
    Raises DataError for a task, or a class of one, with fewer than three rows.
    """
    device = stream.row.device
    replicas, n = len(seeds), stream.row.shape[1]
    seed = torch.tensor(seeds, dtype=torch.int64, device=device)
    own, group = _groups(stream)
    count = torch.zeros(len(own), replicas, dtype=torch.int64, device=device).T.contiguous()
    count.scatter_add_(1, group.expand(replicas, n), torch.ones_like(group).expand(replicas, n))
    _check_counts(stream, own, count)
    train = (count * shares[0] + 0.5).floor().long().clamp(min=1)
    test = (count * shares[2] + 0.5).floor().long().clamp(min=1)
    test = torch.minimum(test, (count - 2).clamp(min=0))
    train = torch.minimum(train, (count - test - 1).clamp(min=0))

    key = keys.derive(seed, keys.Purpose.SPLIT)
    if stream.repeats or stream.trajectory is not None:
        # What is one thing has the same place in every task's order, and so the same split.
        one = stream.row if stream.trajectory is None else stream.trajectory[stream.row]
        score = keys.scores(key, int(one.max()) + 1).gather(1, one.expand(replicas, n))
        order = torch.argsort(score, dim=1, stable=True)
    else:
        order = keys.permutation(key, n)
    shuffled = group.expand(replicas, n).gather(1, order)
    by_group = torch.argsort(shuffled, dim=1, stable=True)
    group_of = shuffled.gather(1, by_group)
    rank = torch.arange(n, device=device) - _offsets(count).gather(1, group_of)
    if len(own) > len(stream.tasks):  # back to an order that mixes a task's classes
        rank = torch.empty_like(rank).scatter_(1, by_group, rank)
        by_task = torch.argsort(own[shuffled], dim=1, stable=True)
        rank, group_of = rank.gather(1, by_task), shuffled.gather(1, by_task)
        order = order.gather(1, by_task)
    else:
        order = order.gather(1, by_group)
    row = stream.row.expand(replicas, n).gather(1, order)
    task = own[group_of]

    parts, low = [], torch.zeros_like(count)
    for part in (train, count - train - test, test):
        high = low + part
        inside = (rank >= low.gather(1, group_of)) & (rank < high.gather(1, group_of))
        total = torch.zeros(replicas, len(stream.tasks), dtype=torch.int64, device=device)
        total.scatter_add_(1, own.expand(replicas, len(own)), part)
        parts.append(_select(row, task, inside, total))
        low = high
    train_rows, validation_rows, test_rows = parts
    if stream.blur:
        train_rows, validation_rows = (
            _blurred(rows, stream.blur) for rows in (train_rows, validation_rows)
        )
    return Splits(train_rows, validation_rows, test_rows)


def _groups(stream: Stream) -> tuple[Tensor, Tensor]:
    """The task of each group of rows that is split by itself, and the group of each row.

    A group is a class within a task, or for regression a task: int64 (groups,), in order of task,
    and (1 or replicas, n).
    """
    if stream.kind == "regression":
        number = stream.task
        width = 1
    else:
        width = stream.outputs
        number = stream.task * width + stream.y[stream.row]
    found, group = torch.unique(number, return_inverse=True)
    return found // width, group


def _blurred(rows: Rows, share: float) -> Rows:
    """A share of each task's rows moved: every other one to the task before, the rest to the next.

    The first and the last task have one neighbour, which gets all that moves.
    """
    tasks, n = rows.offset.shape[1] - 1, rows.row.shape[1]
    task, inside = _places(rows.offset, n)
    count = rows.offset.diff(dim=1)
    rank = torch.arange(n, device=task.device) - rows.offset.gather(1, task)
    moving = torch.minimum((count * share + 0.5).floor().long(), (count - 1).clamp(min=0))
    moves = rank < moving.gather(1, task)
    forward = ((rank % 2 == 0) | (task == 0)) & (task < tasks - 1)
    arrival = torch.where(moves, torch.where(forward, task + 1, task - 1), task)
    arrival = torch.where(inside, arrival, tasks)
    order = torch.argsort(arrival, dim=1, stable=True)
    count = torch.zeros(len(task), tasks + 1, dtype=torch.int64, device=task.device)
    count.scatter_add_(1, arrival, torch.ones_like(arrival))
    return Rows(rows.row.gather(1, order), rows.task.gather(1, order), _offsets(count[:, :-1]))


def _places(offset: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Where each of n positions lies: in which task's rows, and whether in any, beyond padding."""
    position = torch.arange(n, device=offset.device).expand(len(offset), n).contiguous()
    place = torch.searchsorted(offset[:, 1:].contiguous(), position, right=True)
    return place.clamp(max=offset.shape[1] - 2), position < offset[:, -1:]


def _select(row: Tensor, task: Tensor, inside: Tensor, count: Tensor) -> Rows:
    """The rows marked by `inside`, in order; padded at the end where replicas have fewer."""
    width = int(count.sum(1).max())
    first = torch.argsort((~inside).to(torch.int8), dim=1, stable=True)[:, :width]
    return Rows(row.gather(1, first), task.gather(1, first), _offsets(count))


def _offsets(count: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(count[:, :1]), count.cumsum(1)], dim=1)


def _check_counts(stream: Stream, own: Tensor, count: Tensor) -> None:
    """own: the task of each group. count: rows of each replica and group."""
    replicas = len(count)
    of_task = torch.zeros(replicas, len(stream.tasks), dtype=torch.int64, device=count.device)
    of_task.scatter_add_(1, own.expand(replicas, len(own)), count)
    empty = (of_task == 0).any(0).nonzero()
    if len(empty):
        k = int(empty[0])
        raise DataError(f"Every task needs rows; task {k} ('{stream.tasks[k]}') has none.")
    short = ((count > 0) & (count < 3)).any(0).nonzero()
    if not len(short):
        return
    group = int(short[0])
    k, rows = int(own[group]), int(count[:, group][count[:, group] > 0].min())
    what = f"task {k} ('{stream.tasks[k]}')"
    if stream.classes:
        mine = (stream.task == k) & (_groups(stream)[1] == group)
        name = stream.classes[int(stream.y[stream.row[mine][0]])]
        what = f"class '{name}' of {what}"
    raise DataError(
        f"Every class of a task needs a row to train, to validate and to test; {what} in "
        f"'{stream.name}' has {rows}, of 3 at least. Give it more rows, or leave it out."
    )
