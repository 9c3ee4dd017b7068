"""CIFAR10, all 60,000 images."""

from dataclasses import dataclass, replace
from typing import Literal

from dpmcl.data.labelled import Labelled
from dpmcl.data.readers.images import Decoding, labelled_images
from dpmcl.exceptions import DataError
from dpmcl.streams._torchvision_sets import ImageFilesSettings
from dpmcl.streams.cifar100 import cifar

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

    The tasks are in the official order, airplane to truck. Training and test images form one pool,
    in which every seed splits each class again. Inputs are (3, size, size), uint8, divided by 255
    in a batch. Needs torchvision and Pillow (the extra `vision`).

    Attributes:
        size: 28 for the centre of the image, which gives the 256 features that the paper prints for
            its network (appendix B.2); 32 for the complete image, which gives 400.
        root: Folder or archive with the files of cifar-10-batches-py, whose MD5 sums are checked
            before they are unpickled.
        images: Folder, zip or tar with .../airplane/*.png and so on, instead of `root`. If neither
            is set, the folder is $DPMCL_DATA/cifar10, or else ~/.cache/dpmcl/cifar10. Its archive
            cifar10-images.zip or .tar.* is read if it exists (of any origin), else torchvision's
            files.
        download: Whether to download torchvision's files if they are missing.
    """

    size: Literal[28, 32] = 28

    def read(self) -> Labelled:
        folder = self.folder("cifar10")
        files = None if self.root else self.image_files(folder, "cifar10-images")
        if files is None:
            instead = ", stream.images to a folder, zip or tar of its images"
            data = cifar("CIFAR10", instead).read(self)
            edge = (32 - self.size) // 2
            inner = slice(edge, edge + self.size)
            return replace(data, x=data.x[..., inner, inner].contiguous())
        size = (self.size, self.size)
        decoding = Decoding(size=size, channels=3, crop=True)
        data = labelled_images(files, decoding, "cifar10")
        if data.classes != CLASSES:
            shown = ", ".join(data.classes[:12]) + (", ..." if len(data.classes) > 12 else "")
            raise DataError(
                f"CIFAR10's images must be in folders named {', '.join(CLASSES)}; {files} has "
                f"{shown}. Rename those, or correct stream.images."
            )
        return data


plugin = CIFAR10
