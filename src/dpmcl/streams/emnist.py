"""EMNIST: handwritten letters and digits."""

from dataclasses import dataclass, replace
from typing import Literal

from dpmcl.data.labelled import Labelled
from dpmcl.streams._known_files import KnownSet
from dpmcl.streams._torchvision_sets import TorchvisionSettings


@dataclass(frozen=True, kw_only=True)
class EMNIST(TorchvisionSettings):
    """Handwritten letters and digits, 28x28 grey pixels (Cohen et al., 2017): up to 62 classes.

    Training and test images form one pool, training images first, in which every seed splits each
    class again. Inputs are (1, 28, 28), uint8, divided by 255 in a batch. The files hold transposed
    images, which are put upright. Needs torchvision (the extra `vision`).

    Attributes:
        part: "balanced" (47 classes, 131,600 images), "byclass" (62, 814,255), "bymerge"
            (47, 814,255), "letters" (26, 145,600), "digits" (10, 280,000) or "mnist" (10, 70,000).
        root: Folder or archive (such as the published gzip.zip) with the part's four IDX files,
            packed or not; None for $DPMCL_DATA/emnist, or else ~/.cache/dpmcl/emnist. The files are
            read unchecked, because no sums of their content are published.
        download: Whether to download missing files.
    """

    part: Literal["balanced", "byclass", "bymerge", "letters", "digits", "mnist"] = "balanced"

    def read(self) -> Labelled:
        files = [
            f"emnist-{self.part}-{which}-{what}-ubyte"
            for which in ("train", "test")
            for what in ("images-idx3", "labels-idx1")
        ]
        parts = [{"split": self.part, "train": train} for train in (True, False)]
        unchecked = dict.fromkeys(files, "")
        known_set = KnownSet(name="EMNIST", sums=unchecked, folder="EMNIST/raw", parts=parts)
        data = known_set.read(self)
        return replace(data, x=data.x.transpose(-1, -2).contiguous())


plugin = EMNIST
