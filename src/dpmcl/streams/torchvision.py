"""Other classification sets of torchvision."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from dpmcl.core.settings import Positive
from dpmcl.data.labelled import Labelled
from dpmcl.data.read_errors import reading
from dpmcl.data.readers.entries import stamp
from dpmcl.data.readers.gathering import Gathering
from dpmcl.data.readers.image_cache import cached
from dpmcl.data.readers.images import SET_A_SIZE, Decoding, pixels
from dpmcl.data.readers.pil_images import readable
from dpmcl.exceptions import DataError, SpecError, unknown
from dpmcl.streams._torchvision_sets import (
    BY_TRAIN,
    Parts,
    TorchvisionSettings,
    fetch_parts,
    open_parts,
    pool_of_parts,
)


def _splits(*names: str, **other: Any) -> Parts:
    return tuple({"split": name, **other} for name in names)


SETS: dict[str, Parts] = {
    "CLEVRClassification": _splits("train", "val"),
    "Caltech101": ({},),
    "Caltech256": ({},),
    "Country211": _splits("train", "valid", "test"),
    "DTD": _splits("train", "val", "test"),
    "EuroSAT": ({},),
    "FER2013": _splits("train", "test"),
    "FGVCAircraft": _splits("trainval", "test"),
    "Flowers102": _splits("train", "val", "test"),
    "Food101": _splits("train", "test"),
    "GTSRB": _splits("train", "test"),
    "Imagenette": _splits("train", "val"),
    "LFWPeople": _splits("10fold"),
    "OxfordIIITPet": _splits("trainval", "test"),
    "PCAM": _splits("train", "val", "test"),
    "Places365": _splits("train-standard", "val", small=True),
    "QMNIST": BY_TRAIN,
    "RenderedSST2": _splits("train", "val", "test"),
    "SEMEION": ({"download": False},),
    "STL10": _splits("train", "test"),
    "SUN397": ({},),
    "StanfordCars": _splits("train", "test"),
    "USPS": BY_TRAIN,
}
"""Parts of each set that this stream reads."""

NAMED = ("MNIST", "FashionMNIST", "KMNIST", "EMNIST", "CIFAR10", "CIFAR100", "SVHN", "Omniglot")
"""Sets that have their own stream, with the same name in lower case."""


@dataclass(frozen=True, kw_only=True)
class Torchvision(TorchvisionSettings):
    """Any classification set of torchvision by name, such as dataset = "EuroSAT".

    All labelled parts of the set (training, validation, test) form one pool, in that order, in
    which every seed splits each class again. Inputs are (channels, height, width), uint8, divided
    by 255 in a batch. Classes have the set's names, or numbers if it has none. Images are decoded
    once, into $DPMCL_CACHE. Needs torchvision (the extra `vision`); some sets need SciPy or h5py.

    Attributes:
        dataset: Name of torchvision's class.
        size: (height, width) to which images are resized; None to keep the size, which must then be
            the same for all images.
        channels: 1 for grey, 3 for RGB; None for grey if all images are grey, else RGB.
        root: Folder of the set's files; None for $DPMCL_DATA/NAME, or else ~/.cache/dpmcl/NAME,
            with the name in lower case.
        download: Whether to download the set into an empty root, if torchvision can.
    """

    dataset: str
    size: tuple[Positive, Positive] | None = None
    channels: Literal[1, 3] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dataset in NAMED:
            raise SpecError(
                f"{self.dataset} has a stream of its own; set stream = '{self.dataset.lower()}'."
            )
        if self.dataset not in SETS:
            hint = f"There are {', '.join(SETS)}."
            raise unknown("dataset of torchvision", self.dataset, SETS, hint)

    def read(self) -> Labelled:
        name, parts = self.dataset, SETS[self.dataset]
        root = self.folder(name.lower())
        decoding = Decoding(size=self.size, channels=self.channels)
        with reading(str(root)):
            if not root.exists() or not stamp(root):
                fetch_parts(
                    name,
                    root,
                    parts,
                    download=self.download,
                    state=f"{name} is not in {root}",
                    way_out="set stream.root to the folder that holds it",
                )
            key_parts = [name, stamp(root), decoding.cache_key()]
        return cached(
            name.lower(),
            key_parts,
            lambda: _decode(name, open_parts(name, root, parts, str(root)), decoding),
        )


def _decode(name: str, parts: Sequence[Any], decoding: Decoding) -> Labelled:
    """Decode all images of all parts that have a label, in order."""
    labels: list[list[int]] = [[] for _ in parts]
    where: list[str] = []
    rows = Gathering(sum(map(len, parts)), lambda row: where[row], SET_A_SIZE)
    for number, part in enumerate(parts):
        for item in range(len(part)):
            shown = f"{name}'s image {item} (part {number})"
            with readable(shown):
                image, label = part[item]
            if label is not None:
                where.append(shown)
                rows.put_image(len(where) - 1, pixels(image, shown, decoding))
                labels[number].append(int(label))
    if not where:
        raise DataError(f"{name} must have images with labels, and has none; fetch it again.")
    return pool_of_parts(name, parts, torch.from_numpy(rows.array[: len(where)]), labels)


plugin = Torchvision
