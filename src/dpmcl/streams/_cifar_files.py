"""CIFAR10 and CIFAR100: pickled batches, which are opened only after their sums were checked."""

import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from dpmcl.data.damaged import whole
from dpmcl.exceptions import DataError
from dpmcl.streams._torchvision_sets import BY_TRAIN, check_sum, fetching, torchvision_class

_ARCHIVES = (".tar.gz", ".tgz", ".tar", ".tar.xz", ".tar.bz2")
_LARGEST = 2**28  # bytes; CIFAR100's training part has 155 million


def read_cifar(name: str, root: Path, download: bool, instead: str = "") -> list[Any]:
    """torchvision's training and test part, fetched if files are missing.

    They are taken from the published folder in root, from root itself, or from an archive there,
    which is unpacked aside, for the folder may be read-only and is not ours to change.
    instead: what else a user could set, for errors. Raises DataError for files that are missing or
    not the published ones.
    """
    cls = torchvision_class(name)
    folder = root / cls.base_folder
    listed = [*cls.train_list, *cls.test_list, [cls.meta["filename"], cls.meta["md5"]]]
    sums: dict[str, str] = dict(listed)
    for file, md5 in sums.items():
        if (folder / file).is_file():
            check_sum(folder / file, md5)
    if all((folder / file).is_file() for file in sums):
        return [cls(root, **part) for part in BY_TRAIN]
    archives = [root / f"{cls.filename.removesuffix('.tar.gz')}{end}" for end in _ARCHIVES]
    archive = next((path for path in archives if path.is_file()), None)
    loose = all((root / file).is_file() for file in sums)
    if archive or loose:
        with tempfile.TemporaryDirectory() as aside:
            inner = Path(aside) / cls.base_folder
            inner.mkdir()
            if loose:
                for file, md5 in sums.items():
                    check_sum(root / file, md5)
                    shutil.copyfile(root / file, inner / file)
            elif archive:
                _unpack(archive, inner, sums)
            return [cls(aside, **part) for part in BY_TRAIN]
    names = ", ".join(sums)
    if not download:
        raise DataError(
            f"{name} is not in {folder} (looked for {names}); set stream.root to the folder that "
            f"holds {cls.base_folder} or {cls.filename}, {instead}or stream.download = true."
        )
    or_else = f", or set {instead.rstrip(', ')}" if instead else ""
    with fetching(f"{name} is not in {folder}", f"put {names} there{or_else}"):
        root.mkdir(parents=True, exist_ok=True)
        return [cls(root, train=True, download=True), cls(root, train=False)]


def _unpack(archive: Path, folder: Path, sums: Mapping[str, str]) -> None:
    """Write the files that have these sums, and no others. Raises DataError if one is missing."""
    from torchvision.datasets.utils import check_md5

    with whole(str(archive)), tarfile.open(archive, "r:*") as tar:
        for member in tar:
            file = PurePosixPath(member.name).name
            if file in sums and member.isfile() and member.size <= _LARGEST:
                content = tar.extractfile(member)
                assert content is not None
                (folder / file).write_bytes(content.read())
    for file, md5 in sums.items():
        if not ((folder / file).is_file() and check_md5(folder / file, md5)):
            raise DataError(
                f"{archive} must hold the published file {file} (MD5 {md5}), and does not; replace "
                "it, or put the unpacked files there."
            )
