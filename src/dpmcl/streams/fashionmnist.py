"""FashionMNIST, all 70,000 images."""

from dataclasses import dataclass

from dpmcl.data.labelled import Labelled
from dpmcl.streams._known_files import FASHION_MNIST, KnownSet
from dpmcl.streams._torchvision_sets import TorchvisionSettings


@dataclass(frozen=True, kw_only=True)
class FashionMNIST(TorchvisionSettings):
    """70,000 pictures of clothes, 28x28 grey pixels (Xiao et al., 2017): ten classes of 7,000.

    Training and test images form one pool, training images first, in which every seed splits each
    class again. Inputs are (1, 28, 28), uint8, divided by 255 in a batch. Classes are named
    "T-shirt/top" to "Ankle boot" and numbered as published. Needs torchvision (the extra `vision`).

    Attributes:
        root: Folder or archive with the four IDX files, packed or not, recognised by their content
            (Debian has them in /usr/share/datasets/fashion-mnist); None for
            $DPMCL_DATA/fashionmnist, or else ~/.cache/dpmcl/fashionmnist.
        download: Whether to download missing files.
    """

    def read(self) -> Labelled:
        return KnownSet(name="FashionMNIST", sums=FASHION_MNIST, folder="FashionMNIST/raw").read(
            self
        )


plugin = FashionMNIST
