"""SVHN, 99,289 house numbers' digits."""

from dataclasses import dataclass

from dpmcl.data.labelled import Labelled
from dpmcl.streams._known_files import KnownSet
from dpmcl.streams._torchvision_sets import TorchvisionSettings, torchvision_class


@dataclass(frozen=True, kw_only=True)
class SVHN(TorchvisionSettings):
    """99,289 digits of house numbers in colour, 32x32 pixels (Netzer et al., 2011): ten classes.

    Training and test images are one pool, training first, without the 531,131 easier ones of the
    part "extra"; every seed splits each class anew. Inputs (3, 32, 32), uint8, in [0, 1] once in a
    batch.

    root: folder or archive that holds train_32x32.mat and test_32x32.mat, packed or not, known by
    their content; None for $DPMCL_DATA/svhn, or else ~/.cache/dpmcl/svhn. download: fetch what is
    missing. Needs torchvision and SciPy (the extra `vision`).
    """

    def read(self) -> Labelled:
        published = torchvision_class("SVHN").split_list
        parts = [{"split": "train"}, {"split": "test"}]
        sums = dict(published[part["split"]][1:] for part in parts)
        return KnownSet(name="SVHN", sums=sums, folder=".", parts=parts).read(self)


plugin = SVHN
