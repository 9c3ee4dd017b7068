"""Splits of each task's rows into training, validation and test rows."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dpmcl.core import keys
from dpmcl.data.stream import Stream
from dpmcl.exceptions import DataError


class Rows(NamedTuple):
    """Rows of one split for every replica, in order of the task with which they arrive.

    Attributes:
        row: Pool rows, int64 (replicas, n).
        task: Task that each row belongs to, int64 (replicas, n).
        offset: Position of the first row that arrives with each task, and the end of the last
            task's rows, int64 (replicas, tasks + 1). Rows of task k are at offset[k] to
            offset[k+1]-1.
    """

    row: Tensor
    task: Tensor
    offset: Tensor

    def arrivals(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the task with which each position arrives, its rank there, and a mask of rows.

        Returns:
            Tasks, int64; ranks, int64; and a mask, False for padding, bool; (replicas, n) each.
        """
        offset, n = self.offset, self.row.shape[1]
        position = torch.arange(n, device=offset.device).expand(len(offset), n).contiguous()
        task = torch.searchsorted(offset[:, 1:].contiguous(), position, right=True)
        task = task.clamp(max=offset.shape[1] - 2)
        return task, position - offset.gather(1, task), position < offset[:, -1:]

    def at_most(self, rows: int) -> "Rows":
        """Return the first rows of each task.

        Args:
            rows: Largest number of rows to keep in each task.
        """
        return self.where(self.arrivals()[1] < rows)

    def where(self, chosen: Tensor) -> "Rows":
        """Return some of the rows, in order. Replicas with fewer rows are padded at the end.

        Args:
            chosen: Mask of the rows to keep, bool (replicas, n).
        """
        task, _, inside = self.arrivals()
        chosen = chosen & inside
        count = _counts(task, self.offset.shape[1] - 1, chosen.long())
        first = torch.argsort((~chosen).to(torch.int8), dim=1, stable=True)
        first = first[:, : int(count.sum(1).max())]
        return Rows(self.row.gather(1, first), self.task.gather(1, first), _offsets(count))


class Splits(NamedTuple):
    """Disjoint training, validation and test rows.

    Attributes:
        train: Training rows of the tasks.
        validation: Validation rows of the tasks.
        test: Test rows of the tasks.
        background: Rows of the classes that are in no task, with offsets of classes instead of
            tasks; None if there are none.
    """

    train: Rows
    validation: Rows
    test: Rows
    background: Rows | None = None

    def named(self, name: str) -> Rows:
        """Return one of the splits.

        Args:
            name: "train", "validation" or "test".
        """
        rows: Rows = getattr(self, name)
        return rows


def split(
    stream: Stream,
    seeds: Sequence[int],
    shares: tuple[float, float, float],
    held_out: float | None = None,
) -> Splits:
    """Split each task's rows at random into training, validation and test rows.

    Each class of a task is split separately, so every split has all classes of the task. The counts
    of training and test rows are rounded to the nearest integer, and validation gets the rest; each
    split gets at least one row. A stream with trajectories is split by trajectories instead of
    rows. If the stream has blurred boundaries, some training and validation rows then move to the
    neighbouring tasks.

    Args:
        stream: Tasks over a pool of rows.
        seeds: Seed of each replica.
        shares: Shares of training, validation and test rows, which add up to 1 (60/20/20 in the
            paper, section 4).
        held_out: Share of each task's training rows, or trajectories, that become the test rows
            instead, rounded up to at least one. None for the test rows of `shares`.

    Returns:
        The splits of all replicas.

    Raises:
        DataError: A task, or a class of a task, has too few rows (trajectories), a row or a
            trajectory would be in two splits, or a background class is in a task.
    """
    train, validation, test = _parts(stream, seeds, shares)
    if held_out is not None:
        train, test = _held_out(train, held_out, stream.trajectory)
    if stream.repeats or stream.trajectory is not None:
        _check_disjoint(stream, (train, validation, test))
    if stream.blur:  # after the split, so that no row is learned in one task and tested in another
        train, validation = (_blurred(rows, stream.blur) for rows in (train, validation))
    return Splits(train, validation, test, _background(stream, len(seeds)))


