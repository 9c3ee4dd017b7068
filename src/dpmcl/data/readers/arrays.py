"""Arrays in NumPy's files as labelled data, mapped so that they may be larger than memory."""

import math
import mmap
import os
import struct
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpmcl.core.model import Kind
from dpmcl.data.damaged import whole
from dpmcl.data.labelled import Labelled, from_arrays
from dpmcl.data.rounding import float_type
from dpmcl.data.sources import at_home
from dpmcl.exceptions import DataError, reason

SHARE = 0.8
"""Of the free memory, how much a pool may take; the rest is for the run."""

_HEAD = 1 << 16  # bytes that surely hold a header: NumPy itself reads at most 10,000
_BYTES_AT_ONCE = 1 << 26
_SAVE_AGAIN = "save or fetch it again"


def read_arrays(path: Path, kind: Kind | None = None, name: str | None = None) -> Labelled:
    """Labelled data from x, y and perhaps task, in an .npz file or as .npy files in a folder.

    x: (rows, ...), uint8, another number type, or bool. y: labels, or numbers (rows,) or (rows,
    outputs) for regression. task: a label a row. kind: as for `from_arrays`. name: for titles.
    Objects, which would need pickle, are never loaded.

    x stays in the file, mapped copy-on-write, where it is uint8 or floats of this machine's byte
    order, stored by rows: in .npy files and in what np.savez wrote. Other types and orders are
    converted once; so are floats in an .npz where they start at an odd address, as they mostly do.
    Compressed arrays are read, if they fit in memory.

    Raises DataError for files that are missing, damaged, or hold something else.
    """
    path = Path(at_home(str(path)))
    with whole(str(path), _SAVE_AGAIN):
        if path.is_dir():
            name = name or path.resolve().name
            files = {p.name: p for p in sorted(path.glob("*.npy")) if p.is_file()}
            found = {part: _of_file(file) for part, file in _parts(files, str(path)).items()}
        elif path.is_file():
            name = name or path.stem
            found = _of_zip(path)
        else:
            raise DataError(
                "Arrays must be an .npz file or a folder with x.npy and y.npy, and there is none "
                f"at {path}; correct the path."
            )
        x = found["x"]
        if x.ndim == 0:
            raise DataError(f"'x' in {path} must have rows, and is a single value; save an array.")
        x = compact(x, f"'x' in {path}")
        y, task = (_labels(found[part], part, path) if part in found else None for part in _LABELS)
    return from_arrays(x, y, task, name=name, kind=kind)


_LABELS = ("y", "task")


# ---- pools ---------------------------------------------------------------------------------------


