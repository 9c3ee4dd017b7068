"""A dense network for any input: two layers represent, two predict."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from dpmcl.networks._network import NetworkSettings


@dataclass(frozen=True, kw_only=True)
class MLP(NetworkSettings):
    """A dense network for inputs of any shape; not in the paper.

    h: flatten, two linear layers of `hidden` units with ReLU. g: one more, then a linear output.
    """

    def build(self, shape: Sequence[int], outputs: int) -> tuple[nn.Module, nn.Module]:
        width = self.hidden
        representation = nn.Sequential(
            nn.Flatten(),
            nn.Linear(math.prod(shape), width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
        )
        prediction = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs))
        return representation, prediction


plugin = MLP
