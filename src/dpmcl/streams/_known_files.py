"""Files of published data sets, found by their content in any folder, archive and packing."""

import bz2
import gzip
import hashlib
import lzma
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, cast

from dpmcl.data.labelled import Labelled
from dpmcl.data.read_errors import reading
from dpmcl.data.readers.entries import ARCHIVES, Entry, disk_entry, entries
from dpmcl.exceptions import DataError
from dpmcl.streams._torchvision_sets import (
    BY_TRAIN,
    UNCHECKED,
    Parts,
    TorchvisionSettings,
    fetch_parts,
    open_parts,
    read_arrays_of,
)

MNIST = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
"""MD5 sums of MNIST's unpacked files.

torchvision has those of the packed files, which change when somebody packs them again, as Debian
does in its package dataset-fashion-mnist.
"""

FASHION_MNIST = {
    "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
}
"""MD5 sums of Fashion-MNIST's unpacked files."""

_OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_LARGEST = 2**30  # bytes; EMNIST's largest file has 547 million


@dataclass(frozen=True, kw_only=True)
class KnownSet:
    """A data set of torchvision that is recognised by the content of its files.

    Attributes:
        name: Name of torchvision's class.
        sums: MD5 sum of each unpacked file, by its name; "" if none is published.
        folder: Folder below its root in which torchvision looks for the files.
        parts: Arguments of torchvision's class for each part of the set. All parts form the pool.
        instead: Other settings that the user could change, for errors.
    """

    name: str
    sums: Mapping[str, str]
    folder: str
    parts: Parts = BY_TRAIN
    instead: str = ""

    def read(self, settings: TorchvisionSettings) -> Labelled:
        """Return all parts of the set as one pool, in order.

        Args:
            settings: Folder of the files, and whether to download them.

        Raises:
            DataError: The files cannot be opened (see `open`), or images and labels do not match.
        """
        name = self.name.lower()
        data = read_arrays_of(name, self.open(settings.folder(name), settings.download))
        return data if all(self.sums.values()) else replace(data, notes=(*data.notes, UNCHECKED))

    def open(self, root: Path, download: bool) -> list[Any]:
        """Return torchvision's data sets for the parts of the set.

        The files may be in any folder, zip or tar in `root`, packed or not. torchvision reads them
        from a temporary copy, because `root` may be read-only and belongs to the user.

        Args:
            root: Folder or archive.
            download: Whether to download the set into `root` if files are missing.

        Raises:
            DataError: Files are missing or damaged, cannot be downloaded, or differ from the
                published sums, if there are any.
        """
        with tempfile.TemporaryDirectory() as temporary:
            target = Path(temporary) / self.folder
            target.mkdir(parents=True, exist_ok=True)
            errors = self._gather(root, target)
            missing = [file for file in self.sums if not (target / file).exists()]
            if not missing:
                return open_parts(self.name, Path(temporary), self.parts, str(root))
        for file in missing:
            if file in errors:
                raise errors[file]
        return fetch_parts(
            self.name,
            root,
            self.parts,
            download=download,
            state=f"{self.name} is not in {root} (looked for {', '.join(missing)}, packed or not)",
            way_out="set stream.root to a folder or archive that holds them" + self.instead,
        )

    def _gather(self, root: Path, target: Path) -> dict[str, DataError]:
        """Copy the correct files to a folder, and return the errors of the others by file name."""
        errors: dict[str, DataError] = {}
        for source in _sources(root):
            try:
                for entry in source:
                    self._copy_entry(entry, target, errors)
            except DataError as error:  # an archive that is damaged or unsafe
                errors = dict.fromkeys(self.sums, error) | errors
            if all((target / file).exists() for file in self.sums):
                break
        return errors

    def _copy_entry(self, entry: Entry, target: Path, errors: dict[str, DataError]) -> None:
        """Copy a file if it is still missing. An error is added to `errors`."""
        file, opener = _unpacked(entry.path.name)
        if entry.is_folder or file not in self.sums or (target / file).exists():
            return
        try:
            with reading(entry.where), entry.open() as packed, opener(packed) as content:
                data = content.read(_LARGEST)
                self._check_content(data, file, entry.where)
                (target / file).write_bytes(data)
        except DataError as error:
            errors.setdefault(file, error)

    def _check_content(self, data: bytes, file: str, where: str) -> None:
        """Raise DataError if the content of a file is not the published one."""
        md5, published = hashlib.md5(data, usedforsecurity=False).hexdigest(), self.sums[file]
        if published and md5 != published:
            raise DataError(
                f"{where} must hold {self.name}'s published file (MD5 {published}, unpacked), and "
                "does not; replace it by that, or give images of your own as stream 'images'."
            )
        for name, sums in (("MNIST", MNIST), ("FashionMNIST", FASHION_MNIST)):
            if not published and md5 in sums.values():
                raise DataError(
                    f"{where} must hold {self.name}'s file, and is {name}'s; replace it."
                )


def _sources(root: Path) -> Iterator[Iterable[Entry]]:
    """Yield the files in a folder, up to three levels deep, then those in each archive found."""
    with reading(str(root), "correct stream.root"):
        below = [path for depth in ("*", "*/*", "*/*/*") for path in sorted(root.glob(depth))]
        files = [path for path in (root, *below) if path.is_file()]
    archives = [path for path in files if path.name.lower().endswith(ARCHIVES)]
    yield [disk_entry(p, PurePosixPath(p.name)) for p in files if p not in archives]
    yield from map(entries, archives)


def _unpacked(name: str) -> tuple[str, Any]:
    """Return the name of the unpacked file, and a function that opens the packed one.

    The dot in the names of Kaggle's copies, train-images.idx3-ubyte, becomes a hyphen.
    """
    path = Path(name.replace(".idx", "-idx"))
    opener = _OPENERS.get(path.suffix)
    return (path.stem, opener) if opener else (path.name, cast(Any, lambda file: file))
