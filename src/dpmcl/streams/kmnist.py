"""KMNIST, all 70,000 images."""

from dataclasses import dataclass

from dpmcl.data.labelled import Labelled
from dpmcl.streams._known_files import MNIST, KnownSet
from dpmcl.streams._torchvision_sets import TorchvisionSettings


@dataclass(frozen=True, kw_only=True)
class KMNIST(TorchvisionSettings):
    """70,000 cursive Japanese characters, 28x28 grey pixels (Clanuwat et al., 2018): ten classes.

    Training and test images form one pool, training images first, in which every seed splits each
    class again. Inputs are (1, 28, 28), uint8, divided by 255 in a batch. Classes are named "o" to
    "wo" and numbered as published. Needs torchvision (the extra `vision`).

    Attributes:
        root: Folder or archive with the four IDX files, packed or not; None for $DPMCL_DATA/kmnist,
            or else ~/.cache/dpmcl/kmnist. The files are read unchecked, because no sums of their
            content are published.
        download: Whether to download missing files.
    """

    def read(self) -> Labelled:
        unchecked = dict.fromkeys(MNIST, "")  # KMNIST's files have the names of MNIST's
        return KnownSet(name="KMNIST", sums=unchecked, folder="KMNIST/raw").read(self)


plugin = KMNIST
