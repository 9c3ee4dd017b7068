"""The paper's network for SINE (appendix B.2)."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from dpmcl.exceptions import ModelError
from dpmcl.networks._network import NetworkSettings, dense


@dataclass(frozen=True, kw_only=True)
class SineNet(NetworkSettings):
    """The paper's network for SINE (appendix B.2): two three-layer networks, six layers in all.

    h: linear layers (inputs, hidden), (hidden, hidden), (hidden, inputs), ReLU between.
    g: linear layers (inputs, hidden), (hidden, hidden), (hidden, outputs), ReLU between.
    """

    def build(self, shape: Sequence[int], outputs: int) -> tuple[nn.Module, nn.Module]:
        if len(shape) != 1:
            raise ModelError(
                f"Network 'sinenet' takes vectors, got inputs of shape {tuple(shape)}; "
                "use network = 'mlp'."
            )
        inputs, width = shape[0], self.hidden
        return dense(inputs, width, width, inputs), dense(inputs, width, width, outputs)


plugin = SineNet
