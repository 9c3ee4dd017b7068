"""Cache of decoded images on disk, read by memory mapping because it may be larger than memory."""

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpmcl.core.atomic import atomic, write_text
from dpmcl.data.labelled import Labelled
from dpmcl.data.pools import load_mapped, shared_tensor

_VERSION = 5  # raise it whenever the same files and settings give different tensors


def cache_folder() -> Path:
    """Return the folder of decoded images: $DPMCL_CACHE, or ~/.cache/dpmcl/decoded by default."""
    setting = os.environ.get("DPMCL_CACHE")
    return Path(setting) if setting else Path.home() / ".cache" / "dpmcl" / "decoded"


def cached(name: str, key_parts: Sequence[Any], decode: Callable[[], Labelled]) -> Labelled:
    """Return images from the cache; if it does not have them, decode them and store them there.

    Damaged cache files are ignored. If the cache cannot be written, the images are not stored.

    Args:
        name: Name for titles.
        key_parts: Everything on which the images depend, as values that JSON can hold.
        decode: Function that decodes the images.
    """
    key = json.dumps([_VERSION, *key_parts], sort_keys=True).encode()
    path = cache_folder() / hashlib.sha256(key).hexdigest()
    data = _load(path)
    if data is None:
        data = decode()
        labels = {"y": data.y.tolist(), "classes": data.classes, "notes": data.notes}
        try:
            write_text(path.with_suffix(".json"), json.dumps({**labels, "sum": _checksum(data)}))
            with atomic(path.with_suffix(".npy")) as temporary:
                np.save(temporary, data.x.numpy())
        except OSError:  # a read-only folder or a full disk; the next run decodes again
            pass
        else:
            data = _load(path) or data
    return replace(data, name=name)


def _load(path: Path) -> Labelled | None:
    """Return the images that are stored under a path, or None if they are missing or damaged."""
    try:
        labels = json.loads(path.with_suffix(".json").read_text("utf-8"))
        x, y = shared_tensor(load_mapped(path.with_suffix(".npy"))), torch.tensor(labels["y"])
        classes, notes = tuple(labels["classes"]), tuple(labels["notes"])
        data = Labelled("images", "classification", x, y, classes, notes=notes)
        return data if _checksum(data) == labels["sum"] else None
    except Exception:  # a damaged file can raise anything
        return None


def _checksum(data: Labelled) -> int:
    """Return the CRC-32 of images, labels, class names and notes."""
    content = (data.x.shape, data.x.dtype, data.y.dtype, data.y.tolist(), data.classes, data.notes)
    return zlib.crc32(data.x.numpy().reshape(-1).data, zlib.crc32(repr(content).encode()))
