"""The interface of a network: settings that build h and g for the shapes of a stream."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from dpmcl.core.settings import Positive, Settings
from dpmcl.exceptions import ModelError


@dataclass(frozen=True, kw_only=True)
class NetworkSettings(Settings, ABC):
    """Base class of networks, with the settings that all of them have.

    Attributes:
        hidden: Width of the hidden layers.
    """

    hidden: Positive = 100

    @abstractmethod
    def build(self, shape: Sequence[int], outputs: int) -> tuple[nn.Module, nn.Module]:
        """Return (representation, prediction), newly initialised.

        It is called for each seed, with the global generators seeded. A run uses both modules as
        functions of their parameters and of one row at a time, for many seeds at once. Only
        trainable parameters may therefore differ from seed to seed, and a forward pass may not draw
        random numbers (except in dropout layers), change the modules, or mix rows (except in
        nn.BatchNorm). `dpmcl.core.network_check` checks this before a run. Parameters with
        requires_grad=False keep their initial values.

        Args:
            shape: Shape of one input, without the row dimension.
            outputs: Width of the prediction's output.

        Raises:
            ModelError: The shape does not suit the network.
        """


def image_shape(name: str, shape: Sequence[int], least: int) -> tuple[int, int, int]:
    """Return (channels, height, width) of an image input.

    Args:
        name: Name of the network in messages.
        shape: Shape of one input.
        least: Smallest height and width, in pixels.

    Raises:
        ModelError: The inputs are not images, or too small.
    """
    if len(shape) != 3 or min(shape[1:]) < least:
        raise ModelError(
            f"Network '{name}' takes images (channels, height, width) of at least {least}x{least}, "
            f"got inputs of shape {tuple(shape)}; use network = 'mlp'."
        )
    channels, height, width = shape
    return channels, height, width


def dense(*widths: int) -> nn.Sequential:
    """Return linear layers with ReLU between them.

    Args:
        widths: Width of the input, and of the output of each layer.
    """
    layers: list[nn.Module] = [nn.Linear(widths[0], widths[1])]
    for inputs, outputs in pairwise(widths[1:]):
        layers += [nn.ReLU(), nn.Linear(inputs, outputs)]
    return nn.Sequential(*layers)