def pool_type(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """The type that a pool keeps such values in, None where they are no real numbers.

    uint8 and floats of 2, 4 or 8 bytes stay; bool becomes uint8, other whole numbers float32 (or
    float64 where that rounds them: see `float_type`).
    """
    if dtype.kind in "bu" and dtype.itemsize == 1:
        return np.dtype(np.uint8)
    if dtype.kind in "iu":
        return np.dtype(np.float32)
    if dtype.kind == "f":
        return dtype.newbyteorder("=") if dtype.itemsize <= 8 else np.dtype(np.float64)
    return None


def empty_pool(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array to fill: in memory, or mapped from a temporary file where it would not fit.

    The file has no name, and is gone with the array. It is in $TMPDIR, or else in /var/tmp, for
    /tmp is often in memory itself. Raises DataError where there is no room either.
    """
    size = math.prod(shape) * dtype.itemsize
    if size <= SHARE * _free_memory():
        return np.empty(shape, dtype)
    folder = os.environ.get("TMPDIR") or ("/var/tmp" if Path("/var/tmp").is_dir() else None)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):  # a disk that fills up later would end the process
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
            return np.memmap(file, dtype, "r+", shape=shape)
    except (OSError, OverflowError, ValueError) as error:
        raise DataError(
            f"Data of {_gib(size)} need memory or a temporary file, and neither has room "
            f"({reason(error)}); set TMPDIR to a folder that has."
        ) from None


def fill(rows: NDArray[Any], values: NDArray[Any]) -> None:
    """Writes values into rows of a pool of their `pool_type`: true becomes 255, which is 1."""
    if values.dtype.kind == "b":
        values = np.multiply(_truth(values), 255, dtype=np.uint8)
    rows[...] = values


def compact(array: NDArray[Any], what: str) -> NDArray[Any]:
    """The array in its `pool_type`, stored by rows: itself where it is so, else converted.

    what: names it in errors. Raises DataError for anything but real numbers.
    """
    wanted = pool_type(array.dtype)
    if wanted is None:
        raise DataError(f"{what} must be real numbers, got values of type {array.dtype}.")
    if array.dtype.kind in "iu" and array.dtype.itemsize > 2:
        wanted = float_type(array, what)
    if array.dtype == wanted and array.flags.c_contiguous and array.flags.aligned:
        return array
    pool = empty_pool(array.shape, wanted)
    step = max(1, _BYTES_AT_ONCE // max(1, pool[:1].nbytes))
    for start in range(0, len(array), step):
        fill(pool[start : start + step], array[start : start + step])
    return pool


def _truth(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Clean booleans: bytes other than 0 and 1 in a file make Python's differ from PyTorch's."""
    truth: NDArray[np.bool_] = values.view(np.uint8) != 0
    return truth


def _free_memory() -> int:
    import psutil

    return int(psutil.virtual_memory().available)


# ---- what is in the files ------------------------------------------------------------------------


def _parts(files: Mapping[str, Any], where: str) -> dict[str, Any]:
    """x, y and, if it is there, task. files: by name."""
    parts = {part: files[f"{part}.npy"] for part in ("x", *_LABELS) if f"{part}.npy" in files}
    for part in ("x", "y"):
        if part not in parts:
            shown = ", ".join(repr(file.removesuffix(".npy"))[:40] for file in list(files)[:20])
            raise DataError(
                f"There must be arrays named 'x' and 'y', and {where} has no '{part}', but "
                f"{shown or 'nothing'}; rename what is meant, as in np.savez(path, x=..., y=...)."
            )
    return parts


class _Header(NamedTuple):
    """What the bytes of an array are. start: how many bytes of header come before."""

    shape: tuple[int, ...]
    order: Literal["C", "F"]
    dtype: np.dtype[Any]
    start: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def over(self, buffer: Any, offset: int) -> NDArray[Any]:
        """The array over the buffer's bytes from the offset."""
        if self.nbytes == 0:
            return np.empty(self.shape, self.dtype)
        return np.ndarray(self.shape, self.dtype, buffer, offset, order=self.order)


def _header(head: bytes, size: int, where: str) -> _Header:
    """The header of an .npy file of that size. head: its first bytes."""
    file = BytesIO(head)
    versions = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    try:
        version = np.lib.format.read_magic(file)
        if version not in versions:
            raise ValueError(f"version {version[0]}.{version[1]} of the format")
        shape, fortran, dtype = versions[version](file)
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
    if dtype.names or dtype.subdtype or dtype.kind == "V" or dtype.itemsize == 0:
        raise DataError(
            f"{where} must be plain numbers or text, got the type {str(dtype)[:60]}; save each "
            "field as an array."
        )
    header = _Header(tuple(map(int, shape)), "F" if fortran else "C", dtype, file.tell())
    if min(shape, default=0) < 0 or header.start + header.nbytes != size:
        raise DataError(
            f"{where} is damaged: {shape} values of {dtype} do not take the {size - header.start} "
            "bytes that follow; save or fetch it again."
        )
    return header


def _of_file(path: Path) -> NDArray[Any]:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        return _mapped(file, 0, _header(file.read(_HEAD), size, str(path)))


def _of_zip(path: Path) -> dict[str, NDArray[Any]]:
    if not zipfile.is_zipfile(path):
        raise DataError(
            "Arrays must be an .npz file or a folder with x.npy and y.npy, and "
            f"{path} is neither, or is damaged; save it with np.savez(path, x=..., y=...)."
        )
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: info for info in archive.infolist()}
        return {
            part: _of_member(path, archive, info, f"'{part}' in {path}")
            for part, info in _parts(members, str(path)).items()
        }


def _of_member(
    path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, where: str
) -> NDArray[Any]:
    with whole(where, _SAVE_AGAIN), archive.open(info) as member:
        head = member.read(_HEAD)
        header = _header(head, info.file_size, where)
        if info.compress_type != zipfile.ZIP_STORED:
            return _unpacked(member, head, header, where)
        with path.open("rb") as file:
            start = _start(file, info)
            if start + info.file_size > os.fstat(file.fileno()).st_size:
                raise DataError(f"{where} is cut short; save or fetch it again.")
            return _mapped(file, start, header)


def _start(file: IO[bytes], info: zipfile.ZipInfo) -> int:
    """Where the bytes of a member start: after its local header, a name and a field."""
    file.seek(info.header_offset)
    signature, name, extra = struct.unpack("<4s22xHH", file.read(30))
    if signature != b"PK\x03\x04":
        raise zipfile.BadZipFile("a member has no header")
    return info.header_offset + 30 + int(name) + int(extra)


def _mapped(file: IO[bytes], start: int, header: _Header) -> NDArray[Any]:
    """The array whose header starts there, mapped copy-on-write: the file is never written."""
    if header.nbytes == 0:
        return header.over(None, 0)
    first = start + header.start
    length = first + header.nbytes
    if sys.platform == "linux":
        # Without NORESERVE (which np.memmap lacks), Linux refuses private maps larger than memory.
        flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0x4000)
        content = mmap.mmap(
            file.fileno(), length, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE
        )
    else:
        content = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_COPY)
    return header.over(content, first)


def _unpacked(member: IO[bytes], head: bytes, header: _Header, where: str) -> NDArray[Any]:
    """The array of a compressed member, its checksum checked."""
    free = _free_memory()
    if header.nbytes > free:
        raise DataError(
            f"{where} is compressed and takes {_gib(header.nbytes)} of memory, and {_gib(free)} "
            "are free; save it with np.savez instead of np.savez_compressed, to be mapped."
        )
    values = np.empty(header.nbytes, np.uint8)
    filled, piece = 0, head[header.start :]
    while piece:
        values[filled : filled + len(piece)] = np.frombuffer(piece, np.uint8)
        filled += len(piece)
        piece = member.read(1 << 20)
    if filled != header.nbytes:
        raise DataError(f"{where} is cut short; save or fetch it again.")
    return header.over(values, 0)


def _labels(array: NDArray[Any], part: str, path: Path) -> NDArray[Any]:
    """Labels or targets in this machine's byte order."""
    if array.dtype.kind == "f":
        return compact(array, part) if array.ndim else array
    if array.dtype.kind == "b":
        return _truth(array)
    array = np.require(array.astype(array.dtype.newbyteorder("="), copy=False), requirements="A")
    if array.dtype.kind == "U":
        codes = np.ascontiguousarray(array).reshape(-1).view(np.uint32)
        if ((codes > sys.maxunicode) | ((codes >= 0xD800) & (codes < 0xE000))).any():
            raise DataError(f"'{part}' in {path} holds text that is no Unicode; save it again.")
    return array


def _gib(size: int) -> str:
    return f"{size / 2**30:.3g} GiB"
