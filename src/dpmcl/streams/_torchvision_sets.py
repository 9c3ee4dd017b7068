"""torchvision's classification sets, whose parts together become one pool of labelled data.

torchvision finds, downloads and reads the files.
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

from dpmcl.data.labelled import Labelled
from dpmcl.data.labels import number_labels
from dpmcl.data.read_errors import reading
from dpmcl.data.readers.entries import ARCHIVES
from dpmcl.data.sources import expand_home
from dpmcl.exceptions import DataError, DpmclError, SpecError, needed_for, reason
from dpmcl.streams._settings import LabelledSettings

Parts = Sequence[Mapping[str, Any]]
"""Arguments of torchvision's class for each part of a set. All parts form the pool."""

BY_TRAIN: Parts = ({"train": True}, {"train": False})
"""Parts of a set that has a training and a test part."""

DECLARED = "class names: the data set's own, in its order"
"""Note about a set that names its classes."""

UNCHECKED = "files: read unchecked, for no sums of their content are published"
"""Note about a set whose files have no published sums."""


@dataclass(frozen=True, kw_only=True)
class TorchvisionSettings(LabelledSettings):
    """Settings of a data set of torchvision.

    Attributes:
        root: Folder of the files; None for $DPMCL_DATA/NAME, or ~/.cache/dpmcl/NAME if DPMCL_DATA
            is not set.
        download: Whether to download missing files.
    """

    network: ClassVar[str] = "lenet"
    places: ClassVar[tuple[str, ...]] = ("root", "download")

    root: str | None = None
    download: bool = True

    def folder(self, name: str) -> Path:
        """Return the folder of a set's files.

        Args:
            name: Name of the set, in lower case.

        Raises:
            DataError: The path is invalid, or may not be entered.
        """
        with reading((self.root or name)[:200], "correct stream.root"):
            home = os.environ.get("DPMCL_DATA") or Path.home() / ".cache" / "dpmcl"
            folder = Path(self.root).expanduser() if self.root else Path(home) / name
            folder.exists()  # raises if the name is too long, or the folder may not be entered
        return folder


