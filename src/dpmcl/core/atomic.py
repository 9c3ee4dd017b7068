"""Files that appear whole or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dpmcl.exceptions import FolderError, reason, shown

_MARK = ".tmp-"


def path_of(path: Any) -> Path:
    """Return a path of a file or folder, there or not. Raises FolderError for what can be none.

    An empty path is refused, since it would be the current folder.
    """
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise FolderError(f"A file or folder needs a path, got {shown(path)}.")
    try:
        os.stat(path)  # noqa: PTH116 (a Path hides what is wrong with a path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or reason(error)
        raise FolderError(f"{shown(str(path))} cannot be a path ({why}); give another.") from None
    return Path(os.fsdecode(path))


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary file to write; it takes `path`'s place when the block ends well.

    Raises FolderError where the folder cannot be written; what stood at `path` stays then.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(
            prefix=f".{path.stem}{_MARK}", suffix=path.suffix, dir=path.parent
        )
        os.close(handle)
    except OSError as error:
        raise FolderError(_line(path, error)) from None
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
        raise FolderError(_line(path, error)) from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Removes the temporary files that a process which died while writing has left in a folder.

    Only for who holds the folder: those of a living process would go as well.
    """
    for path in folder.rglob(f".*{_MARK}*"):
        with suppress(OSError):
            path.unlink()


def _flush_folder(folder: Path) -> None:
    """Makes a new name last through a power cut, where the system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Writes a text file whole or not at all."""
    with atomic(path) as temporary:
        try:
            temporary.write_text(text, "utf-8")
        except UnicodeEncodeError as error:
            raise OSError(
                f"it names {shown(text[error.start : error.end])}, which is no text; rename it"
            ) from None


def _line(path: Path, error: OSError) -> str:
    reason = error.strerror or str(error)
    return f"{path} cannot be written ({reason}); choose another folder with --out."
