"""The paper's network for Omniglot (appendix B.2)."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from dpmcl.networks._network import NetworkSettings, dense, image_shape


@dataclass(frozen=True, kw_only=True)
class OmniNet(NetworkSettings):
    """The paper's network for Omniglot (appendix B.2).

    h: two 5x5 convolutions of 32 and 64 channels with padding 2, each with 2x2 max pooling and
    ReLU: 7 * 7 * 64 features for 28x28 images. g: linear layers (features, hidden), (hidden,
    outputs) with ReLU between.
    """

    def build(self, shape: Sequence[int], outputs: int) -> tuple[nn.Module, nn.Module]:
        channels, height, width = image_shape("omninet", shape, least=4)
        representation = nn.Sequential(
            nn.Conv2d(channels, 32, kernel_size=5, stride=1, padding=2),
            nn.MaxPool2d(kernel_size=2, stride=2),
            nn.ReLU(),
            nn.Conv2d(32, 64, kernel_size=5, stride=1, padding=2),
            nn.MaxPool2d(kernel_size=2, stride=2),
            nn.ReLU(),
            nn.Flatten(),
        )
        features = (height // 4) * (width // 4) * 64
        return representation, dense(features, self.hidden, outputs)


plugin = OmniNet
