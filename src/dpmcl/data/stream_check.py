"""Check of the properties that every stream must have, for streams that a user's code makes."""

from collections.abc import Callable
from typing import Any, get_args

import torch
from torch import Tensor

from dpmcl.core.model import Kind
from dpmcl.data.pools import pieces
from dpmcl.data.stream import Stream


def broken_promise(
    stream: Any, seeds: tuple[int, ...], build: Callable[[tuple[int, ...]], Stream]
) -> str | None:
    """Return the first property that a stream lacks, as a sentence; None if it has all of them.

    Args:
        stream: Object that `StreamSettings.build` returned.
        seeds: Seeds for which it was built.
        build: Builds the stream for other seeds. Seeds are divided into jobs, so a seed must have
            the same rows alone or in a group; this is tried with the last one.
    """
    if not isinstance(stream, Stream):
        return "`build` returns a Stream"
    if broken := _broken_type(stream):
        return broken
    row, task = stream.row, stream.task
    if not (
        row.shape == task.shape
        and row.dim() == 2
        and len(row) in (1, len(seeds))
        and bool((task.diff() >= 0).all())
        and torch.equal(task.unique(), torch.arange(len(stream.tasks)))
    ):
        return "its rows come task by task, for all replicas or for each, and no task is empty"
    if not (len(stream.x) == len(stream.y) and bool(((row >= 0) & (row < len(stream.x))).all())):
        return "row numbers are those of the pool, and each row has a target"
    points = stream.trajectory is not None or stream.repeats  # which are split as wholes
    if not points and not bool((row.sort(dim=1).values.diff(dim=1) > 0).all()):
        return (
            "a row is in one task, once, or it could be trained on and tested; set `repeats` if it "
            "is in several, which puts it in the same split in all of them"
        )
    pools = [pool for pool in (stream.x, stream.y) if pool.is_floating_point()]
    blocks = (rows for pool in pools for rows in pieces(pool))
    if not all(bool(rows.isfinite().all()) for rows in blocks):
        return "inputs and targets are finite"
    if stream.kind == "classification" and not (
        (stream.y.dtype, stream.y.dim()) == (torch.int64, 1)
        and bool(((stream.y >= 0) & (stream.y < stream.outputs)).all())
        and stream.outputs == len(stream.classes)
    ):
        return (
            "labels are numbers of its classes, int64 (rows,), from 0 to outputs - 1, and each "
            "class has a name"
        )
    if broken := _broken_trajectory(stream):
        return broken
    if stream.kind == "regression" and tuple(stream.y.shape[1:]) != (stream.outputs,):
        return "a target of a regression has as many numbers as the model has outputs"
    last = len(seeds) - 1
    if last and not stream.same_rows(last, build(seeds[last:])):
        return (
            "a seed has the same rows beside others as alone, which fails for seed "
            f"{seeds[last]}; draw each replica's rows from a generator of its own seed"
        )
    return None


def _broken_type(stream: Stream) -> str | None:
    """Return the first property that the types of a stream's fields lack, as a sentence."""
    if stream.kind not in get_args(Kind):
        return f"its `kind` is {' or '.join(get_args(Kind))}"
    for name in ("x", "y", "row", "task"):
        values = getattr(stream, name)
        if not isinstance(values, Tensor):
            return f"`{name}` is a tensor"
        if values.is_complex():
            return f"`{name}` has real numbers"
        if name in ("row", "task") and values.dtype != torch.int64:
            return f"`{name}` is int64"
    if stream.x.dim() < 2:
        return "inputs have a dimension beside the rows"
    return None


def _broken_trajectory(stream: Stream) -> str | None:
    """Return the first property that a stream's trajectories lack, as a sentence."""
    for name in ("following", "trajectory"):
        number = getattr(stream, name)
        if number is not None and not (
            isinstance(number, Tensor)
            and number.dtype == torch.int64
            and number.shape == stream.x.shape[:1]
            and bool((number >= 0).all())
        ):
            return f"`{name}` has a number for each row of the pool, int64 and at least 0"
    follows, trajectory = stream.following, stream.trajectory
    if follows is not None and not (
        trajectory is not None
        and bool((follows < len(stream.x)).all())
        and torch.equal(trajectory[follows], trajectory)
    ):
        return (
            "`following` leads to a row of the same `trajectory`, so that no training row moves to "
            "a test row"
        )
    return None
