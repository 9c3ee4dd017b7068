"""Omniglot's background set: a stream of many small tasks."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import annotated_types as at

from dpmcl.core.settings import Positive
from dpmcl.data.labelled import Labelled
from dpmcl.data.readers.images import Decoding, read_images
from dpmcl.exceptions import DataError
from dpmcl.streams._torchvision_sets import ImageFilesSettings, fetching, torchvision_class


@dataclass(frozen=True, kw_only=True)
class Omniglot(ImageFilesSettings):
    """Handwritten characters, 20 drawings each (Lake et al., 2015): fifty one-class tasks.

    The classes are the first `classes` of the background set, in alphabetical order of alphabet and
    character (appendix B.1: "the first fifty classes"), named "Alphabet/characterNN". With the
    default split each has 12 drawings to train, 3 to validate and 5 to test.

    Inputs (1, 28, 28), uint8, 255 for ink and 0 for paper, in [0, 1] once in a batch: the 105x105
    files, resized with Pillow's BILINEAR filter (which averages when it shrinks) and inverted. The
    paper does not say how it resized.

    root: torchvision's folder, which holds omniglot-py/images_background.zip. images: instead, a
    folder, zip or tar with Alphabet/characterNN/*.png in it. With neither, in $DPMCL_DATA/omniglot
    or else ~/.cache/dpmcl/omniglot: images_background.zip, of any origin, if it is there, or else
    torchvision's file. download: fetch that if it is missing. Needs torchvision and Pillow (the
    extra `vision`).
    """

    network: ClassVar[str] = "omninet"

    split: Annotated[tuple[float, float, float], at.Len(3, 3)] = (0.6, 0.15, 0.25)
    classes: Positive = 50

    def read(self) -> Labelled:
        decoding = Decoding(
            size=(28, 28),
            channels=1,
            invert=True,
            levels=2,
            innermost=True,
            first_classes=self.classes,
        )
        place, own = self.place("omniglot", "images_background.zip")
        source = place if own else _official(place, self.download)
        found = read_images(source, decoding)
        return Labelled(
            "omniglot", "classification", found.x, found.y, found.classes, notes=found.notes
        )


def _official(root: Path, download: bool) -> Path:
    """torchvision's zip, checked against the published sum; fetched if it is missing.

    The zip and not the folder beside it, which an interrupted unpacking leaves incomplete.
    """
    files = torchvision_class("Omniglot")
    from torchvision.datasets.utils import check_integrity

    path = root / "omniglot-py" / "images_background.zip"
    md5 = files.zips_md5["images_background"]
    if not path.is_file():
        if not download:
            raise DataError(
                f"Omniglot is not at {path}; set stream.root to the folder that holds "
                "omniglot-py/images_background.zip, stream.images to a folder, zip or tar of its "
                "images, or stream.download = true."
            )
        way_out = "put it there, or set stream.images to a folder, zip or tar of its images"
        with fetching(f"Omniglot is not at {path}", way_out):
            files(root, background=True, download=True)
    if not check_integrity(path, md5):
        raise DataError(
            f"{path} must be the published file (MD5 {md5}), and is not; name it with "
            "stream.images to use it as it is, or replace it."
        )
    return path


plugin = Omniglot
