"""KMNIST, all 70,000 images."""

from dataclasses import dataclass

from dpmcl.data.labelled import Labelled
from dpmcl.streams._idx_files import read_idx
from dpmcl.streams._torchvision_sets import TorchvisionSettings, read_arrays_of


@dataclass(frozen=True, kw_only=True)
class KMNIST(TorchvisionSettings):
    """70,000 cursive Japanese characters, 28x28 grey pixels (Clanuwat et al., 2018): ten classes.

    Training and test images are one pool, training first; every seed splits each class anew. Inputs
    (1, 28, 28), uint8, in [0, 1] once in a batch. Classes are named "o" to "wo" and numbered as
    published.

    root: folder of the four IDX files, or of KMNIST/raw with them, gzipped (and then checked by
    torchvision's sums) or not (no sums are known); None for $DPMCL_DATA/kmnist, or else
    ~/.cache/dpmcl/kmnist. download: fetch what is missing.
    Needs torchvision (the extra `vision`).
    """

    def read(self) -> Labelled:
        parts = read_idx("KMNIST", self.folder("kmnist"), self.download)
        return read_arrays_of("kmnist", parts)


plugin = KMNIST
