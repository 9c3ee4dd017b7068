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
    default split, each has 12 training, 3 validation and 5 test drawings. The next `background`
    classes are read too, and are in no task.

    Inputs are (1, 28, 28), uint8, 255 for ink and 0 for paper, divided by 255 in a batch. They are
    the 105x105 files, resized with Pillow's BILINEAR filter (which averages when it shrinks) and
    inverted. The paper does not say how it resized. Needs torchvision and Pillow (the extra
    `vision`).

    Attributes:
        classes: Number of classes in tasks.
        images: Folder, zip or tar with Alphabet/characterNN/*.png.
        root: Folder with an archive or a folder named images_background, or with this in a folder
            omniglot-py, as torchvision writes it; None for $DPMCL_DATA/omniglot, or else
            ~/.cache/dpmcl/omniglot. It is read unchecked, because no sums of its content are
            published.
        download: Whether to download the zip if there is none.
    """

    network: ClassVar[str] = "omninet"

    split: Annotated[tuple[float, float, float], at.Len(3, 3)] = (0.6, 0.15, 0.25)
    classes: Positive = 50

    def read(self) -> Labelled:
        decoding = Decoding(size=(28, 28), channels=1, invert=True, levels=2)
        source = self._source()
        data = labelled_images(source, decoding, "omniglot")
        count = self.classes + self.background
        if len(data.classes) < count:
            raise DataError(
                f"The first {count} classes are wanted, and {source} holds "
                f"{len(data.classes)}; ask for fewer, or use a source with more."
            )
        first = data.y < count
        return replace(
            data,
            x=data.x[first],
            y=data.y[first],
            classes=data.classes[:count],
            notes=(*data.notes, UNCHECKED),
        )

    def _source(self) -> Path:
        """Return the folder or archive of images, downloaded if it does not exist."""
        root = self.folder("omniglot")
        folders = (root, root / "omniglot-py")
        for folder in folders:
            if source := self.image_files(folder, _STEM):
                return source
        # After archives, because an interrupted unpacking leaves incomplete folders beside them.
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
