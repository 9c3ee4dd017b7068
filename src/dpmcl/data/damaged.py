"""Errors of other libraries over damaged or unreadable files, as one line."""

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
    RuntimeError,  # an encrypted zip, and NotImplementedError for its rarer compressions
    ValueError,  # tarfile's, for numbers in a header that are none
    MemoryError,  # a header is read in one piece, however large it says to be
    OverflowError,
    lzma.LZMAError,
    struct.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)


@contextmanager
def whole(where: str, way_out: str = "replace it by a whole one") -> Iterator[None]:
    """Raise DataError where reading a file fails.

    Args:
        where: The file's name in errors.
        way_out: What the user can do.
    """
    try:
        yield
    except DpmclError:
        raise
    except _BROKEN as error:
        raise DataError(f"{where} cannot be read ({reason(error)}); {way_out}.") from None