@dataclass(frozen=True, kw_only=True)
class ImageFilesSettings(TorchvisionSettings):
    """Settings of a data set of torchvision that can also be read from image files.

    Attributes:
        images: Folder, zip or tar of image files; None for torchvision's files.
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
        """Return the path of `images`, or of an archive of images in the set's folder, or None.

        Args:
            folder: Folder of the set's files.
            stem: Name of the archive without its suffix.
        """
        if self.images is not None:
            return Path(expand_home(self.images))
        archives = (folder / f"{stem}{suffix}" for suffix in ARCHIVES)
        return next((path for path in archives if path.is_file()), None)


def torchvision_class(name: str) -> Any:
    """Return torchvision's class of a data set.

    Args:
        name: Name of the class.

    Raises:
        DataError: torchvision is not installed, or has no such class.

    >>> torchvision_class("FashionMNIST").__name__
    'FashionMNIST'
    """
    with needed_for(name, "dpmcl[vision]", DataError):
        from torchvision import datasets
    if not hasattr(datasets, name):
        raise DataError(f"The installed torchvision has no {name}; use a newer one.")
    return getattr(datasets, name)


def open_parts(name: str, folder: Path, parts: Parts, where: str) -> list[Any]:
    """Return torchvision's data sets for the parts of a set, from local files.

    Args:
        name: Name of torchvision's class.
        folder: Root from which torchvision reads.
        parts: Arguments of the class for each part.
        where: Name of the files in errors.

    Raises:
        DataError: The files are damaged, or a package that reads them is not installed.
    """
    way_out = (
        "replace its files by the published ones, or set stream.root to a folder that is empty, to "
        "fetch them"
    )
    with reading(f"{name} in {where}", way_out, anything=True):
        return _sets_of(name, folder, parts)


def fetch_parts(
    name: str, root: Path, parts: Parts, *, download: bool, state: str, way_out: str
) -> list[Any]:
    """Download a set, and return torchvision's data sets for its parts.

    Archives cannot write outside of the set's folder.

    Args:
        name: Name of torchvision's class.
        root: Folder for the files.
        parts: Arguments of the class for each part.
        download: Whether the user allows the download.
        state: Description of what is missing, for errors.
        way_out: What the user can do instead, for errors.

    Raises:
        DataError: The user does not allow the download, or it fails.
    """
    if not download:
        raise DataError(f"{state}; {way_out}, or stream.download = true.")
    if hasattr(tarfile, "data_filter"):  # Python 3.11.4
        tarfile.TarFile.extraction_filter = staticmethod(tarfile.data_filter)
    try:
        root.mkdir(parents=True, exist_ok=True)
        return _sets_of(name, root, [{**part, "download": True} for part in parts])
    except DpmclError:
        raise
    except Exception as error:  # no network, no room, a set that it does not fetch, ...
        raise DataError(f"{state} and could not be fetched ({reason(error)}); {way_out}.") from None
    finally:
        if "extraction_filter" in vars(tarfile.TarFile):
            del tarfile.TarFile.extraction_filter


def read_arrays_of(name: str, parts: Sequence[Any]) -> Labelled:
    """Return the pool of a set whose parts hold their images in memory.

    Args:
        name: Name of the set, for titles.
        parts: torchvision's data sets, with `data`, and `targets` or `labels`.

    Raises:
        DataError: The images of the parts differ in size, or a label has no class.
    """
    with reading(f"'{name}'", "fetch its files again"):  # images of two sizes
        x = torch.cat([_pixels(part.data) for part in parts])
    labels = [part.targets if hasattr(part, "targets") else part.labels for part in parts]
    return pool_of_parts(name, parts, x, labels)


def pool_of_parts(name: str, parts: Sequence[Any], x: Tensor, labels: Sequence[Any]) -> Labelled:
    """Return images of a set as one pool, with classes in the set's order.

    Classes have the set's names, or numbers if it has none. They are matched by name, because some
    sets number the classes of each part separately. Classes without images are left out.

    Args:
        name: Name of the set, for titles.
        parts: torchvision's data sets.
        x: Images of all parts, in order.
        labels: Class number of each image, for each part.

    Raises:
        DataError: A label has no class.
    """
    names = [_class_names(part) for part in parts]
    numbers = [torch.as_tensor(np.asarray(values), dtype=torch.int64) for values in labels]
    if not all(names):
        return Labelled(name, "classification", x, *number_labels(torch.cat(numbers), "targets"))
    ordered = list(dict.fromkeys(name for part in names for name in part))
    for part, values in zip(names, numbers, strict=True):
        if len(invalid := values[(values < 0) | (values >= len(part))]):
            raise DataError(
                f"Labels of '{name}' must be numbers of its {len(part)} classes, from 0, got "
                f"{int(invalid[0])}; fetch its files again."
            )
    position = [torch.tensor([ordered.index(name) for name in part]) for part in names]
    y = torch.cat([at[values] for at, values in zip(position, numbers, strict=True)])
    used, number = y.unique(return_inverse=True)
    classes = tuple(ordered[k] for k in used.tolist())
    return Labelled(name, "classification", x, number, classes, notes=(DECLARED,))


def _sets_of(name: str, root: Path, parts: Parts) -> list[Any]:
    """Return torchvision's data sets for parts; raise DataError if they need another package."""
    cls = torchvision_class(name)
    try:
        return [cls(root, **part) for part in parts]
    except Exception as error:
        missing = error if isinstance(error, ImportError) else error.__context__  # PCAM hides it
        if isinstance(missing, ImportError):
            raise DataError(f"{name} needs {missing.name}: pip install {missing.name}.") from None
        raise


def _class_names(part: Any) -> list[str]:
    """Return the names of a part's classes, made unique; [] if it has none."""
    listed = getattr(part, "classes", None) or getattr(part, "categories", None)
    if listed is None and hasattr(part, "class_to_idx"):
        listed = sorted(part.class_to_idx, key=part.class_to_idx.__getitem__)
    names = [name if isinstance(name, str) else name[0] for name in listed or ()]  # not synonyms
    return [name if names.count(name) == 1 else f"{name} ({i})" for i, name in enumerate(names)]


def _pixels(data: Any) -> Tensor:
    """Return images as uint8 (rows, channels, height, width)."""
    x = data if isinstance(data, Tensor) else torch.from_numpy(np.ascontiguousarray(data))
    if x.dim() == 3:
        return x[:, None]
    return x if x.shape[1] in (1, 3) else x.permute(0, 3, 1, 2).contiguous()
