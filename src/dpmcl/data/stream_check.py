"""Check of the properties that every stream must have, for streams that a user's code makes."""

from typing import Any

import torch

from dpmcl.data.pools import pieces
from dpmcl.data.stream import Stream


def broken_promise(stream: Any, replicas: int) -> str | None:
    """Return the first property that a stream lacks, as a sentence; None if it has all of them.

    Args:
        stream: Object that `StreamSettings.build` returned.
        replicas: Number of replicas for which it was built.
    """
    if not isinstance(stream, Stream):
        return "`build` returns a Stream"
    row, task = stream.row, stream.task
    if not (
        row.shape == task.shape
        and row.dim() == 2
        and len(row) in (1, replicas)
        and bool((task.diff() >= 0).all())
        and torch.equal(task.unique(), torch.arange(len(stream.tasks)))
    ):
        return "its rows come task by task, for all replicas or for each, and no task is empty"
    if not (len(stream.x) == len(stream.y) and bool(((row >= 0) & (row < len(stream.x))).all())):
        return "row numbers are those of the pool, and each row has a target"
    pools = [pool for pool in (stream.x, stream.y) if pool.is_floating_point()]
    blocks = (rows for pool in pools for rows in pieces(pool))
    if not all(bool(rows.isfinite().all()) for rows in blocks):
        return "inputs and targets are finite"
    if stream.kind == "classification" and not (
        not stream.y.is_floating_point()
        and bool(((stream.y >= 0) & (stream.y < stream.outputs)).all())
        and stream.outputs == len(stream.classes)
    ):
        return "labels are numbers of its classes, 0 to outputs - 1, and each class has a name"
    for name in ("following", "trajectory"):
        number = getattr(stream, name)
        if number is not None and not (
            isinstance(number, torch.Tensor)
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
    if stream.kind == "regression" and tuple(stream.y.shape[1:]) != (stream.outputs,):
        return "a target of a regression has as many numbers as the model has outputs"
    return None
