"""torchvision's classification sets: where their files are, and how all of their parts make a pool.

torchvision knows the files, their sums and where to fetch them; what it reads becomes `Labelled`.
"""

import inspect
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from dpmcl.data.labelled import Labelled
from dpmcl.data.readers.images import data_folder
from dpmcl.exceptions import DataError, SpecError, reason
from dpmcl.streams._settings import LabelledSettings

BY_TRAIN: tuple[dict[str, Any], ...] = ({"train": True}, {"train": False})
"""The parts of a set with one to train and one to test, as arguments of its class."""

OWN_NAMES = "class names: the data set's own, in its order"
"""The note on a set that names its classes."""


@dataclass(frozen=True, kw_only=True)
class TorchvisionSettings(LabelledSettings):
    """A set of torchvision's.

    root: folder of its files, as torchvision lays them out; None for $DPMCL_DATA/NAME, or else
    ~/.cache/dpmcl/NAME. download: fetch what is missing.
    """

    network: ClassVar[str] = "lenet"
    places: ClassVar[tuple[str, ...]] = ("root", "download")

    root: str | None = None
    download: bool = True

    def folder(self, name: str) -> Path:
        """Where the files of a set are. Raises DataError for a path that cannot be."""
        try:
            place = Path(self.root).expanduser() if self.root else data_folder(name)
            place.exists()  # raises for a name too long, and for a folder that may not be entered
        except (OSError, RuntimeError) as error:
            raise DataError(
                f"{(self.root or name)[:200]} cannot be read ({reason(error)}); correct "
                "stream.root."
            ) from None
        return place


@dataclass(frozen=True, kw_only=True)
class ImageFilesSettings(TorchvisionSettings):
    """A set of torchvision's that may come as image files instead.

    images: a folder, zip or tar of them.
    """

    images: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.images is not None and self.root is not None:
            raise SpecError(
                f"images and root cannot both be set, got '{self.images}' and '{self.root}'; "
                "leave one out."
            )

    def place(self, name: str, file: str) -> tuple[Path, bool]:
        """Where the images are: files of any origin (True), or torchvision's folder (False).

        file: the one of any origin that is looked for in the usual folder.
        """
        if self.images is not None:
            return Path(self.images), True
        folder = self.folder(name)
        own = folder / file
        return (own, True) if self.root is None and own.is_file() else (folder, False)


def torchvision_class(name: str) -> Any:
    """The class of a set. Raises DataError without torchvision, or where it has none.

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


def open_parts(
    name: str,
    root: Path,
    download: bool,
    parts: Sequence[Mapping[str, Any]],
    files: Sequence[str],
) -> list[Any]:
    """torchvision's objects for the parts of a set, fetched if they are missing.

    files: what the set has in root. Raises DataError where files are missing, damaged, or cannot be
    fetched, and where a package that the set needs is not there.
    """
    cls = torchvision_class(name)
    looked = ", ".join(files)
    # torchvision is not asked for what is not there: some of its classes make folders then.
    if all((root / file).exists() for file in files):
        try:
            return [cls(root, **part) for part in parts]
        except ImportError as error:
            raise DataError(f"{name} needs {error.name}: pip install {error.name}.") from None
        except Exception as error:  # torchvision raises whatever its readers stumble on
            _check_sums(root, _sums(cls))
            state = f"cannot be read from {root} ({reason(error)})"
    else:
        state = f"is not in {root} (looked for {looked})"
    if not download:
        raise DataError(
            f"{name} {state}; set stream.root to the folder that holds {looked}{_urls(cls)}, or "
            "stream.download = true."
        )
    arguments = inspect.signature(cls).parameters.values()
    if not any(a.name == "download" or a.kind is a.VAR_KEYWORD for a in arguments):
        raise DataError(
            f"{name} {state}, and torchvision cannot fetch it; set stream.root to the folder that "
            f"holds {looked}."
        )
    with fetching(f"{name} {state}", f"put {looked} there{_urls(cls)}"):
        root.mkdir(parents=True, exist_ok=True)
        return [cls(root, **{**part, "download": True}) for part in parts]


@contextmanager
def fetching(state: str, way_out: str) -> Iterator[None]:
    """Errors while files are fetched and unpacked become DataErrors; nothing leaves their folder.

    state: what is missing, and where. way_out: what the user can do.
    """
    if hasattr(tarfile, "data_filter"):  # Python 3.11.4
        tarfile.TarFile.extraction_filter = staticmethod(tarfile.data_filter)
    try:
        yield
    except ImportError as error:
        raise DataError(
            f"{state}, and reading it needs {error.name}: pip install {error.name}."
        ) from None
    except Exception as error:  # no network, no room, no right to write, a damaged archive, ...
        raise DataError(f"{state} and could not be fetched ({reason(error)}); {way_out}.") from None
    finally:
        if "extraction_filter" in vars(tarfile.TarFile):
            del tarfile.TarFile.extraction_filter


def check_sum(path: Path, md5: str) -> None:
    """Raises DataError for a file that is not the published one."""
    from torchvision.datasets.utils import check_integrity

    if not check_integrity(path, md5):
        raise DataError(
            f"{path} must be the published file (MD5 {md5}), and is not; replace it by that, or "
            "give images of your own as stream 'images'."
        )


def _check_sums(root: Path, sums: Mapping[str, str]) -> None:
    for file, md5 in sums.items():
        if (root / file).is_file():
            check_sum(root / file, md5)


def _sums(cls: Any) -> dict[str, str]:
    """The MD5 of a set's files in root, as far as torchvision's class says."""
    if hasattr(cls, "split_list"):
        return {file: md5 for _, file, md5 in cls.split_list.values()}
    if hasattr(cls, "md5_checksum"):
        return {cls.filename: cls.md5_checksum}
    listed = [*getattr(cls, "train_list", ()), *getattr(cls, "test_list", ())]
    return {f"{cls.base_folder}/{file}": md5 for file, md5 in listed}


def _urls(cls: Any) -> str:
    """Where a set says that its files come from."""
    url = getattr(cls, "url", getattr(cls, "_URL", None))
    return f" (from {url})" if isinstance(url, str) and url else ""


def read_arrays_of(name: str, parts: Sequence[Any]) -> Labelled:
    """The pool of a set whose parts hold `data` and `targets` or `labels` in memory, in order.

    Classes are in the set's order, named as there, or by number; those without images are left out.
    Raises DataError for parts whose images differ in size, and for labels that have no class.
    """
    images = [_pixels(part.data) for part in parts]
    sizes = sorted({"x".join(str(side) for side in x.shape[2:]) for x in images})
    if len(sizes) > 1:
        raise DataError(
            f"All parts of '{name}' must have images of one size, got {' and '.join(sizes)}; fetch "
            "its files again."
        )
    x = torch.cat(images)
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
    notes = (OWN_NAMES,) if names else ()
    return Labelled(name, "classification", x, number, classes, notes=notes)


def _pixels(data: Any) -> Tensor:
    """uint8 (rows, channels, height, width)."""
    x = data if isinstance(data, Tensor) else torch.from_numpy(np.ascontiguousarray(data))
    if x.dim() == 3:
        return x[:, None]
    return x if x.shape[1] in (1, 3) else x.permute(0, 3, 1, 2).contiguous()


def _labels(part: Any) -> Tensor:
    values = part.targets if hasattr(part, "targets") else part.labels
    return torch.as_tensor(np.asarray(values), dtype=torch.int64)
