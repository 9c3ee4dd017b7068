"""Random augmentations of training images, different for each row and determined by a key."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dpmcl import plugins
from dpmcl.core import keys
from dpmcl.core.settings import Positive, Settings, UnitInterval
from dpmcl.exceptions import unknown

_LANES = 1 << 21  # first lane of an update's key for augmentations; dropout has the lanes below


class Augmentation(Settings, ABC):
    """Base class of random augmentations of images."""

    @abstractmethod
    def apply(self, x: Tensor, key: Tensor) -> Tensor:
        """Return augmented images, with independent draws for each row.

        Args:
            x: Images (n, channels, height, width).
            key: Random key, int64 (2,).
        """


@dataclass(frozen=True, kw_only=True)
class Shift(Augmentation):
    """Random translation by up to `pixels` in each direction, filling with 0.

    Equivalent to padding by `pixels` zeros and cropping at random.
    """

    pixels: Positive = 2

    def apply(self, x: Tensor, key: Tensor) -> Tensor:
        by = keys.integers(key, (2, len(x)), 2 * self.pixels + 1) - self.pixels
        for offset, dim in zip(by.unbind(), (2, 3), strict=True):
            width = x.shape[dim]
            index = torch.arange(width, device=x.device) + offset[:, None]  # (n, width)
            shape = [len(x), 1, *(width if d == dim else 1 for d in (2, 3))]
            inside = ((index >= 0) & (index < width)).view(shape)
            index = index.clamp(0, width - 1).view(shape).expand_as(x)
            x = torch.where(inside, x.gather(dim, index), 0)
        return x


@dataclass(frozen=True, kw_only=True)
class Flip(Augmentation):
    """Random horizontal flip, with probability `chance`."""

    chance: UnitInterval = 0.5

    def apply(self, x: Tensor, key: Tensor) -> Tensor:
        flipped = keys.uniform(key, (len(x), 1, 1, 1)) < self.chance
        return torch.where(flipped, x.flip(-1), x)


@dataclass(frozen=True, kw_only=True)
class Cutout(Augmentation):
    """Random square of `size` x `size` pixels set to 0, with its centre anywhere in the image.

    Source: DeVries and Taylor, "Improved regularization of convolutional neural networks with
    cutout", 2017.
    """

    size: Positive = 8

    def apply(self, x: Tensor, key: Tensor) -> Tensor:
        height, width = x.shape[2:]
        outside = []
        for lane, length in enumerate((height, width)):
            first = keys.integers(key, (len(x), 1), length, lane) - self.size // 2
            index = torch.arange(length, device=x.device)
            outside.append((index < first) | (index >= first + self.size))
        rows, columns = outside
        return torch.where(rows[:, None, :, None] | columns[:, None, None, :], x, 0)


AUGMENTATIONS: dict[str, type[Augmentation]] = {"shift": Shift, "flip": Flip, "cutout": Cutout}
"""Augmentation classes by their names in a spec."""


def build(setting: str | Mapping[str, Any]) -> Augmentation:
    """Build an augmentation from its setting in a spec, and return it.

    Args:
        setting: A name, or a table of a name and options.

    Raises:
        SpecError: No augmentation has that name, or an option is invalid.
    """
    name, options = plugins.name_and_options("augment", setting)
    if name not in AUGMENTATIONS:
        hint = f"There are: {', '.join(AUGMENTATIONS)}."
        raise unknown("augmentation", name, list(AUGMENTATIONS), hint)
    return AUGMENTATIONS[name].from_table(options, f"augment '{name}':")


def augmented(
    x: Tensor, augmentations: tuple[Augmentation, ...], key: Tensor, *, draw: int
) -> Tensor:
    """Apply augmentations in order to a batch of images, or a block of batches, and return them.

    Args:
        x: Images (..., channels, height, width).
        augmentations: Augmentations to apply.
        key: A random key of the update, int64 (2,).
        draw: Number of the draw among those of the update.
    """
    rows = x.flatten(0, -4)
    for index, augmentation in enumerate(augmentations):
        lane = _LANES + draw * len(augmentations) + index
        rows = augmentation.apply(rows, keys.bits(key, 2, lane))
    return rows.view_as(x)
