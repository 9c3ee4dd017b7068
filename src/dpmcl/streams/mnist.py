"""MNIST, all 70,000 images, from torchvision's files."""

from dataclasses import dataclass, replace

from dpmcl.data.labelled import Labelled
from dpmcl.streams._known_files import MNIST as SUMS
from dpmcl.streams._known_files import KnownSet
from dpmcl.streams._torchvision_sets import TorchvisionSettings


@dataclass(frozen=True, kw_only=True)
class MNIST(TorchvisionSettings):
    """70,000 handwritten digits of 28x28 pixels (LeCun et al., 1998): ten one-class tasks.

    Training and test images are one pool, in torchvision's order (training first); every seed
    splits each class anew, as the paper does (appendix B.1). Inputs (1, 28, 28), uint8, in [0, 1]
    once in a batch.

    root: folder or archive that holds the four IDX files, packed or not, known by their content;
    None for $DPMCL_DATA/mnist, or else ~/.cache/dpmcl/mnist. download: fetch what is missing. Needs
    torchvision (the extra `vision`).
    """

    def read(self) -> Labelled:
        data = KnownSet(name="MNIST", sums=SUMS, folder="MNIST/raw").read(self)
        digits = tuple(name[0] for name in data.classes)  # torchvision names them "0 - zero"
        return replace(data, classes=digits)


plugin = MNIST
