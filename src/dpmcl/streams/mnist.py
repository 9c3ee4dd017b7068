"""MNIST, all 70,000 images, from torchvision's files."""

from dataclasses import dataclass, replace

from dpmcl.data.labelled import Labelled
from dpmcl.streams._known_files import MNIST as SUMS
from dpmcl.streams._known_files import KnownSet
from dpmcl.streams._torchvision_sets import TorchvisionSettings


@dataclass(frozen=True, kw_only=True)
class MNIST(TorchvisionSettings):
    """70,000 handwritten digits of 28x28 pixels (LeCun et al., 1998): ten one-class tasks.

    Training and test images form one pool in torchvision's order, training images first, in which
    every seed splits each class again, as in the paper (appendix B.1). Inputs are (1, 28, 28),
    uint8, divided by 255 in a batch. Needs torchvision (the extra `vision`).

    Attributes:
        root: Folder or archive with the four IDX files, packed or not, recognised by their content;
            None for $DPMCL_DATA/mnist, or else ~/.cache/dpmcl/mnist.
        download: Whether to download missing files.
    """

    def read(self) -> Labelled:
        data = KnownSet(name="MNIST", sums=SUMS, folder="MNIST/raw").read(self)
        digits = tuple(name[0] for name in data.classes)  # torchvision names them "0 - zero"
        return replace(data, classes=digits)


plugin = MNIST
