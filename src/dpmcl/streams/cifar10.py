"""CIFAR10, all 60,000 images."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from dpmcl.data.labelled import Labelled
from dpmcl.data.readers.images import Decoding, read_images
from dpmcl.exceptions import DataError
from dpmcl.streams._cifar_files import read_cifar
from dpmcl.streams._torchvision_sets import ImageFilesSettings, read_arrays_of

CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)


@dataclass(frozen=True, kw_only=True)
class CIFAR10(ImageFilesSettings):
    """60,000 colour photographs of ten kinds of things (Krizhevsky, 2009): ten one-class tasks.

    The tasks are in the official order, airplane to truck. Training and test images are one pool;
    every seed splits each class anew. Inputs (3, size, size), uint8, in [0, 1] once in a batch.

    size: 28 is the centre of the image, which gives the 256 features that the paper prints for its
    network (appendix B.2); 32 is the whole image, and gives 400.
    root: folder that holds cifar-10-batches-py, its files, or an archive of them, whose MD5 sums
    are checked before they are unpickled. images: instead, a folder, zip or tar with
    .../airplane/*.png in it, and so on. With neither, in $DPMCL_DATA/cifar10 or else
    ~/.cache/dpmcl/cifar10: cifar10-images.tar.xz, of any origin, if it is there, or else
    torchvision's files.
    download: fetch those if they are missing. Needs torchvision and Pillow (the extra `vision`).
    """

    size: Literal[28, 32] = 28

    def read(self) -> Labelled:
        place, own = self.place("cifar10", "cifar10-images.tar.xz")
        return _own(place, self.size) if own else _official(place, self.download, self.size)


def _own(source: Path, size: int) -> Labelled:
    """Image files, in order of path."""
    # Often in train/airplane and test/airplane: one pool here.
    decoding = Decoding(size=(size, size), channels=3, crop=True, innermost=True)
    images = read_images(source, decoding)
    if images.classes != CLASSES:
        shown = ", ".join(images.classes[:12]) + (", ..." if len(images.classes) > 12 else "")
        raise DataError(
            f"CIFAR10's images must be in folders named {', '.join(CLASSES)}; {source} has {shown}."
            " Rename those, or correct stream.images."
        )
    return Labelled("cifar10", "classification", images.x, images.y, CLASSES, notes=images.notes)


def _official(root: Path, download: bool, size: int) -> Labelled:
    """torchvision's images, in its order, training first."""
    instead = "stream.images to a folder, zip or tar of its images, "
    data = read_arrays_of("cifar10", read_cifar("CIFAR10", root, download, instead))
    edge = (32 - size) // 2
    inner = slice(edge, edge + size)
    return replace(data, x=data.x[..., inner, inner].contiguous())


plugin = CIFAR10
