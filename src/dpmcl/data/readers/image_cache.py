"""Keep decoded images on disk, and read them by memory mapping: they may be larger than memory."""

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dpmcl.core.atomic import atomic, write_text
from dpmcl.data.pools import mapped, shared

_VERSION = 4  # raise it whenever the same files and settings give other tensors
_BYTES_AT_ONCE = 16 * 2**20


class Images(NamedTuple):
    """Decoded images.

    Attributes:
        x: uint8 (rows, channels, height, width), perhaps mapped from a file.
        y: int64 (rows,), class numbers.
        classes: The name of each class number.
        notes: Lines about their source, as `Labelled` has them.
    """

    x: Tensor
    y: Tensor
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()


def cache_folder() -> Path:
    """Return the folder of decoded images: $DPMCL_CACHE, or else ~/.cache/dpmcl/decoded."""
    setting = os.environ.get("DPMCL_CACHE")
    return Path(setting) if setting else Path.home() / ".cache" / "dpmcl" / "decoded"


def cached(about: Sequence[Any], decode: Callable[[], Images]) -> Images:
    """Return images from the cache; decode them and keep them there if it does not have them.

    A cache that is damaged counts as none. One that cannot be written is done without.

    Args:
        about: Everything that the images depend on, as JSON can write it.
        decode: Returns them.
    """
    key = json.dumps([_VERSION, *about], sort_keys=True).encode()
    path = cache_folder() / hashlib.sha256(key).hexdigest()
    return _load(path) or _keep(path, decode())


def _load(path: Path) -> Images | None:
    """Return the images kept under a path, None where there are none or they are damaged."""
    try:
        about = json.loads(path.with_suffix(".json").read_text("utf-8"))
        x = shared(mapped(path.with_suffix(".npy")))
        names = tuple(about["classes"]), tuple(about["notes"])
        images = Images(x, torch.tensor(about["y"]), *names)
        return images if _sum(images) == about["sum"] else None
    except Exception:  # there is none, or it is damaged in whatever way
        return None


def _keep(path: Path, images: Images) -> Images:
    """Write images under a path, and return them mapped from there."""
    about = {"y": images.y.tolist(), "classes": images.classes, "notes": images.notes}
    try:
        write_text(path.with_suffix(".json"), json.dumps({**about, "sum": _sum(images)}))
        with atomic(path.with_suffix(".npy")) as temporary:
            np.save(temporary, images.x.numpy())
    except OSError:  # a folder that cannot be written or a full disk: the next run decodes again
        return images
    return _load(path) or images


def _sum(images: Images) -> int:
    """Return the CRC-32 of images, their labels and names, reading the pixels in slices."""
    x, y, *names = images
    total = zlib.crc32(repr((x.shape, x.dtype, y.dtype, y.tolist(), names)).encode())
    flat = x.numpy().reshape(-1)
    for first in range(0, len(flat), _BYTES_AT_ONCE):
        total = zlib.crc32(flat[first : first + _BYTES_AT_ONCE].data, total)
    return total
