"""A dense network for any input, with two layers in each part."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from dpmcl.networks._network import NetworkSettings, dense


@dataclass(frozen=True, kw_only=True)
class MLP(NetworkSettings):
    """A dense network for inputs of any shape; not in the paper.

    h: flatten, then two linear layers of `hidden` units with ReLU. g: one more such layer, then a
    linear output layer.
    """

    def build(self, shape: Sequence[int], outputs: int) -> tuple[nn.Module, nn.Module]:
        width = self.hidden
        representation = nn.Sequential(
            nn.Flatten(), *dense(math.prod(shape), width, width), nn.ReLU()
        )
        return representation, dense(width, width, outputs)


plugin = MLP
