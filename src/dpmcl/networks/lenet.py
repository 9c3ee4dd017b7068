"""The paper's LeNet for MNIST and CIFAR10 (appendix B.2)."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from dpmcl.core.settings import Positive
from dpmcl.networks._network import NetworkSettings, dense, image_shape


@dataclass(frozen=True, kw_only=True)
class LeNet(NetworkSettings):
    """The paper's network for MNIST and CIFAR10 (appendix B.2), dropout included.

    h: two 5x5 convolutions of 6 and 16 channels, each with 2x2 max pooling and ReLU, then dropout
    0.5. g: linear layers (features, hidden), (hidden, hidden), (hidden, outputs) with ReLU between.

    The paper's listing has five layers and its text says four; the listing is used. Its Linear(256,
    H) fits 28x28 inputs; for other sizes the width follows from the input. The listing has three
    input channels; MNIST has one here, as the text says.
    """

    hidden: Positive = 512

    def build(self, shape: Sequence[int], outputs: int) -> tuple[nn.Module, nn.Module]:
        channels, height, width = image_shape("lenet", shape, least=16)
        rows, columns = (((side - 4) // 2 - 4) // 2 for side in (height, width))
        representation = nn.Sequential(
            nn.Conv2d(channels, 6, 5),
            nn.MaxPool2d(kernel_size=2, stride=2),
            nn.ReLU(),
            nn.Conv2d(6, 16, 5),
            nn.MaxPool2d(kernel_size=2, stride=2),
            nn.ReLU(),
            nn.Dropout(),
            nn.Flatten(),
        )
        prediction = dense(16 * rows * columns, self.hidden, self.hidden, outputs)
        return representation, prediction


plugin = LeNet
