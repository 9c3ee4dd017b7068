"""Write files atomically: a file appears complete or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dpmcl.exceptions import FolderError, reason, shown

_MARK = ".tmp-"


def path_of(path: Any) -> Path:
    """Check the path of a file or folder, which need not exist, and return it as a Path.

    Args:
        path: String or path, in which ~ is the home folder; an empty one is refused, since it would
            mean the current folder.

    Raises:
        FolderError: No file or folder can have this path.
    """
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise FolderError(f"A file or folder needs a path, got {shown(path)}.")
    try:
        path = os.path.expanduser(path)  # noqa: PTH111 (pathlib fails on unknown users)
        os.stat(path)  # noqa: PTH116 (a Path would hide the error)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or reason(error)
        raise FolderError(f"{shown(str(path))} cannot be a path ({why}); give another.") from None
    return Path(os.fsdecode(path))


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary file to write; it replaces `path` if the block ends without an error.

    Args:
        path: File to create or replace. An error leaves it as it was.

    Raises:
        FolderError: The file or its folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(
            prefix=f".{path.stem}{_MARK}", suffix=path.suffix, dir=path.parent
        )
        os.close(handle)
    except OSError as error:
        raise FolderError(_write_error(path, error)) from None
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
        _flush_folder(path.parent)
    except OSError as error:
        raise FolderError(_write_error(path, error)) from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove the temporary files that a process left behind when it died while writing.

    Args:
        folder: Folder in which no other process writes; its temporary files would be removed too.
    """
    for path in folder.rglob(f".*{_MARK}*"):
        with suppress(OSError):
            path.unlink()


def _flush_folder(folder: Path) -> None:
    """Make the new name of a file survive a power failure, if the system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a binary file atomically.

    Args:
        path: The file.
        content: Content of the file.

    Raises:
        FolderError: The file cannot be written.
    """
    with atomic(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically.

    Args:
        path: The file.
        text: Content of the file, stored as UTF-8.

    Raises:
        FolderError: The file cannot be written, or the text is not valid Unicode.
    """
    with atomic(path) as temporary:
        try:
            temporary.write_text(text, "utf-8")
        except UnicodeEncodeError as error:
            raise OSError(
                f"it names {shown(text[error.start : error.end])}, which is no text; rename it"
            ) from None


def _write_error(path: Path, error: OSError) -> str:
    """Return the message for a file that cannot be written."""
    reason = error.strerror or str(error)
    return f"{path} cannot be written ({reason}); choose another folder."
