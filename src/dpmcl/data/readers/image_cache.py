"""Keep decoded images on disk, and read them by memory mapping: they may be larger than memory."""

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
from dpmcl.data.pools import mapped, shared

_VERSION = 5  # raise it whenever the same files and settings give other tensors


def cache_folder() -> Path:
    """Return the folder of decoded images: $DPMCL_CACHE, or else ~/.cache/dpmcl/decoded."""
    setting = os.environ.get("DPMCL_CACHE")
    return Path(setting) if setting else Path.home() / ".cache" / "dpmcl" / "decoded"


def cached(name: str, about: Sequence[Any], decode: Callable[[], Labelled]) -> Labelled:
    """Return images from the cache; decode them and keep them there if it does not have them.

    A cache that is damaged counts as none. One that cannot be written is done without.

    Args:
        name: For titles.
        about: Everything that the images depend on, as JSON can write it.
        decode: Returns the images.
    """
    key = json.dumps([_VERSION, *about], sort_keys=True).encode()
    path = cache_folder() / hashlib.sha256(key).hexdigest()
    data = _load(path)
    if data is None:
        data = decode()
        told = {"y": data.y.tolist(), "classes": data.classes, "notes": data.notes}
        try:
            write_text(path.with_suffix(".json"), json.dumps({**told, "sum": _sum(data)}))
            with atomic(path.with_suffix(".npy")) as temporary:
                np.save(temporary, data.x.numpy())
        except OSError:  # a folder that cannot be written, a full disk: the next run decodes again
            pass
        else:
            data = _load(path) or data
    return replace(data, name=name)


def _load(path: Path) -> Labelled | None:
    """Return the images kept under a path, None where there are none or they are damaged."""
    try:
        told = json.loads(path.with_suffix(".json").read_text("utf-8"))
        x, y = shared(mapped(path.with_suffix(".npy"))), torch.tensor(told["y"])
        classes, notes = tuple(told["classes"]), tuple(told["notes"])
        data = Labelled("images", "classification", x, y, classes, notes=notes)
        return data if _sum(data) == told["sum"] else None
    except Exception:  # there is none, or it is damaged in whatever way
        return None


def _sum(data: Labelled) -> int:
    """Return the CRC-32 of images, their labels and names."""
    about = (data.x.shape, data.x.dtype, data.y.dtype, data.y.tolist(), data.classes, data.notes)
    return zlib.crc32(data.x.numpy().reshape(-1).data, zlib.crc32(repr(about).encode()))
