"""Omniglot's background set: a stream of many small tasks."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

import annotated_types as at

from dpmcl.core.settings import Positive
from dpmcl.data.labelled import Labelled
from dpmcl.data.readers.images import Decoding, labelled_images
from dpmcl.exceptions import DataError
from dpmcl.streams._torchvision_sets import UNCHECKED, ImageFilesSettings, fetch_parts

_STEM = "images_background"


@dataclass(frozen=True, kw_only=True)
class Omniglot(ImageFilesSettings):
    """Handwritten characters, 20 drawings each (Lake et al., 2015): fifty one-class tasks.

    The classes are the first `classes` of the background set, in alphabetical order of alphabet and
    character (appendix B.1: "the first fifty classes"), named "Alphabet/characterNN". With the
    default split each has 12 drawings to train, 3 to validate and 5 to test. With `background`, so
    many classes after them are read too, and are in no task.

    Inputs (1, 28, 28), uint8, 255 for ink and 0 for paper, in [0, 1] once in a batch: the 105x105
    files, resized with Pillow's BILINEAR filter (which averages when it shrinks) and inverted. The
    paper does not say how it resized.

    images: a folder, zip or tar with Alphabet/characterNN/*.png in it. root: a folder that holds
    such an archive or folder named images_background, or omniglot-py with it, as torchvision lays
    it out; None for $DPMCL_DATA/omniglot, or else ~/.cache/dpmcl/omniglot. Sums of its content are
    not published, so it is read unchecked. download: fetch the zip if there is none. Needs
    torchvision and Pillow (the extra `vision`).
    """

    network: ClassVar[str] = "omninet"

    split: Annotated[tuple[float, float, float], at.Len(3, 3)] = (0.6, 0.15, 0.25)
    classes: Positive = 50

    def read(self) -> Labelled:
        decoding = Decoding(size=(28, 28), channels=1, invert=True, levels=2)
        source = self._source()
        data = labelled_images(source, decoding, "omniglot", innermost=True)
        wanted = self.classes + self.background
        if len(data.classes) < wanted:
            raise DataError(
                f"The first {wanted} classes are wanted, and {source} holds "
                f"{len(data.classes)}; ask for fewer, or use a source with more."
            )
        first = data.y < wanted
        return replace(
            data,
            x=data.x[first],
            y=data.y[first],
            classes=data.classes[:wanted],
            notes=(*data.notes, UNCHECKED),
        )

    def _source(self) -> Path:
        """Return the folder or archive of images, fetched if there is none."""
        root = self.folder("omniglot")
        folders = (root, root / "omniglot-py")
        for folder in folders:
            if source := self.image_files(folder, _STEM):
                return source
        # Last, for an interrupted unpacking leaves it incomplete beside the archive.
        for folder in folders:
            if (folder / _STEM).is_dir():
                return folder / _STEM
        path = root / "omniglot-py" / f"{_STEM}.zip"
        fetch_parts(
            "Omniglot",
            root,
            ({"background": True},),
            download=self.download,
            state=f"Omniglot is not at {path}",
            way_out=f"set stream.root to the folder that holds omniglot-py/{path.name}, "
            "stream.images to a folder, zip or tar of its images",
        )
        return path


plugin = Omniglot
