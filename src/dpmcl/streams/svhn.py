"""SVHN, 99,289 digits of house numbers."""

from dataclasses import dataclass

from dpmcl.data.labelled import Labelled
from dpmcl.streams._known_files import KnownSet
from dpmcl.streams._torchvision_sets import TorchvisionSettings, torchvision_class


@dataclass(frozen=True, kw_only=True)
class SVHN(TorchvisionSettings):
    """99,289 digits of house numbers in colour, 32x32 pixels (Netzer et al., 2011): ten classes.

    Training and test images form one pool, training images first, in which every seed splits each
    class again. The 531,131 easier images of the part "extra" are not used. Inputs are (3, 32, 32),
    uint8, divided by 255 in a batch. Needs torchvision and SciPy (the extra `vision`).

    Attributes:
        root: Folder or archive with train_32x32.mat and test_32x32.mat, packed or not, recognised
            by their content; None for $DPMCL_DATA/svhn, or else ~/.cache/dpmcl/svhn.
        download: Whether to download missing files.
    """

    def read(self) -> Labelled:
        published = torchvision_class("SVHN").split_list
        parts = [{"split": "train"}, {"split": "test"}]
        sums = dict(published[part["split"]][1:] for part in parts)
        return KnownSet(name="SVHN", sums=sums, folder=".", parts=parts).read(self)


plugin = SVHN
