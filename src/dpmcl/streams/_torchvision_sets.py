"""torchvision's classification sets: where their files are, and how all of their parts make a pool.

torchvision knows the files and where to fetch them; what it reads becomes `Labelled`.
"""

import os
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from dpmcl.data.damaged import whole
from dpmcl.data.labelled import Labelled
from dpmcl.data.readers.entries import ARCHIVES
from dpmcl.data.sources import at_home
from dpmcl.exceptions import DataError, SpecError, reason
from dpmcl.streams._settings import LabelledSettings

Parts = Sequence[Mapping[str, Any]]
"""Arguments of a class of torchvision's for each part of a set; together they are the pool."""

BY_TRAIN: Parts = ({"train": True}, {"train": False})
"""The parts of a set with one to train and one to test."""

DECLARED = "class names: the data set's own, in its order"
"""The note on a set that names its classes."""

UNCHECKED = "files: read unchecked, for no sums of their content are published"
"""The note on a set whose content nobody publishes the sums of."""


@dataclass(frozen=True, kw_only=True)
class TorchvisionSettings(LabelledSettings):
    """A set of torchvision's.

    Attributes:
        root: Folder of its files; None for $DPMCL_DATA/NAME, or else ~/.cache/dpmcl/NAME.
        download: Fetch what is missing.
    """

    network: ClassVar[str] = "lenet"
    places: ClassVar[tuple[str, ...]] = ("root", "download")

    root: str | None = None
    download: bool = True

    def folder(self, name: str) -> Path:
        """Return the folder of a set's files.

        Args:
            name: Of the set, in small letters.

        Raises:
            DataError: There can be no such path.
        """
        with whole((self.root or name)[:200], "correct stream.root"):
            home = os.environ.get("DPMCL_DATA") or Path.home() / ".cache" / "dpmcl"
            folder = Path(self.root).expanduser() if self.root else Path(home) / name
            folder.exists()  # raises for a name too long, and for a folder that may not be entered
        return folder


@dataclass(frozen=True, kw_only=True)
class ImageFilesSettings(TorchvisionSettings):
    """A set of torchvision's that may come as image files instead.

    Attributes:
        images: A folder, zip or tar of them.
    """

    images: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.images is not None and self.root is not None:
            raise SpecError(
                f"images and root cannot both be set, got '{self.images}' and '{self.root}'; "
                "leave one out."
            )

    def image_files(self, folder: Path, stem: str) -> Path | None:
        """Return the image files that are named, or an archive of them in the set's folder.

        Args:
            folder: Of the set's files.
            stem: Name of the archive without its suffix.
        """
        if self.images is not None:
            return Path(at_home(self.images))
        archives = (folder / f"{stem}{suffix}" for suffix in ARCHIVES)
        return next((path for path in archives if path.is_file()), None)


def torchvision_class(name: str) -> Any:
    """Return the class of a set.

    Args:
        name: Of the class.

    Raises:
        DataError: torchvision is not installed, or has no such class.

    >>> torchvision_class("FashionMNIST").__name__
    'FashionMNIST'
    """
    try:
        from torchvision import datasets
    except ImportError:
        raise DataError(f"{name} needs torchvision: pip install 'dpmcl[vision]'.") from None
    if not hasattr(datasets, name):
        raise DataError(f"The installed torchvision has no {name}; use a newer one.")
    return getattr(datasets, name)


def open_parts(name: str, folder: Path, parts: Parts, where: str) -> list[Any]:
    """Return torchvision's objects for the parts of a set, from files that are there.

    Args:
        name: Of torchvision's class.
        folder: The root that torchvision reads from.
        parts: Arguments of the class for each part.
        where: Names the files in errors.

    Raises:
        DataError: The files are damaged, or a package that reads them is not installed.
    """
    cls = torchvision_class(name)
    try:
        return [cls(folder, **part) for part in parts]
    except ImportError as error:
        raise DataError(f"{name} needs {error.name}: pip install {error.name}.") from None
    except Exception as error:  # torchvision raises whatever its readers stumble on
        raise DataError(
            f"{name} cannot be read from {where} ({reason(error)}); replace its files by the "
            "published ones, or set stream.root to a folder that is empty, to fetch them."
        ) from None


def fetch_parts(
    name: str, root: Path, parts: Parts, *, download: bool, state: str, way_out: str
) -> list[Any]:
    """Fetch a set, and return torchvision's objects for its parts. Nothing leaves its folder.

    Args:
        name: Of torchvision's class.
        root: Where its files go.
        parts: Arguments of the class for each part.
        download: Whether the user allows it.
        state: What is missing, for errors.
        way_out: What the user can do instead.

    Raises:
        DataError: It is not allowed, or torchvision cannot fetch the set.
    """
    cls = torchvision_class(name)
    if not download:
        raise DataError(f"{state}; {way_out}, or stream.download = true.")
    if hasattr(tarfile, "data_filter"):  # Python 3.11.4
        tarfile.TarFile.extraction_filter = staticmethod(tarfile.data_filter)
    try:
        root.mkdir(parents=True, exist_ok=True)
        return [cls(root, **{**part, "download": True}) for part in parts]
    except Exception as error:  # no network, no room, a set that it does not fetch, ...
        raise DataError(f"{state} and could not be fetched ({reason(error)}); {way_out}.") from None
    finally:
        if "extraction_filter" in vars(tarfile.TarFile):
            del tarfile.TarFile.extraction_filter


def read_arrays_of(name: str, parts: Sequence[Any]) -> Labelled:
    """Return the pool of a set whose parts hold their images in memory.

    Classes are in the set's order, named as there, or by number; those without images are left out.

    Args:
        name: Of the set, for titles.
        parts: torchvision's objects, with `data`, and `targets` or `labels`.

    Raises:
        DataError: The parts' images differ in size, or a label has no class.
    """
    with whole(f"'{name}'", "fetch its files again"):  # images of two sizes
        x = torch.cat([_pixels(part.data) for part in parts])
    y = torch.cat([_labels(part) for part in parts])
    used, number = y.unique(return_inverse=True)
    names = getattr(parts[0], "classes", None)
    if names and (int(used.min()) < 0 or int(used.max()) >= len(names)):
        odd = used[(used < 0) | (used >= len(names))][0]
        raise DataError(
            f"Labels of '{name}' must be numbers of its {len(names)} classes, from 0, got "
            f"{int(odd)}; fetch its files again."
        )
    classes = tuple(names[c] if names else str(c) for c in used.tolist())
    notes = (DECLARED,) if names else ()
    return Labelled(name, "classification", x, number, classes, notes=notes)


def _pixels(data: Any) -> Tensor:
    """Return images as uint8 (rows, channels, height, width)."""
    x = data if isinstance(data, Tensor) else torch.from_numpy(np.ascontiguousarray(data))
    if x.dim() == 3:
        return x[:, None]
    return x if x.shape[1] in (1, 3) else x.permute(0, 3, 1, 2).contiguous()


def _labels(part: Any) -> Tensor:
    """Return labels as int64 (rows,)."""
    values = part.targets if hasattr(part, "targets") else part.labels
    return torch.as_tensor(np.asarray(values), dtype=torch.int64)
