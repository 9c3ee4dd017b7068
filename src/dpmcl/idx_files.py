"""MNIST and the sets in its format: four IDX files, gzipped or not, in a folder NAME/raw."""

import tempfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpmcl.exceptions import DataError
from dpmcl.torchvision_sets import BY_TRAIN, fetching, reason, torchvision_class


def read_idx(
    name: str,
    root: Path,
    download: bool,
    plain_sums: Mapping[str, str] | None = None,
    *,
    files: Sequence[str] = (),
    parts: Sequence[Mapping[str, Any]] = BY_TRAIN,
) -> list[Any]:
    """torchvision's training and test part: from files in root/NAME/raw, or fetched.

    Gzipped files are unpacked aside, for the folder may be read-only and is not ours to change.
    plain_sums: MD5 of the unpacked files, checked whichever form the files have; None for the sums
    that torchvision publishes, of the gzipped ones. files: the names of the gzipped files, where
    torchvision does not list them. parts: arguments of torchvision's class.
    Raises DataError for files that are missing, damaged or not the published ones.
    """
    cls = torchvision_class(name)
    raw = root / name / "raw"
    published = {} if files else dict(cls.resources)
    packed = [raw / file for file in files or published]
    plain = [path.with_suffix("") for path in packed]
    if all(path.is_file() for path in plain):
        if plain_sums is not None:
            for path in plain:
                _check(path, path, plain_sums[path.name], ", unpacked")
        return _opened(cls, root, parts, raw)
    if all(path.is_file() for path in packed):
        with tempfile.TemporaryDirectory() as aside:
            inner = Path(aside) / name / "raw"
            inner.mkdir(parents=True)
            for path in packed:
                if plain_sums is None and path.name in published:
                    _check(path, path, published[path.name], "")
                _unpack(path, inner)
                if plain_sums is not None:
                    _check(inner / path.stem, path, plain_sums[path.stem], ", unpacked")
            return _opened(cls, Path(aside), parts, raw)
    names = ", ".join(path.name for path in packed)
    if not download:
        raise DataError(
            f"{name} is not in {raw} (looked for {names}, gzipped or not); set stream.root to the "
            f"folder that holds {name}/raw, or stream.download = true."
        )
    way_out = f"put {names} there, or set stream.root to the folder that holds {name}/raw"
    with fetching(f"{name} is not in {raw}", way_out):
        root.mkdir(parents=True, exist_ok=True)
        return [cls(root, **part, download=True) for part in parts]


def _opened(cls: Any, root: Path, parts: Sequence[Mapping[str, Any]], told: Path) -> list[Any]:
    try:
        return [cls(root, **part) for part in parts]
    except Exception as error:  # a damaged file, whatever torchvision's reader makes of it
        raise DataError(
            f"{told} must hold the published files, and they cannot be read ({reason(error)}); "
            "remove them and fetch them again."
        ) from None


def _unpack(path: Path, folder: Path) -> None:
    from torchvision.datasets.utils import extract_archive

    try:
        extract_archive(path, folder, remove_finished=False)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be unpacked ({reason(error)}); fetch it again.") from None


def _check(path: Path, told: Path, md5: str, form: str) -> None:
    """told: the file that the user has."""
    from torchvision.datasets.utils import check_integrity

    if not check_integrity(path, md5):
        raise DataError(
            f"{told} must hold the published file (MD5 {md5}{form}), and does not; "
            "remove it and fetch it again."
        )
