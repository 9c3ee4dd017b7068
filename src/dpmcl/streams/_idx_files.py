"""MNIST and the sets in its format: four IDX files, packed or not, known by their content."""

import bz2
import gzip
import lzma
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpmcl.data.damaged import whole
from dpmcl.exceptions import DataError, reason
from dpmcl.streams._torchvision_sets import BY_TRAIN, fetching, torchvision_class

SUMS = {
    "MNIST": {
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
    "FashionMNIST": {
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
}
"""MD5 of the unpacked files, for the sets of which they are known.

torchvision publishes those of the packed files, which change whenever somebody packs them anew, as
Debian does (its package dataset-fashion-mnist).
"""

_OPENERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


def read_idx(
    name: str,
    root: Path,
    download: bool,
    *,
    files: Sequence[str] = (),
    parts: Sequence[Mapping[str, Any]] = BY_TRAIN,
) -> list[Any]:
    """torchvision's training and test part: from files in root/NAME/raw, root/raw or root itself.

    They are fetched if there are none. Packed files are unpacked aside, for the folder may be
    read-only and is not ours to change.
    files: the names of the unpacked files, where torchvision does not list them. parts: arguments
    of torchvision's class. Raises DataError for files that are missing, damaged or not the
    published ones, as far as sums of them are known.
    """
    cls = torchvision_class(name)
    packed = {} if files else {Path(file).stem: md5 for file, md5 in cls.resources}
    raw = root / name / "raw"
    folders = (raw, root / "raw", root)
    found = {file: _find(file, folders, name) for file in files or packed}
    in_place = all(path == raw / file for file, path in found.items())
    if all(found.values()):
        with tempfile.TemporaryDirectory() as aside:
            inner = Path(aside) / name / "raw"
            inner.mkdir(parents=True)
            for file, path in found.items():
                assert path is not None
                plain = path if in_place else _copy(path, inner / file)
                _check(name, file, path, plain, packed.get(file))
            return _opened(cls, root if in_place else Path(aside), parts, raw)
    names = ", ".join(f"{file}.gz" for file in found)
    looked = f"{name} is not in {raw} (looked for {names}, packed or not, there and in {root})"
    way_out = f"put them there, or set stream.root to the folder that holds them or {name}/raw"
    if not download:
        raise DataError(f"{looked}; {way_out}, or stream.download = true.")
    with fetching(looked, way_out):
        root.mkdir(parents=True, exist_ok=True)
        return [cls(root, **part, download=True) for part in parts]


def _find(file: str, folders: Sequence[Path], name: str) -> Path | None:
    """A file of a set, packed or not; packed first where only then its sum is known."""
    plain, *rest = ("", *_OPENERS)
    ends = (plain, *rest) if name in SUMS else (*rest, plain)
    forms = (file, file.replace("-idx", ".idx"))  # the second is Kaggle's
    paths = (folder / f"{form}{end}" for folder in folders for end in ends for form in forms)
    return next((path for path in paths if path.is_file()), None)


def _opened(cls: Any, root: Path, parts: Sequence[Mapping[str, Any]], told: Path) -> list[Any]:
    try:
        return [cls(root, **part) for part in parts]
    except Exception as error:  # a damaged file, whatever torchvision's reader makes of it
        raise DataError(
            f"{told} must hold the published files, and they cannot be read ({reason(error)}); "
            "replace them by those."
        ) from None


def _copy(path: Path, target: Path) -> Path:
    """Copy a file, unpacked."""
    opener = _OPENERS.get(path.suffix, open)
    with whole(str(path)), opener(path, "rb") as content, target.open("wb") as file:
        shutil.copyfileobj(content, file)
    return target


def _check(name: str, file: str, path: Path, plain: Path, packed: str | None) -> None:
    """Refuse a file that is not the published one, as far as that can be known.

    path: the file that the user has. plain: the same, unpacked. packed: the published MD5 of the
    packed one. Raises DataError.
    """
    from torchvision.datasets.utils import calculate_md5

    md5 = calculate_md5(plain)
    if name in SUMS:
        if md5 != SUMS[name][file]:
            raise DataError(
                f"{path} must hold {name}'s published file (MD5 {SUMS[name][file]}, unpacked), and "
                "does not; replace it by that, or give images of your own as stream 'images'."
            )
        return
    others = [other for other, sums in SUMS.items() if md5 in sums.values()]
    if others:
        raise DataError(f"{path} must hold {name}'s file, and is {others[0]}'s; replace it.")
    if path.suffix == ".gz" and packed and calculate_md5(path) != packed:
        raise DataError(
            f"{path} must be the published file (MD5 {packed}), and is not; replace it. If it was "
            "only packed anew, unpack it: unpacked files are read without this check."
        )
