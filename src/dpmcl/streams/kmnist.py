"""KMNIST, all 70,000 images."""

from dataclasses import dataclass

from dpmcl.data.labelled import Labelled
from dpmcl.streams._known_files import MNIST, KnownSet
from dpmcl.streams._torchvision_sets import TorchvisionSettings


@dataclass(frozen=True, kw_only=True)
class KMNIST(TorchvisionSettings):
    """70,000 cursive Japanese characters, 28x28 grey pixels (Clanuwat et al., 2018): ten classes.

    Training and test images are one pool, training first; every seed splits each class anew. Inputs
    (1, 28, 28), uint8, in [0, 1] once in a batch. Classes are named "o" to "wo" and numbered as
    published.

    root: folder or archive that holds the four IDX files, packed or not; sums of their content are
    not published, so they are read unchecked. None for $DPMCL_DATA/kmnist, or else
    ~/.cache/dpmcl/kmnist. download: fetch what is missing. Needs torchvision (the extra `vision`).
    """

    def read(self) -> Labelled:
        unknown = dict.fromkeys(MNIST, "")  # files of the same names
        return KnownSet(name="KMNIST", sums=unknown, folder="KMNIST/raw").read(self)


plugin = KMNIST
