"""Files of a folder, a zip or a tar, listed and read without unpacking anything to disk.

Names of archive members are never used as paths on disk.
"""

import os
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, NoReturn, cast

from dpmcl.data.read_errors import reading
from dpmcl.exceptions import DataError

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
"""Suffixes of archives."""

LARGEST = 64 * 2**20
"""Largest size of one image file in bytes."""


@dataclass(frozen=True)
class Entry:
    """A file or folder of a source.

    Attributes:
        path: Path inside the source.
        where: Name in errors.
        is_folder: Whether it is a folder.
        size: Size of a file in bytes.
        open: Function that opens a file. A member of a tar must be read before the next entry is
            taken.
    """

    path: PurePosixPath
    where: str
    is_folder: bool = False
    size: int = 0
    open: Callable[[], IO[bytes]] = BytesIO

    @property
    def folders(self) -> tuple[str, ...]:
        """Names of the folders on its path, including itself if it is a folder."""
        return self.path.parts if self.is_folder else self.path.parts[:-1]

    @property
    def hidden(self) -> bool:
        """Whether it is hidden, or metadata of an operating system."""
        return any(part.startswith(".") or part == "__MACOSX" for part in self.path.parts)

    def content(self) -> bytes:
        """Return the bytes of a file.

        Raises:
            DataError: It is too large or cannot be read.
        """
        if self.size > LARGEST:
            raise DataError(
                f"An image file must have at most {LARGEST // 2**20} MiB, {self.where} has "
                f"{self.size / 2**20:.0f}; remove it or make it smaller."
            )
        with reading(self.where), self.open() as file:
            return file.read()


def entries(source: Path) -> Iterator[Entry]:
    """Yield all files and folders of a source, in any order.

    Args:
        source: Folder, zip, or tar of any compression.

    Raises:
        DataError: The source is damaged or of another kind, or has links or names that lead
            outside.
    """
    with reading(str(source)):
        if source.is_dir():
            yield from _folder_entries(source)
        elif tarfile.is_tarfile(source):  # first, because a tar that ends with a zip passes as one
            yield from _tar_entries(source)
        elif zipfile.is_zipfile(source):
            yield from _zip_entries(source)
        else:
            raise DataError(
                f"Images must be in a folder, a zip or a tar, and {source} is none, or is damaged; "
                "correct the path, or pack it again."
            )


def disk_entry(path: Path, inside: PurePosixPath) -> Entry:
    """Return a file or folder on disk as an entry.

    Args:
        path: Path on disk.
        inside: Path inside the source.
    """
    return Entry(inside, str(path), path.is_dir(), path.stat().st_size, lambda: path.open("rb"))


def stamp(source: Path) -> list[tuple[str, int, int, int]]:
    """Return path, size and times of each file of a source, to detect changes.

    A file that replaces another, as by `cp -p` or `mv`, may have its modification time, but not its
    time of change (st_ctime).

    Args:
        source: File or folder.
    """
    source = source.resolve()
    paths = sorted(map(str, source.rglob("*"))) if source.is_dir() else [str(source)]
    states = [os.stat(path) for path in paths]  # noqa: PTH116 (there may be a million)
    return [
        (path, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
        for path, state in zip(paths, states, strict=True)
    ]


def _folder_entries(source: Path) -> Iterator[Entry]:
    for folder, inner, names in os.walk(source, onerror=_raise):
        inner.sort()
        for name in sorted((*inner, *names)):
            path = Path(folder, name)
            if path.is_symlink() and path.is_dir():
                raise DataError(
                    f"Links to folders are not followed, and {path} is one; put the folder itself "
                    "there."
                )
            if path.exists() and not (path.is_file() or path.is_dir()):
                raise DataError(f"Images must be files, and {path} is none; remove it.")
            yield disk_entry(path, PurePosixPath(path.relative_to(source).as_posix()))


def _zip_entries(source: Path) -> Iterator[Entry]:
    # Many programs write names in UTF-8 without the flag for it.
    with zipfile.ZipFile(source, metadata_encoding="utf-8") as archive:
        for info in archive.infolist():
            path = _member_path(
                info.filename, source, is_plain=not stat.S_ISLNK(info.external_attr >> 16)
            )
            read = partial(archive.open, info)
            where = f"{info.filename!r} in {source}"
            yield Entry(path, where, info.is_dir(), info.file_size, read)


def _tar_entries(source: Path) -> Iterator[Entry]:
    # tarfile's stream mode would not notice a truncated archive.
    with tarfile.open(source, "r:*") as archive:
        for info in archive:
            path = _member_path(info.name, source, is_plain=info.isfile() or info.isdir())
            read = cast(Callable[[], IO[bytes]], partial(archive.extractfile, info))
            yield Entry(path, f"{info.name!r} in {source}", info.isdir(), info.size, read)
        assert archive.fileobj is not None
        archive.fileobj.seek(archive.offset)
        if archive.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise tarfile.ReadError("it ends before the end mark")


def _member_path(name: str, source: Path, is_plain: bool) -> PurePosixPath:
    """Return a member's name as a path.

    is_plain: Whether the member is a plain file or folder. Raises DataError if it is not, or if its
    name leads outside of the archive.
    """
    parts = name.replace("\\", "/").split("/")  # some Windows programs write backslashes
    if not is_plain or parts[0] == "" or parts[0].endswith(":") or ".." in parts:
        raise DataError(
            "An archive must hold plain files and folders, without links, absolute names or '..'; "
            f"{name!r} in {source} is not so. Pack it again without that."
        )
    return PurePosixPath(*parts)


def _raise(error: OSError) -> NoReturn:
    raise error
