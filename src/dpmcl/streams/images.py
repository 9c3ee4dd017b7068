"""Stream of your own images, in a folder, zip or tar."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from dpmcl.data.labelled import Labelled
from dpmcl.data.readers.entries import ARCHIVES
from dpmcl.data.readers.images import Decoding, labelled_images
from dpmcl.streams._settings import LabelledSettings, Text


@dataclass(frozen=True, kw_only=True)
class ImageFolder(Decoding, LabelledSettings):
    """Your own images, in a folder, zip or tar that has one folder per class.

    Classes are the folders directly below the path, with files at any depth below them, as in
    torchvision's ImageFolder. A folder that contains everything (photos/cat, photos/dog) is
    skipped, and so are folders of the parts of a set (train/cat, test/cat), which are pooled. Files
    without the suffix of an image are skipped too, and `dpmcl stream` counts them. A class folder
    without an image is an error.

    Inputs are (channels, height, width), uint8, divided by 255 in a batch. Images are turned
    upright by their EXIF data. Colour profiles are not applied. Images with transparent pixels,
    several frames or pages, or more than 8 bits per channel are errors. Images are decoded once,
    into $DPMCL_CACHE. Needs Pillow (the extra `vision`).

    Attributes:
        path: Path of the folder or archive; ~ is your home folder.
        size: (height, width) to which images are resized; None to keep the size, which must then be
            the same for all images.
        crop: Whether to crop the centre to `size` instead, without scaling.
        channels: 1 for grey, 3 for RGB; None for grey if all images are grey, else RGB.
        invert: Whether to replace each value by 255 - value.
        levels: Number of nested folders whose names make a class name: 1 for "cat", 2 for
            "Latin/character03".
    """

    network: ClassVar[str] = "lenet"
    places: ClassVar[tuple[str, ...]] = ("path",)
    suffixes: ClassVar[tuple[str, ...]] = ARCHIVES

    path: Text

    def read(self) -> Labelled:
        return labelled_images(Path(self.path), self)


plugin = ImageFolder
