"""Pools: all rows of a stream in one array of a compact type, in memory or mapped from a file."""

import math
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpmcl.data.rounding import float_type
from dpmcl.exceptions import DataError, reason

SHARE = 0.8
"""Largest share of the free memory that a pool may take."""

_BYTES_AT_ONCE = 1 << 26
_VALUES_AT_ONCE = 1 << 24


def empty_pool(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an empty array in memory, or mapped from a temporary file if memory is too small.

    The file has no name and disappears with the array. It is in $TMPDIR, or else in /var/tmp,
    because /tmp is often in memory.

    Args:
        shape: Shape of the array.
        dtype: Type of its values.

    Raises:
        DataError: Neither memory nor disk has room.
    """
    size = math.prod(shape) * dtype.itemsize
    if size <= SHARE * psutil.virtual_memory().available:
        return np.empty(shape, dtype)
    folder = os.environ.get("TMPDIR") or ("/var/tmp" if Path("/var/tmp").is_dir() else None)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):  # a disk that fills up later would kill the process
                os.posix_fallocate(file.fileno(), 0, size)
            return np.memmap(file, dtype, "r+", shape=shape)
    except (OSError, OverflowError, ValueError) as error:
        raise DataError(
            f"Data of {size / 2**30:.3g} GiB need memory or a temporary file, and neither has room "
            f"({reason(error)}); set TMPDIR to a folder that has."
        ) from None


def load_mapped(path: Path) -> NDArray[Any]:
    """Return the array of an .npy file, memory-mapped; writing to it does not change the file.

    Args:
        path: Path of the file.

    Raises:
        OSError: The file cannot be read.
        ValueError: It holds no array, Python objects, or fewer values than its header declares.
    """
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="c", allow_pickle=False)
    except OSError:  # Linux refuses writable maps that are larger than memory
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


def shared_tensor(array: NDArray[Any]) -> Tensor:
    """Return a tensor that shares the memory of an array and must not be written to.

    Args:
        array: Array of a type that PyTorch has; it may be read-only.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.as_tensor(array)


def compact(array: NDArray[Any], what: str) -> NDArray[Any]:
    """Return an array in a compact type and C order, copied only if necessary.

    uint8 and floats of 2, 4 or 8 bytes keep their type. bool becomes uint8 0 and 255, which is 0
    and 1 in a batch. Other integers become float32, or float64 if float32 would round them.

    Args:
        array: Real numbers of any shape.
        what: Name of the array in errors.

    Raises:
        DataError: There is no room for the copy, or float64 does not hold the integers exactly.
    """
    dtype = array.dtype.newbyteorder("=")
    if array.dtype.kind == "b":
        dtype = np.dtype(np.uint8)
    elif array.dtype.kind in "iu" and array.dtype != np.uint8:
        dtype = float_type(array, what)
    elif array.dtype.itemsize > 8:
        dtype = np.dtype(np.float64)
    if array.dtype == dtype and array.flags.c_contiguous and array.flags.aligned:
        return array
    if array.ndim == 0:
        return array.astype(dtype)
    pool = empty_pool(array.shape, dtype)
    step = max(1, _BYTES_AT_ONCE // max(1, pool[:1].nbytes))
    for start in range(0, len(array), step):
        piece = array[start : start + step]
        if piece.dtype.kind == "b":  # in a file, any byte but 0 is true
            piece = np.multiply(piece.view(np.uint8) != 0, 255, dtype=np.uint8)
        pool[start : start + step] = piece
    return pool


def pieces(pool: Tensor) -> tuple[Tensor, ...]:
    """Return views of consecutive rows of a pool that may be larger than memory, piece by piece.

    Args:
        pool: Values (rows, ...).
    """
    step = max(1, _VALUES_AT_ONCE // max(1, pool[:1].numel()))
    views: tuple[Tensor, ...] = pool.split(step)
    return views
