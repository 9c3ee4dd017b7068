"""EMNIST: handwritten letters and digits."""

from dataclasses import dataclass, replace
from typing import Literal

from dpmcl.data.labelled import Labelled
from dpmcl.streams._known_files import KnownSet
from dpmcl.streams._torchvision_sets import TorchvisionSettings


@dataclass(frozen=True, kw_only=True)
class EMNIST(TorchvisionSettings):
    """Handwritten letters and digits, 28x28 grey pixels (Cohen et al., 2017): up to 62 classes.

    part: "balanced" (47 classes, 131,600 images), "byclass" (62, 814,255), "bymerge" (47, 814,255),
    "letters" (26, 145,600), "digits" (10, 280,000) or "mnist" (10, 70,000). Training and test
    images are one pool, training first; every seed splits each class anew. Inputs (1, 28, 28),
    uint8, in [0, 1] once in a batch. The files hold them lying on their side; here they stand.

    root: folder or archive (the published gzip.zip, say) that holds the part's four IDX files,
    packed or not; sums of their content are not published, so they are read unchecked. None for
    $DPMCL_DATA/emnist, or else ~/.cache/dpmcl/emnist. download: fetch what is missing. Needs
    torchvision (the extra `vision`).
    """

    part: Literal["balanced", "byclass", "bymerge", "letters", "digits", "mnist"] = "balanced"

    def read(self) -> Labelled:
        files = [
            f"emnist-{self.part}-{which}-{what}-ubyte"
            for which in ("train", "test")
            for what in ("images-idx3", "labels-idx1")
        ]
        parts = [{"split": self.part, "train": train} for train in (True, False)]
        unknown = dict.fromkeys(files, "")
        known = KnownSet(name="EMNIST", sums=unknown, folder="EMNIST/raw", parts=parts)
        data = known.read(self)
        return replace(data, x=data.x.transpose(-1, -2).contiguous())


plugin = EMNIST
