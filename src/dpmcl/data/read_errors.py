"""Errors of other libraries about damaged or unreadable files, turned into a DataError."""

import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from dpmcl.exceptions import DataError, DpmclError, reason

_BROKEN = (
    OSError,
    EOFError,
    RuntimeError,  # an encrypted zip; its subclass NotImplementedError, a rare compression
    ValueError,  # tarfile, for an invalid number in a header
    MemoryError,  # a header is read in one piece, whatever size it claims
    OverflowError,
    lzma.LZMAError,
    struct.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)


@contextmanager
def reading(
    where: str, way_out: str = "replace it by an intact copy", *, anything: bool = False
) -> Iterator[None]:
    """Turn an error of reading a file, or a user's objects, into a DataError.

    Args:
        where: What is read, for errors, which go on with "cannot be read".
        way_out: What the user can do, for errors.
        anything: Whether to turn any exception, for libraries that may raise any over a damaged
            file, and for objects of the user's.

    Raises:
        DataError: It cannot be read.
    """
    try:
        yield
    except DpmclError:
        raise
    except Exception as error:
        why, usual = reason(error), isinstance(error, _BROKEN)
        if not usual and not anything:
            raise
        if not usual:
            why = f"{type(error).__name__}: {why}"
        raise DataError(f"{where} cannot be read ({why}); {way_out}.") from None
