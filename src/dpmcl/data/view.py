"""Views: transformations of the stored inputs, one for each task (domain-incremental streams)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dpmcl.core import keys
from dpmcl.exceptions import DataError


class View(NamedTuple):
    """Transformation of inputs for each task; each new value is a weighted sum of stored values.

    The pool is stored once for all tasks.

    Attributes:
        source: Positions of the terms in the flattened input, int64 (tasks, values, terms).
        weight: Weights of the terms, float32 (tasks, values, terms).
    """

    source: Tensor
    weight: Tensor

    def apply(self, x: Tensor, task: Tensor) -> Tensor:
        """Return inputs as their tasks see them.

        Args:
            x: Stored inputs, float (*task.shape, ...).
            task: Task of each input, int64 of any shape.
        """
        flat = x.flatten(task.dim())
        source, weight = self.source[task], self.weight[task]
        terms = flat.gather(-1, source.flatten(-2)).view(source.shape)
        return (terms * weight.to(x.dtype)).sum(-1).view(x.shape)


def permuted(shape: Sequence[int], tasks: int, seed: int) -> View:
    """Return a fixed permutation of the input's values for each task but the first.

    Args:
        shape: Shape of one input.
        tasks: Number of tasks.
        seed: Seed of the permutations.
    """
    n = math.prod(shape)
    key = keys.derive(seed, keys.Purpose.ORDER, torch.arange(1, tasks))
    permutations = keys.permutation(key, n) if tasks > 1 else torch.empty(0, n, dtype=torch.int64)
    index = torch.cat([torch.arange(n)[None], permutations])[..., None]
    return View(index, torch.ones(index.shape))


def rotated(shape: Sequence[int], degrees: Sequence[float]) -> View:
    """Return a rotation of images about their centre, counter-clockwise, for each task.

    Interpolation is bilinear, and values outside of the image are 0.

    Args:
        shape: Shape of one input, (channels, height, width) or (height, width).
        degrees: Angle of each task.

    Raises:
        DataError: The inputs are not images.
    """
    if len(shape) not in (2, 3):
        raise DataError(
            f"Only images can be rotated, got inputs of shape {tuple(shape)}; "
            "use domain = 'permuted'."
        )
    height, width = shape[-2:]
    angle = torch.tensor(list(degrees), dtype=torch.float64).deg2rad()[:, None, None]
    down = torch.arange(height, dtype=torch.float64)[:, None] - (height - 1) / 2
    right = torch.arange(width, dtype=torch.float64)[None] - (width - 1) / 2
    # The source of each pixel is given by the inverse rotation; rows count downwards.
    row = down * angle.cos() + right * angle.sin() + (height - 1) / 2
    column = right * angle.cos() - down * angle.sin() + (width - 1) / 2
    # Rounded, so that 90 degrees are exact.
    row, column = (t.mul(2**20).round().div(2**20) for t in (row, column))
    top, left = row.floor(), column.floor()
    index, weight = [], []
    for i, j in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
        inside = (i >= 0) & (i < height) & (j >= 0) & (j < width)
        share = (1 - (row - i).abs()) * (1 - (column - j).abs())
        weight.append(torch.where(inside, share, 0.0).flatten(1))
        position = i.clamp(0, height - 1) * width + j.clamp(0, width - 1)
        index.append(position.long().flatten(1))
    source, share = torch.stack(index, -1), torch.stack(weight, -1).to(torch.float32)
    channels = math.prod(shape[:-2])
    offset = torch.arange(channels).repeat_interleave(height * width) * height * width
    return View(source.repeat(1, channels, 1) + offset[:, None], share.repeat(1, channels, 1))
