"""The contract of a network: settings that make h and g for a stream's shapes."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from dpmcl.core.settings import Positive, Settings
from dpmcl.exceptions import ModelError


@dataclass(frozen=True, kw_only=True)
class NetworkSettings(Settings, ABC):
    """Settings that every network of the package has.

    Attributes:
        hidden: Width of the hidden layers.
    """

    hidden: Positive = 100

    @abstractmethod
    def build(self, shape: Sequence[int], outputs: int) -> tuple[nn.Module, nn.Module]:
        """Return (representation, prediction), newly initialised.

        Called anew for each seed, with the global generators seeded. A run uses both modules as
        functions of their parameters and of one row at a time, for many seeds at once. So only
        trainable parameters may differ from seed to seed, and a forward pass may draw nothing
        (dropout layers aside), keep nothing and mix no rows (nn.BatchNorm aside);
        `dpmcl.core.network_check` tries that before a run. Parameters with requires_grad=False
        stay as they are built.

        Args:
            shape: Of one input, without the row dimension.
            outputs: Width of the prediction's output.

        Raises:
            ModelError: The shape does not suit the network.
        """


def image_shape(name: str, shape: Sequence[int], least: int) -> tuple[int, int, int]:
    """Return (channels, height, width) of an image input.

    Args:
        name: Of the network, for the message.
        shape: Of one input.
        least: Pixels that height and width must have.

    Raises:
        ModelError: The inputs are no images, or too small.
    """
    if len(shape) != 3 or min(shape[1:]) < least:
        raise ModelError(
            f"Network '{name}' takes images (channels, height, width) of at least {least}x{least}, "
            f"got inputs of shape {tuple(shape)}; use network = 'mlp'."
        )
    channels, height, width = shape
    return channels, height, width
