"""Allow only one process at a time to write to the folder of a run or a learner."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from dpmcl.core.atomic import write_text
from dpmcl.exceptions import FolderError


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder during a block; create the folder if it does not exist.

    The system frees the lock of a process that died. A folder that was created for the block is
    removed again if nothing was stored in it.

    Args:
        folder: The folder of a run or a learner.

    Raises:
        FolderError: Another process, named in the message, has locked the folder, or it cannot be
            written.
    """
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        lock.acquire(timeout=0)
    except Timeout:
        raise FolderError(
            f"{folder} is being written to by process {_holder(folder)}; wait until it has ended, "
            "or choose another folder."
        ) from None
    except (OSError, NotImplementedError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FolderError(
            f"{folder} cannot be written ({reason}); choose another folder."
        ) from None
    try:
        write_text(folder / ".lock.json", json.dumps({"pid": os.getpid()}) + "\n")
        yield
    finally:
        with suppress(OSError):
            (folder / ".lock.json").unlink(missing_ok=True)
        with suppress(OSError):
            lock.release()
        # An error may have come before anything was stored.
        with suppress(OSError):
            if created and [path.name for path in folder.iterdir()] == [".lock"]:
                (folder / ".lock").unlink()
                for path in created:
                    path.rmdir()


def _holder(folder: Path) -> str:
    """Return the id of the process that has locked a folder, or "unknown"."""
    try:
        return str(int(json.loads((folder / ".lock.json").read_text("utf-8"))["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown"
