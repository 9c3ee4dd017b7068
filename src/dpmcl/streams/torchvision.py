"""Any other classification set of torchvision's."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpmcl.exceptions import DataError, SpecError, unknown
from dpmcl.image_cache import Images, Spool, cache_folder, cache_key, load_images
from dpmcl.images import Decoding, pixels, readable
from dpmcl.labelled import Labelled
from dpmcl.labels import number_labels
from dpmcl.settings import Positive
from dpmcl.torchvision_sets import BY_TRAIN, TorchvisionSettings, open_parts


class _Set(NamedTuple):
    """files: what the set has in root. parts: arguments of its class; together they are the pool."""

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
