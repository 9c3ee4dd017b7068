"""Checkpoints at an address, such as a bucket, for jobs on machines that share no folder.

A checkpoint is one file, written at once. An object store shows only complete files. A mounted
folder may show an incomplete file; the checkpoint's checksum reveals it, and the checkpoint before
is used. So a job never resumes from a part of a checkpoint.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dpmcl.core.atomic import path_of
from dpmcl.exceptions import DpmclError, FolderError, reason, shown
from dpmcl.training.checkpoints import Checkpoints, Origin, checkpoint_names

_MARK = "spec.toml"


@dataclass(frozen=True)
class Storage:
    """The folder of a run on storage that several machines see.

    Attributes:
        address: Address of the storage: "s3://bucket/folder", another address that pyarrow or
            fsspec reads, or an absolute path.
        run: Name of the folder, unique to the run.
    """

    address: str
    run: str

    def write_mark(self, spec: Path) -> None:
        """Write the mark by which other machines know that they see the same storage.

        Args:
            spec: The run's spec, which serves as the mark.

        Raises:
            FolderError: The storage cannot be written.
        """
        self.put(spec, _MARK)

    def refuse_unseen(self) -> None:
        """Raise FolderError without the mark: it was removed, or this is another storage."""
        if _MARK not in self.names(""):
            raise FolderError(
                f"{self.address} on this machine does not hold {self.run}, which the command wrote "
                "there: it was removed, or machines see different folders; give --storage that all "
                "of them share."
            )

    def names(self, folder: str) -> list[str]:
        """Return the names of files and folders in a folder, [] if it does not exist.

        Args:
            folder: Path of the folder below the run's folder.
        """
        from pyarrow.fs import FileSelector

        with self._open(folder) as (files, path):
            return [entry.base_name for entry in files.get_file_info(FileSelector(path, True))]

    def put(self, source: Path, name: str) -> None:
        """Copy a file to the storage.

        Args:
            source: Path of the file.
            name: Path of the copy below the run's folder.
        """
        with self._open(name) as (files, path):
            files.create_dir(path.rpartition("/")[0], recursive=True)
            with source.open("rb") as content, files.open_output_stream(path) as out:
                shutil.copyfileobj(content, out)

    def get(self, name: str, target: Path) -> None:
        """Copy a file from the storage.

        Args:
            name: Path of the file below the run's folder.
            target: Path of the copy.
        """
        with (
            self._open(name) as (files, path),
            files.open_input_stream(path) as content,
            target.open("wb") as out,
        ):
            shutil.copyfileobj(content, out)

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with its content, if it exists.

        Args:
            name: Path of the file or folder below the run's folder.
        """
        with self._open(name) as (files, path), suppress(FileNotFoundError):
            if files.get_file_info(path).is_file:
                files.delete_file(path)
            else:
                files.delete_dir(path)

    @contextmanager
    def _open(self, name: str) -> Iterator[tuple[Any, str]]:
        """Yield the file system and the path of a name; errors in the block become FolderError."""
        try:
            files, root = _connect(self.address)
            yield files, "/".join(part for part in (root.rstrip("/"), self.run, name) if part)
        except DpmclError:
            raise
        except Exception as error:  # each library behind fsspec raises its own types
            raise FolderError(
                f"The storage {shown(self.address)} cannot be read or written ({reason(error)}); "
                "give --storage a folder, or an address that pyarrow or fsspec reads."
            ) from None


@cache
def _connect(address: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path within it."""
    import fsspec
    from pyarrow import ArrowInvalid, fs

    try:
        return fs.FileSystem.from_uri(address)  # type: ignore[no-any-return]
    except ArrowInvalid:  # pyarrow does not know the address
        files, path = fsspec.url_to_fs(address)
        return fs.PyFileSystem(fs.FSSpecHandler(files)), path


def absolute_address(address: str) -> str:
    """Return an address, with a relative path made absolute.

    Args:
        address: Address as the user writes it.
    """
    return address if "://" in address else str(path_of(address).absolute())


class StoredCheckpoints(Checkpoints):
    """The checkpoints of one job on storage.

    Args:
        storage: The storage of the run.
        origin: As for `Checkpoints`.
    """

    def __init__(self, storage: Storage, origin: Origin) -> None:
        super().__init__(Path(), origin)
        self._storage = storage

    def clear(self) -> None:
        self._storage.remove(str(self._folder))

    def refuse_removed(self) -> None:
        self._storage.refuse_unseen()

    def _names(self) -> list[str]:
        return checkpoint_names(self._storage.names(str(self._folder)))

    @contextmanager
    def _writing(self, name: str) -> Iterator[Path]:
        with TemporaryDirectory(prefix="dpmcl-") as scratch:
            yield Path(scratch) / name
            self._storage.put(Path(scratch) / name, f"{self._folder}/{name}")

    @contextmanager
    def _reading(self, name: str) -> Iterator[Path]:
        with TemporaryDirectory(prefix="dpmcl-") as scratch:
            self._storage.get(f"{self._folder}/{name}", Path(scratch) / name)
            yield Path(scratch) / name

    def _remove(self, name: str) -> None:
        self._storage.remove(f"{self._folder}/{name}")