def _parts(
    stream: Stream, seeds: Sequence[int], shares: tuple[float, float, float]
) -> tuple[Rows, Rows, Rows]:
    """Return the training, validation and test rows, each split in order of the task."""
    device = stream.row.device
    replicas, n = len(seeds), stream.row.shape[1]
    seed = torch.tensor(seeds, dtype=torch.int64, device=device)
    task_of, group = _groups(stream)
    group = group.expand(replicas, n)
    key = keys.derive(seed, keys.Purpose.SPLIT)
    if stream.repeats or stream.trajectory is not None:
        # One score for a row or a trajectory puts it in the same split in every task.
        point = stream.row
        if stream.trajectory is not None:  # counted from 0, since any numbers name trajectories
            point = stream.trajectory.unique(return_inverse=True)[1][stream.row]
        point = point.expand(replicas, n)
        score = keys.scores(key, int(point.max()) + 1).gather(1, point)
        order = torch.argsort(score, dim=1, stable=True)
        unit = point.gather(1, order)
    else:
        order = unit = keys.permutation(key, n)
    shuffled = group.gather(1, order)
    by_group = torch.argsort(shuffled, dim=1, stable=True)
    sorted_group = shuffled.gather(1, by_group)
    rank, count = _ranks(sorted_group, unit.gather(1, by_group), len(task_of))
    _check_counts(stream, task_of, count)
    train = (count * shares[0] + 0.5).floor().long().clamp(min=1)
    test = (count * shares[2] + 0.5).floor().long().clamp(min=1)
    test = torch.minimum(test, (count - 2).clamp(min=0))
    train = torch.minimum(train, (count - test - 1).clamp(min=0))
    by_task = torch.argsort(task_of[shuffled], dim=1, stable=True)  # with a task's classes mixed
    rank = torch.empty_like(rank).scatter_(1, by_group, rank).gather(1, by_task)
    group_of = shuffled.gather(1, by_task)
    row = stream.row.expand(replicas, n).gather(1, order.gather(1, by_task))
    task = task_of[group_of]
    every = Rows(row, task, _offsets(_counts(task, len(stream.tasks))))
    begins = [edge.gather(1, group_of) for edge in (train, count - test)]
    part = (rank >= begins[0]).long() + (rank >= begins[1])
    return every.where(part == 0), every.where(part == 1), every.where(part == 2)


def _held_out(train: Rows, share: float, trajectory: Tensor | None) -> tuple[Rows, Rows]:
    """Return the training rows that are left, and those that are held out.

    Raises DataError if a task has fewer than two training rows, or trajectories.
    """
    task, rank, inside = train.arrivals()
    count = train.offset.diff(dim=1)
    if trajectory is not None:
        tasks = count.shape[1]
        padded = torch.where(inside, task, tasks)  # the padding is a task of its own
        rank, count = _ranks(padded, trajectory[train.row], tasks + 1)
        count = count[:, :tasks]
    if bool((count < 2).any()):
        raise DataError(
            "Every task needs two training rows, or trajectories, one of which is held out; one "
            "has fewer. Give it more, or leave it out."
        )
    train_count = torch.minimum((count * (1 - share)).floor().long().clamp(min=1), count - 1)
    first = rank < train_count.gather(1, task)
    return train.where(first), train.where(~first)


def _background(stream: Stream, replicas: int) -> Rows | None:
    """Return the rows of the background classes, sorted by class, the same for all replicas."""
    row = stream.background
    if row is None:
        return None
    if bool(torch.isin(stream.y[row], stream.y[stream.row]).any()):
        raise DataError(
            "Background classes are in no task, and the class of a row of Stream.background is in "
            "one; take the rows of other classes."
        )
    _, count = stream.y[row].unique_consecutive(return_counts=True)
    rows = row.expand(replicas, len(row))
    return Rows(rows, torch.zeros_like(rows), _offsets(count.expand(replicas, len(count))))


def _groups(stream: Stream) -> tuple[Tensor, Tensor]:
    """Return the task of each group of rows that is split separately, and the group of each row.

    A group is a class within a task, or for regression a task. Returns int64 (groups,), in order of
    task, and int64 (1 or replicas, n).
    """
    width = stream.outputs if stream.kind == "classification" else 1
    number = stream.task * width
    if stream.kind == "classification":
        number = number + stream.y[stream.row]
    distinct, group = torch.unique(number, return_inverse=True)
    return distinct // width, group


