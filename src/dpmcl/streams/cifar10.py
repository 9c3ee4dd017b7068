"""CIFAR10, all 60,000 images."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from dpmcl.exceptions import DataError, SpecError
from dpmcl.images import Decoding, Images, data_folder, read_images
from dpmcl.stream import Stream, StreamSettings, class_incremental

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
class CIFAR10(StreamSettings):
    """60,000 colour photographs of ten kinds of things (Krizhevsky, 2009): ten one-class tasks.

    The tasks are in the official order, airplane to truck. Training and test images are one pool;
    every seed splits each class anew. Inputs (3, size, size), uint8, in [0, 1] once in a batch.

    size: 28 is the centre of the image, which gives the 256 features that the paper prints for its
    network (appendix B.2); 32 is the whole image, and gives 400.
    root: folder that holds torchvision's cifar-10-batches-py; torchvision checks those files' MD5
    sums before it unpickles them. images: instead, a folder, zip or tar with .../airplane/*.png in
    it, and so on. With neither, in $DPMCL_DATA/cifar10 or else ~/.cache/dpmcl/cifar10:
    cifar10-images.tar.xz, of any origin, if it is there, or else torchvision's files.
    download: fetch those if they are missing. Needs torchvision and Pillow (the extra `vision`).
    """

    network: ClassVar[str] = "lenet"
    places: ClassVar[tuple[str, ...]] = ("root", "download")

    size: Literal[28, 32] = 28
    root: str | None = None
    download: bool = True
    images: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.images is not None and self.root is not None:
            raise SpecError(
                f"images and root cannot both be set, got '{self.images}' and '{self.root}'; "
                "leave one out."
            )

    def build(self, seeds: Sequence[int]) -> Stream:
        x, y, _ = self._read()
        return class_incremental("cifar10", x, y, CLASSES, self.tasks)

    def _read(self) -> Images:
        if self.images is not None:
            return _own(Path(self.images), self.size)
        if self.root is not None:
            return _official(Path(self.root).expanduser(), self.download, self.size)
        usual = data_folder("cifar10")
        own = usual / "cifar10-images.tar.xz"
        return _own(own, self.size) if own.is_file() else _official(usual, self.download, self.size)


def _own(source: Path, size: int) -> Images:
    """Image files, in order of path."""
    images = read_images(source, Decoding(size=(size, size), channels=3, crop=True))
    if images.classes != CLASSES:
        shown = ", ".join(images.classes[:12]) + (", ..." if len(images.classes) > 12 else "")
        raise DataError(
            f"CIFAR10's images must be in folders named {', '.join(CLASSES)}; {source} has {shown}."
            " Rename those, or correct stream.images."
        )
    return images


def _official(root: Path, download: bool, size: int) -> Images:
    """torchvision's images, in its order, training first."""
    train, test = _load(root, download)
    pixels = np.concatenate([train.data, test.data])  # (rows, 32, 32, 3)
    edge = (32 - size) // 2
    pixels = pixels[:, edge : edge + size, edge : edge + size].transpose(0, 3, 1, 2)
    x = torch.from_numpy(np.ascontiguousarray(pixels))
    return Images(x, torch.tensor(train.targets + test.targets, dtype=torch.int64), CLASSES)


def _load(root: Path, download: bool) -> tuple[Any, Any]:
    """torchvision's two sets, fetched if they are missing."""
    try:
        from torchvision.datasets import CIFAR10 as Files
        from torchvision.datasets.utils import check_integrity
    except ImportError:
        raise DataError(
            "Stream 'cifar10' needs torchvision: pip install 'dpmcl[vision]'."
        ) from None
    folder = root / Files.base_folder
    listed = [*Files.train_list, *Files.test_list, [Files.meta["filename"], Files.meta["md5"]]]
    for name, md5 in listed:
        if (folder / name).is_file() and not check_integrity(folder / name, md5):
            raise DataError(
                f"{folder / name} must be the published file (MD5 {md5}), and is not; remove it "
                "and fetch it again."
            )
    names = ", ".join(name for name, _ in listed)
    if all((folder / name).is_file() for name, _ in listed):
        return Files(root, train=True), Files(root, train=False)
    if not download:
        raise DataError(
            f"CIFAR10 is not in {folder} (looked for {names}); set stream.root to the folder that "
            f"holds {Files.base_folder}, stream.images to a folder, zip or tar of its images, or "
            "stream.download = true."
        )
    try:
        root.mkdir(parents=True, exist_ok=True)
        return Files(root, train=True, download=True), Files(root, train=False)
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"CIFAR10 is not in {folder} and could not be fetched ({error}); put {names} there, or "
            "set stream.images to a folder, zip or tar of its images."
        ) from None


plugin = CIFAR10
