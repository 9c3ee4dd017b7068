"""Decoded images on disk: gathered in a spool, kept in a cache, and read by memory mapping.

A pool may be larger than memory, so no function here holds all pixels at once.
"""

import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BytesIO
from math import prod
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dpmcl.core.atomic import atomic
from dpmcl.exceptions import DataError

IN_MEMORY = 64 * 2**20
"""Bytes that a spool holds before it goes to disk."""

_VERSION = 3  # raise it whenever the same files and settings give other tensors
_BYTES_AT_ONCE = 16 * 2**20


class Images(NamedTuple):
    """x: uint8 (rows, channels, height, width), perhaps mapped from a file. y: int64 (rows,).

    classes: the name of each class number. notes: lines about their source (`Labelled`).
    """

    x: Tensor
    y: Tensor
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()


def cache_folder() -> Path:
    """Where decoded images are kept: $DPMCL_CACHE, or else ~/.cache/dpmcl/decoded."""
    setting = os.environ.get("DPMCL_CACHE")
    return Path(setting) if setting else Path.home() / ".cache" / "dpmcl" / "decoded"


def cache_key(*about: Any) -> str:
    """A name for whatever the tensors depend on: SHA-256, in hex."""
    return hashlib.sha256(json.dumps([_VERSION, *about], sort_keys=True).encode()).hexdigest()


def load_images(path: Path) -> Images | None:
    """The images kept under a path; None where there are none, or they are damaged."""
    try:
        with safe_open(path.with_suffix(".safetensors"), "pt") as file:
            about = file.metadata()
            y, shape = file.get_tensor("y"), json.loads(about["shape"])
            classes, notes = about["classes"], about["notes"]
        with path.with_suffix(".pixels").open("rb") as file:
            if os.fstat(file.fileno()).st_size != prod(shape):
                return None
            x = _mapped(file, shape)
        start = _sum_of_labels(y, shape, classes + notes)
        if len(x) == len(y) and about["sum"] == str(_sum(x, start)):
            return Images(x, y, tuple(json.loads(classes)), tuple(json.loads(notes)))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        pass
    return None


