"""Any other classification set of torchvision's."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpmcl.core.settings import Positive
from dpmcl.data.labelled import Labelled
from dpmcl.data.labels import number_labels
from dpmcl.data.readers.image_cache import Images, Spool, cache_folder, cache_key, load_images
from dpmcl.data.readers.images import Decoding, pixels
from dpmcl.data.readers.pil_images import readable
from dpmcl.exceptions import DataError, SpecError, reason, unknown
from dpmcl.streams._torchvision_sets import BY_TRAIN, OWN_NAMES, TorchvisionSettings, open_parts


class _Set(NamedTuple):
    """Where a set is, and what it is made of.

    files: what it has in root. parts: arguments of its class; together they are the pool.
    """

    files: tuple[str, ...]
    parts: tuple[dict[str, Any], ...] = ({},)


def _splits(*names: str, **other: Any) -> tuple[dict[str, Any], ...]:
    return tuple({"split": name, **other} for name in names)


SETS: dict[str, _Set] = {
    "CLEVRClassification": _Set(("clevr/CLEVR_v1.0",), _splits("train", "val")),
    "Caltech101": _Set(("caltech101/101_ObjectCategories",)),
    "Caltech256": _Set(("caltech256/256_ObjectCategories",)),
    "Country211": _Set(("country211",), _splits("train", "valid", "test")),
    "DTD": _Set(("dtd/dtd",), _splits("train", "val", "test")),
    "EuroSAT": _Set(("eurosat/2750",)),
    "FER2013": _Set(("fer2013",), _splits("train", "test")),
    "FGVCAircraft": _Set(("fgvc-aircraft-2013b",), _splits("trainval", "test")),
    "Flowers102": _Set(("flowers-102",), _splits("train", "val", "test")),
    "Food101": _Set(("food-101",), _splits("train", "test")),
    "GTSRB": _Set(("gtsrb",), _splits("train", "test")),
    "Imagenette": _Set(("imagenette2",), _splits("train", "val")),
    "LFWPeople": _Set(("lfw-py",), _splits("10fold")),
    "OxfordIIITPet": _Set(("oxford-iiit-pet",), _splits("trainval", "test")),
    "PCAM": _Set(("pcam",), _splits("train", "val", "test")),
    "Places365": _Set(
        ("categories_places365.txt", "data_256_standard", "val_256"),
        _splits("train-standard", "val", small=True),
    ),
    "QMNIST": _Set(("QMNIST/raw",), BY_TRAIN),
    "RenderedSST2": _Set(("rendered-sst2",), _splits("train", "val", "test")),
    "SEMEION": _Set(("semeion.data",), ({"download": False},)),
    "STL10": _Set(("stl10_binary",), _splits("train", "test")),
    "SUN397": _Set(("SUN397",)),
    "StanfordCars": _Set(("stanford_cars",), _splits("train", "test")),
    "USPS": _Set(("usps.bz2", "usps.t.bz2"), BY_TRAIN),
}
"""The sets that this stream reads."""

OWN = ("MNIST", "FashionMNIST", "KMNIST", "EMNIST", "CIFAR10", "CIFAR100", "SVHN", "Omniglot")
"""Sets with a stream of their own, of the same name in small letters."""


@dataclass(frozen=True, kw_only=True)
class Torchvision(TorchvisionSettings):
    """Any classification set of torchvision's by name, as in dataset = "EuroSAT".

    All labelled parts of the set (training, validation, test) are one pool, in that order; every
    seed splits each class anew. size: (height, width) that images are resized to; needed where they
    differ. channels: 1 grey, 3 RGB; None for grey where every image is. Inputs (channels, height,
    width), uint8, in [0, 1] once in a batch. Classes have the set's own names, or numbers.

    root: folder of the set's files; None for $DPMCL_DATA/NAME, or else ~/.cache/dpmcl/NAME, the
    name in small letters. download: fetch what is missing, where torchvision can. Decoded once into
    $DPMCL_CACHE. Needs torchvision (the extra `vision`), some sets SciPy or h5py as well.
    """

    dataset: str = ""
    size: tuple[Positive, Positive] | None = None
    channels: Literal[1, 3] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.dataset:
            raise SpecError(
                "stream 'torchvision' needs a dataset, as in stream.dataset = 'EuroSAT'; there are "
                f"{', '.join(SETS)}."
            )
        if self.dataset in OWN:
            raise SpecError(
                f"{self.dataset} has a stream of its own; set stream = '{self.dataset.lower()}'."
            )
        if self.dataset not in SETS:
            hint = f"There are {', '.join(SETS)}."
            raise unknown("dataset of torchvision", self.dataset, SETS, hint)

    def read(self) -> Labelled:
        root = self.folder(self.dataset.lower())
        files, parts = SETS[self.dataset]
        decoding = Decoding(size=self.size, channels=self.channels)
        found = None
        if all((root / file).exists() for file in files):
            found = load_images(_kept(self.dataset, root, decoding))
        if found is None:
            opened = open_parts(self.dataset, root, self.download, parts, files)
            found = _decode(self.dataset, opened, decoding, _kept(self.dataset, root, decoding))
        return Labelled(
            self.dataset.lower(),
            "classification",
            found.x,
            found.y,
            found.classes,
            notes=found.notes,
        )


def _kept(name: str, root: Path, decoding: Decoding) -> Path:
    """Where the set is in the cache, as long as its files (path, size, time) stay the same."""
    times = []
    for file in SETS[name].files:
        for path in sorted(_inside(root / file)):
            try:
                info = os.stat(path)  # noqa: PTH116 (there may be a million)
            except OSError as error:
                raise DataError(
                    f"{path} cannot be read ({reason(error)}); fetch it again."
                ) from None
            times.append((path, info.st_size, info.st_mtime_ns))
    return cache_folder() / cache_key("torchvision", name, times, asdict(decoding))


def _inside(path: Path) -> Iterator[str]:
    if path.is_file():
        yield str(path.resolve())
    for folder, _, names in os.walk(path.resolve()):
        yield from (os.path.join(folder, name) for name in names)  # noqa: PTH118


def _decode(name: str, parts: Sequence[Any], decoding: Decoding, path: Path) -> Images:
    """All images of all parts that have a label, in order."""
    targets: list[tuple[int, int]] = []  # the part, and the class there
    with Spool(path.parent) as spool:
        for number, part in enumerate(parts):
            for item in range(len(part)):
                where = f"{name}'s image {item} (part {number})"
                with readable(where):
                    image, target = part[item]
                if target is not None:
                    spool.add(pixels(image, where, decoding), where)
                    targets.append((number, int(target)))
        if not targets:
            raise DataError(f"{name} must have images with labels, and has none; fetch it again.")
        y, classes = _numbered([_class_names(part) for part in parts], targets)
        named = all(_class_names(part) for part in parts)
        return spool.keep(path, y, classes, notes=(OWN_NAMES,) if named else ())


def _numbered(
    names: Sequence[Sequence[str]], targets: Sequence[tuple[int, int]]
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Class numbers without gaps, in the set's order, and their names.

    By name, because some sets number the classes of each part for themselves.
    """
    if not all(names):
        y, classes = number_labels([target for _, target in targets], "targets")
        return y.numpy(), classes
    labels = [names[part][target] for part, target in targets]
    used, ordered = set(labels), dict.fromkeys(name for part in names for name in part)
    classes = tuple(name for name in ordered if name in used)
    number = {name: i for i, name in enumerate(classes)}
    return np.array([number[label] for label in labels], dtype=np.int64), classes


def _class_names(part: Any) -> list[str]:
    """The names of a part's classes, each once; none where it has none."""
    given = getattr(part, "classes", None) or getattr(part, "categories", None)
    if given is None and hasattr(part, "class_to_idx"):
        given = sorted(part.class_to_idx, key=part.class_to_idx.__getitem__)
    names = [name if isinstance(name, str) else name[0] for name in given or ()]  # and synonyms
    return [name if names.count(name) == 1 else f"{name} ({i})" for i, name in enumerate(names)]


plugin = Torchvision
