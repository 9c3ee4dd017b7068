"""Scaling of a table's inputs and targets, fitted on what each replica first trains on."""

from dataclasses import replace

import torch
from torch import Tensor

from dpmcl.splits import Splits
from dpmcl.stream import Scale, Stream


def fitted(stream: Stream, splits: Splits) -> Stream:
    """The stream with the mean and deviation of each replica's first task, training rows alone.

    What is constant there is only shifted. A stream that scales nothing comes back as it is.
    """
    if stream.scaled is None:
        return stream
    offset = splits.train.offset
    rows = [
        splits.train.row[replica, offset[replica, 0] : offset[replica, 1]]
        for replica in range(len(offset))
    ]
    unit = 255 if stream.x.dtype == torch.uint8 else 1  # as `Stream.batch` delivers them
    x_mean, x_deviation = _moments([stream.x[row].to(torch.float64) / unit for row in rows])
    if stream.kind == "regression":
        y_mean, y_deviation = _moments([stream.y[row] for row in rows])
    else:
        y_mean = torch.zeros(len(rows), 1, device=x_mean.device)
        y_deviation = torch.ones_like(y_mean)
    return replace(stream, scale=Scale(x_mean, x_deviation, y_mean, y_deviation))


def _moments(values: list[Tensor]) -> tuple[Tensor, Tensor]:
    wide = [v.to(torch.float64) for v in values]
    mean = torch.stack([v.mean(0) for v in wide])
    deviation = torch.stack([v.std(0, correction=0) for v in wide])
    tiny = deviation <= 1e-9 * mean.abs()
    return mean, torch.where(tiny, torch.ones_like(deviation), deviation)