def _ranks(group: Tensor, unit: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Return the rank of each unit in its group, and the number of units of each group.

    group, unit: Sorted by group; equal units of a group stand together. (replicas, n).
    Returns int64 (replicas, n) and (replicas, groups).
    """
    begins = torch.ones_like(group)
    begins[:, 1:] = (group.diff(dim=1) != 0) | (unit.diff(dim=1) != 0)
    count = _counts(group, groups, begins)
    return begins.cumsum(1) - 1 - _offsets(count).gather(1, group), count


def _counts(index: Tensor, size: int, weight: Tensor | None = None) -> Tensor:
    """Return the count of each index below `size`, or the sum of its weights: (replicas, size)."""
    weight = torch.ones_like(index) if weight is None else weight
    out = torch.zeros(len(weight), size, dtype=torch.int64, device=weight.device)
    return out.scatter_add_(1, index.expand(weight.shape), weight)


def _blurred(rows: Rows, share: float) -> Rows:
    """Move a share of each task's rows to its neighbours, alternately to the next and the previous.

    The first and the last task have one neighbour, which gets all rows that move.
    """
    tasks = rows.offset.shape[1] - 1
    task, rank, inside = rows.arrivals()
    count = rows.offset.diff(dim=1)
    moving = torch.minimum((count * share + 0.5).floor().long(), (count - 1).clamp(min=0))
    moves = rank < moving.gather(1, task)
    forward = ((rank % 2 == 0) | (task == 0)) & (task < tasks - 1)
    arrival = torch.where(moves, torch.where(forward, task + 1, task - 1), task)
    arrival = torch.where(inside, arrival, tasks)
    order = torch.argsort(arrival, dim=1, stable=True)
    offset = _offsets(_counts(arrival, tasks + 1)[:, :-1])
    return Rows(rows.row.gather(1, order), rows.task.gather(1, order), offset)


def _offsets(count: Tensor) -> Tensor:
    """Return the position of the first row of each task, and the end of the last task's rows."""
    return torch.cat([torch.zeros_like(count[:, :1]), count.cumsum(1)], dim=1)


def _check_disjoint(stream: Stream, parts: Sequence[Rows]) -> None:
    """Raise DataError if a row, or a trajectory, is in two splits of a replica."""
    what, many = ("row", "rows") if stream.trajectory is None else ("trajectory", "trajectories")
    for replica in range(len(parts[0].row)):
        rows = [part.row[replica, : part.offset[replica, -1]] for part in parts]
        if stream.trajectory is not None:
            rows = [stream.trajectory[row] for row in rows]
        number, splits = torch.cat([row.unique() for row in rows]).unique(return_counts=True)
        if (splits > 1).any():
            raise DataError(
                f"A {what} must be in the same split in all its tasks; {what} "
                f"{int(number[splits > 1][0])} of '{stream.name}' is in tasks with different "
                f"{many}, and cannot be. Give all its tasks the same {many}."
            )


def _check_counts(stream: Stream, task_of: Tensor, count: Tensor) -> None:
    """Raise DataError for a task without rows, or a group with fewer than three.

    count: Number of rows, or of trajectories if there are any, int64 (replicas, groups).
    """
    empty = (_counts(task_of, len(stream.tasks), count) == 0).any(0).nonzero()
    if len(empty):
        k = int(empty[0])
        raise DataError(f"Every task needs rows; task {k} ('{stream.tasks[k]}') has none.")
    short = ((count > 0) & (count < 3)).any(0).nonzero()
    if not len(short):
        return
    group = int(short[0])
    k, rows = int(task_of[group]), int(count[:, group][count[:, group] > 0].min())
    what = f"task {k} ('{stream.tasks[k]}')"
    if stream.classes:
        name = stream.classes[int(stream.y[stream.row[_groups(stream)[1] == group][0]])]
        what = f"class '{name}' of {what}"
    one, many = ("row", "rows") if stream.trajectory is None else ("trajectory", "trajectories")
    raise DataError(
        f"Every class of a task needs a {one} to train, to validate and to test; {what} in "
        f"'{stream.name}' has {rows}, of 3 at least. Give it more {many}, or leave it out."
    )