class Spool:
    """Decoded images in the order in which they come: in memory while they are few, then on disk.

    folder: where its file goes, which has no name; where that cannot be, the system's folder for
    temporary files, or else memory.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[bytes] = BytesIO()
        self._bytes = 0
        self._channels: list[int] = []
        self._size: tuple[int, ...] = ()
        self._first = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _close(self._file)

    def __len__(self) -> int:
        return len(self._channels)

    def add(self, pixels: NDArray[np.uint8], where: str) -> None:
        """Adds an image, uint8 (channels, height, width). where: names it in errors.

        Raises DataError for a size other than the first image's, and for a full disk.
        """
        channels, *size = pixels.shape
        if not self._channels:
            self._size, self._first = tuple(size), where
        elif tuple(size) != self._size:
            raise DataError(
                f"Images must have one size; {where} is {size[0]}x{size[1]}, and {self._first} is "
                f"{self._size[0]}x{self._size[1]}. Set stream.size, as in size = [64, 64]."
            )
        self._channels.append(channels)
        self._bytes += pixels.size
        with self._room():
            if isinstance(self._file, BytesIO) and self._bytes > IN_MEMORY:
                self._file = _on_disk(self._folder, self._file)
            self._file.write(np.ascontiguousarray(pixels).data)

    def keep(
        self,
        path: Path,
        y: NDArray[np.int64],
        classes: Sequence[str],
        order: Sequence[int] | None = None,
        notes: Sequence[str] = (),
    ) -> Images:
        """The images, written to the cache under a path where that is possible.

        y: class number of each row, after `order`. order: numbers of the images in order of row;
        None for that in which they came. Grey images become RGB where others are.
        """
        names = {"classes": json.dumps(list(classes)), "notes": json.dumps(list(notes))}
        rows = range(len(self)) if order is None else order
        shape = [len(rows), max(self._channels), *self._size]
        labels = torch.from_numpy(y)
        pixels, about = path.with_suffix(".pixels"), path.with_suffix(".safetensors")
        try:
            crc = _sum_of_labels(labels, shape, "".join(names.values()))
            with atomic(pixels) as temporary, temporary.open("wb") as file:
                for part in self._parts(rows, shape):
                    file.write(part.data)
                    crc = zlib.crc32(part.data, crc)
            with atomic(about) as temporary:
                meta = {"shape": json.dumps(shape), **names, "sum": str(crc)}
                save_file({"y": labels}, temporary, meta)
            with pixels.open("rb") as file:
                return Images(_mapped(file, shape), labels, tuple(classes), tuple(notes))
        except BaseException as error:
            with suppress(OSError):
                pixels.unlink(missing_ok=True)
            # A folder that cannot be written, or a full disk, only costs the next run its time.
            if not isinstance(error, OSError | SafetensorError):
                raise
        return Images(self._kept_here(rows, shape), labels, tuple(classes), tuple(notes))

    def _kept_here(self, rows: Sequence[int], shape: list[int]) -> Tensor:
        in_order = list(rows) == list(range(len(self))) and len(set(self._channels)) == 1
        if in_order:
            return _mapped(self._file, shape)
        with self._room():
            large = prod(shape) > IN_MEMORY
            file = _on_disk(self._folder, BytesIO()) if large else BytesIO()
            for part in self._parts(rows, shape):
                file.write(part.data)
            x = _mapped(file, shape)
            _close(file)
            return x

    def _parts(self, rows: Sequence[int], shape: list[int]) -> Iterator[NDArray[np.uint8]]:
        """The images of some rows, all with the same channels, some at a time."""
        _, channels, height, width = shape
        area = height * width
        start = area * (np.cumsum(self._channels) - self._channels)
        step = max(1, _BYTES_AT_ONCE // (channels * area))
        for first in range(0, len(rows), step):
            some = rows[first : first + step]
            part = np.empty((len(some), channels, height, width), dtype=np.uint8)
            for i, row in enumerate(some):
                self._file.seek(int(start[row]))
                content = self._file.read(self._channels[row] * area)
                part[i] = np.frombuffer(content, np.uint8).reshape(-1, height, width)
            yield part

    @contextmanager
    def _room(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DataError(
                f"Decoded images need room on disk, and after {self._bytes / 2**20:.0f} MiB there "
                f"was none ({error.strerror or error}); set DPMCL_CACHE to a folder with more."
            ) from None


def _on_disk(folder: Path, content: BytesIO) -> IO[bytes]:
    """A file without a name that begins with this content; the content where there can be none."""
    for place in (folder, None):
        with suppress(OSError):
            if place is not None:
                place.mkdir(parents=True, exist_ok=True)
            file = tempfile.TemporaryFile(dir=place)  # noqa: SIM115 (its reader closes it)
            file.write(content.getbuffer())
            return file
    return content


def _close(file: IO[bytes]) -> None:
    if not isinstance(file, BytesIO):  # whose memory a tensor may still read from
        file.close()


def _mapped(file: IO[bytes], shape: Sequence[int]) -> Tensor:
    """A file's bytes as a tensor; changes to it are private. The file may be closed then."""
    if isinstance(file, BytesIO):
        flat = np.frombuffer(file.getbuffer(), np.uint8)
    else:
        file.flush()
        flat = np.memmap(file, np.uint8, "c")
    return torch.from_numpy(flat.reshape(tuple(shape)))


def _sum_of_labels(y: Tensor, shape: Sequence[int], names: str) -> int:
    return zlib.crc32(y.numpy().data, zlib.crc32(f"{list(shape)}{names}".encode()))


def _sum(x: Tensor, start: int) -> int:
    """CRC-32, read in slices."""
    flat = x.numpy().reshape(-1)
    for first in range(0, len(flat), _BYTES_AT_ONCE):
        start = zlib.crc32(flat[first : first + _BYTES_AT_ONCE].data, start)
    return start
