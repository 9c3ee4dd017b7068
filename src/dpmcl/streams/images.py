"""Your own images: a folder, a zip or a tar."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from dpmcl.data.labelled import Labelled
from dpmcl.data.readers.entries import ARCHIVES
from dpmcl.data.readers.images import Decoding, labelled_images
from dpmcl.streams._settings import LabelledSettings, Text


@dataclass(frozen=True, kw_only=True)
class ImageFolder(Decoding, LabelledSettings):
    """Your own images, in a folder, zip or tar: one folder a class.

    Classes are the folders directly below the path, and have the files at any depth below them, as
    in torchvision's ImageFolder. Folders that everything is in (photos/cat, photos/dog) are passed
    over, and so are those of the parts of a set (train/cat, test/cat), which are pooled. Files that
    are no images by their suffix are passed over too, and `dpmcl stream` lists them; a class folder
    without an image is an error.

    path: of the folder or archive; ~ is your home folder. size: (height, width) that every image is
    resized to; None where all have one size, which is kept. crop: cut that out of the centre at its
    own scale instead. channels: 1 grey, 3 RGB; None for grey where every image is.
    invert: 255 - value. levels: how many folders make a class name, 1 for "cat", 2 for
    "Latin/character03". Inputs (channels, height, width), uint8, in [0, 1] once in a batch.

    Images are turned upright as their EXIF data say. Colour profiles are not applied. Refused are
    images with transparent pixels, several frames or pages, or more than 8 bits a channel.

    Decoded once into $DPMCL_CACHE. Needs Pillow (the extra `vision`).
    """

    network: ClassVar[str] = "lenet"
    places: ClassVar[tuple[str, ...]] = ("path",)
    suffixes: ClassVar[tuple[str, ...]] = ARCHIVES

    path: Text

    def read(self) -> Labelled:
        return labelled_images(Path(self.path), self)


plugin = ImageFolder
