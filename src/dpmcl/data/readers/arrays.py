"""Arrays in NumPy's files as labelled data, mapped so that they may be larger than memory."""

import math
import os
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from dpmcl.core.model import Kind
from dpmcl.data.damaged import whole
from dpmcl.data.labelled import Labelled, from_arrays
from dpmcl.data.pools import empty_pool
from dpmcl.data.sources import at_home
from dpmcl.exceptions import DataError, reason

_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_AGAIN = "save or fetch it again"
_BYTES_AT_ONCE = 1 << 26


def read_arrays(path: Path, kind: Kind | None = None, name: str | None = None) -> Labelled:
    """Read x, y and perhaps task from an .npz file, or from .npy files in a folder.

    Arrays stay in the file, mapped copy-on-write, if they are uint8 or floats of this machine's
    byte order, stored by rows: in .npy files and in what np.savez wrote. Other types and orders are
    converted once; so are floats in an .npz that start at an odd address, as they mostly do.
    Compressed arrays are read. Objects, which would need pickle, are never loaded.

    Args:
        path: The file or the folder. x is (rows, ...), uint8, another number type, or bool; y is
            labels, or numbers (rows,) or (rows, outputs) for regression; task is a label a row.
        kind: "classification", "regression", or None as for `from_arrays`.
        name: For titles; None for the name of the file or folder.

    Returns:
        The labelled data.

    Raises:
        DataError: Files are missing, damaged, or hold something else.
    """
    path = Path(at_home(str(path)))
    with whole(str(path), _AGAIN):
        if path.is_dir():
            name = name or path.resolve().name
            files = {p.name: p for p in sorted(path.glob("*.npy")) if p.is_file()}
            arrays = {part: _of_file(file) for part, file in _parts(files, path).items()}
        elif path.is_file() and zipfile.is_zipfile(path):  # a pipe would be waited for
            name = name or path.stem
            arrays = _of_zip(path)
        else:
            state = "is neither, or is damaged" if path.is_file() else "is not there"
            raise DataError(
                f"Arrays must be an .npz file or a folder with x.npy and y.npy, and {path} "
                f"{state}; correct the path, or save it with np.savez(path, x=..., y=...)."
            )
    if arrays["x"].ndim == 0:
        raise DataError(f"'x' in {path} must have rows, and is a single value; save an array.")
    return from_arrays(arrays["x"], arrays["y"], arrays.get("task"), name=name, kind=kind)


def _parts(files: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """Pick x, y and, if it is there, task out of files by name."""
    parts = {part: files[f"{part}.npy"] for part in ("x", "y", "task") if f"{part}.npy" in files}
    for part in ("x", "y"):
        if part not in parts:
            names = ", ".join(repr(file.removesuffix(".npy"))[:40] for file in list(files)[:20])
            raise DataError(
                f"There must be arrays named 'x' and 'y', and {where} has no '{part}', but "
                f"{names or 'nothing'}; rename what is meant, as in np.savez(path, x=..., y=...)."
            )
    return parts


def _of_file(path: Path) -> NDArray[Any]:
    """Map an .npy file."""
    with path.open("rb") as file:
        return _array(file, os.fstat(file.fileno()).st_size, str(path), (path, 0))


def _of_zip(path: Path) -> dict[str, NDArray[Any]]:
    """Map or read the members of an .npz file."""
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: info for info in archive.infolist()}
        for part, info in _parts(members, path).items():
            where = f"'{part}' in {path}"
            stored = info.compress_type == zipfile.ZIP_STORED
            with whole(where, _AGAIN), archive.open(info) as member:
                mapped = (path, _start(path, info)) if stored else None
                arrays[part] = _array(member, info.file_size, where, mapped)
    return arrays


def _start(path: Path, info: zipfile.ZipInfo) -> int:
    """Return where the bytes of a member start: after its local header, a name and a field."""
    with path.open("rb") as file:
        file.seek(info.header_offset)
        name, extra = struct.unpack("<26xHH", file.read(30))
    return info.header_offset + 30 + int(name) + int(extra)


def _array(file: IO[bytes], size: int, where: str, mapped: tuple[Path, int] | None) -> NDArray[Any]:
    """Return the array of an .npy file of so many bytes, whose sizes must agree with its header.

    mapped: the file on disk and where in it the array's file starts; None to read all of it.
    """
    try:
        shape, by_columns, dtype = _HEADERS[npy.read_magic(file)](file)
    except Exception as error:  # NumPy evaluates the header as a literal, which can raise anything
        raise DataError(
            f"{where} must be an array in NumPy's format, and is not ({reason(error)}); save it "
            "again with np.save or np.savez."
        ) from None
    if dtype.hasobject:
        raise DataError(
            f"{where} holds Python objects, which are not loaded, for that can run code; save "
            "numbers, or text as np.array(labels, dtype='U')."
        )
    if dtype.kind not in "biufcMmSU" or dtype.subdtype or dtype.itemsize == 0:
        raise DataError(
            f"{where} must be plain numbers or text, got the type {str(dtype)[:60]}; save each "
            "field as an array."
        )
    shape = tuple(map(int, shape))  # True counts as a number for NumPy
    start, count = file.tell(), math.prod(shape)
    if min(shape, default=0) < 0 or start + count * dtype.itemsize != size:
        raise DataError(
            f"{where} is damaged: {shape} values of {dtype} do not take the {size - start} bytes "
            f"that follow; {_AGAIN}."
        )
    if mapped is None:
        values = empty_pool((size - start,), np.dtype(np.uint8))
        for at in range(0, len(values), _BYTES_AT_ONCE):
            rest = values[at : at + _BYTES_AT_ONCE]
            piece = file.read(len(rest))
            if len(piece) < len(rest):
                raise EOFError("it is cut short")
            rest[:] = np.frombuffer(piece, np.uint8)
        file.read(1)  # at the end, zipfile checks the checksum
        return np.ndarray(shape, dtype, values, order="F" if by_columns else "C")
    if count == 0:
        return np.empty(shape, dtype)
    path, offset = mapped[0], mapped[1] + start
    order: Any = "F" if by_columns else "C"
    try:
        return np.memmap(path, dtype, "c", offset, shape, order)
    except OSError:  # Linux refuses maps to write that are larger than memory
        return np.memmap(path, dtype, "r", offset, shape, order)
