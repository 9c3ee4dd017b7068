"""Random changes of training images, row by row; each a function of its key."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import annotated_types as at
import torch
from torch import Tensor

from dpmcl import plugins
from dpmcl.core import keys
from dpmcl.core.settings import Positive, Settings
from dpmcl.exceptions import unknown

_LANES = 1 << 21  # of an update's key; dropout has those below


class Augmentation(Settings, ABC):
    """A random change of images."""

    @abstractmethod
    def apply(self, x: Tensor, key: Tensor) -> Tensor:
        """Return changed images, each row by draws of its own.

        Args:
            x: Images (n, channels, height, width).
            key: Random key, int64 (2,).
        """


@dataclass(frozen=True, kw_only=True)
class Shift(Augmentation):
    """Moves an image by up to `pixels` each way; what comes in from outside is 0.

    The same as padding by `pixels` zeros and cropping at random.
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
    """Mirrors an image, left to right, with a chance."""

    chance: Annotated[float, at.Ge(0), at.Le(1)] = 0.5

    def apply(self, x: Tensor, key: Tensor) -> Tensor:
        turned = keys.uniform(key, (len(x), 1, 1, 1)) < self.chance
        return torch.where(turned, x.flip(-1), x)


@dataclass(frozen=True, kw_only=True)
class Cutout(Augmentation):
    """Sets a square of `size` pixels to 0, its centre anywhere in the image.

    Source: DeVries and Taylor, "Improved regularization of convolutional neural networks with
    cutout", 2017.
    """

    size: Positive = 8

    def apply(self, x: Tensor, key: Tensor) -> Tensor:
        height, width = x.shape[2:]
        outside = []
        for lane, length in enumerate((height, width)):
            first = keys.integers(key, (len(x), 1), length, lane) - self.size // 2
            place = torch.arange(length, device=x.device)
            outside.append((place < first) | (place >= first + self.size))
        rows, columns = outside
        return torch.where(rows[:, None, :, None] | columns[:, None, None, :], x, 0)


AUGMENTATIONS: dict[str, type[Augmentation]] = {"shift": Shift, "flip": Flip, "cutout": Cutout}
"""By the name in a spec."""


def build(setting: str | Mapping[str, Any]) -> Augmentation:
    """Return the augmentation of a setting.

    Args:
        setting: A name, or a table of a name and options.

    Raises:
        SpecError: Nothing has that name, or an option breaks a rule.
    """
    name, options = plugins.named("augment", setting)
    if name not in AUGMENTATIONS:
        hint = f"There are: {', '.join(AUGMENTATIONS)}."
        raise unknown("augmentation", name, list(AUGMENTATIONS), hint)
    return AUGMENTATIONS[name].from_table(options, f"augment '{name}':")


def augmented(
    x: Tensor, augmentations: tuple[Augmentation, ...], key: Tensor, *, draw: int
) -> Tensor:
    """Return the images of a batch, or of a block of batches, after each augmentation in turn.

    Args:
        x: Images (..., channels, height, width).
        augmentations: In order.
        key: A random key of the update, int64 (2,).
        draw: Number of the draw among those of the update.
    """
    rows = x.flatten(0, -4)
    for number, each in enumerate(augmentations):
        lane = _LANES + draw * len(augmentations) + number
        rows = each.apply(rows, keys.bits(key, 2, lane))
    return rows.view_as(x)
