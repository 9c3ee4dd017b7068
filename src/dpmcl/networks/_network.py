"""The contract of a network: settings that make h and g for a stream's shapes."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from dpmcl.core.settings import Positive, Settings
from dpmcl.exceptions import ModelError


@dataclass(frozen=True, kw_only=True)
class NetworkSettings(Settings, ABC):
    """What every network of the package has. hidden: width of the hidden layers."""

    hidden: Positive = 100

    @abstractmethod
    def build(self, shape: Sequence[int], outputs: int) -> tuple[nn.Module, nn.Module]:
        """Return (representation, prediction), newly initialised.

        Called anew for each seed, with the global generators seeded. A run uses both modules as
        functions of their parameters and of one row at a time, for many seeds at once. So what is
        drawn here must be a parameter, and a forward pass may draw nothing (dropout layers aside),
        keep nothing, and mix no rows; `dpmcl.core.network_check` tries that before a run.

        shape: of one input, without the row dimension. outputs: width of the prediction's output.
        Raises ModelError where the shape does not suit the network.
        """


def image_shape(name: str, shape: Sequence[int]) -> tuple[int, int, int]:
    """(channels, height, width) of an image input, or a ModelError."""
    if len(shape) != 3:
        raise ModelError(
            f"Network '{name}' takes images (channels, height, width), got inputs of shape "
            f"{tuple(shape)}; use network = 'mlp'."
        )
    channels, height, width = shape
    return channels, height, width
