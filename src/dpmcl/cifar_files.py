"""CIFAR10 and CIFAR100: pickled batches, which are opened only after their sums were checked."""

import tarfile
import tempfile
from pathlib import Path
from typing import Any

from dpmcl.exceptions import DataError
from dpmcl.torchvision_sets import BY_TRAIN, check_sum, fetching, reason, torchvision_class


def read_cifar(name: str, root: Path, download: bool, instead: str = "") -> list[Any]:
    """torchvision's training and test part, fetched if files are missing.

    The published archive, where it is there and its files are not, is unpacked aside, for the
    folder may be read-only and is not ours to change.
    instead: what else a user could set, for errors. Raises DataError for files that are missing or
    not the published ones.
    """
    cls = torchvision_class(name)
    folder, archive = root / cls.base_folder, root / cls.filename
    listed = [*cls.train_list, *cls.test_list, [cls.meta["filename"], cls.meta["md5"]]]
    for file, md5 in listed:
        if (folder / file).is_file():
            check_sum(folder / file, md5)
    if all((folder / file).is_file() for file, _ in listed):
        return [cls(root, **part) for part in BY_TRAIN]
    if archive.is_file():
        check_sum(archive, cls.tgz_md5)
        with tempfile.TemporaryDirectory() as aside:
            _unpack(archive, Path(aside))
            return [cls(aside, **part) for part in BY_TRAIN]
    names = ", ".join(file for file, _ in listed)
    if not download:
        raise DataError(
            f"{name} is not in {folder} (looked for {names}); set stream.root to the folder that "
            f"holds {cls.base_folder}, {instead}or stream.download = true."
        )
    or_else = f", or set {instead.rstrip(', ')}" if instead else ""
    with fetching(f"{name} is not in {folder}", f"put {names} there{or_else}"):
        root.mkdir(parents=True, exist_ok=True)
        return [cls(root, train=True, download=True), cls(root, train=False)]


def _unpack(archive: Path, folder: Path) -> None:
    try:
        with tarfile.open(archive, "r:gz") as tar:
            safe: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # 3.11.4
            tar.extractall(folder, **safe)
    except (OSError, EOFError, tarfile.TarError) as error:
        raise DataError(f"{archive} cannot be unpacked ({reason(error)}).") from None
