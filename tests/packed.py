"""Files of images made by hand, in folders and archives."""

import io
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

Files = dict[str, bytes]
"""Contents by path. A path that ends with a slash is that of an empty folder."""


def noise(seed: int, *shape: int) -> np.ndarray:
    """Random uint8 values; the default shape is (4, 4, 3)."""
    return np.random.default_rng(seed).integers(0, 256, shape or (4, 4, 3), dtype=np.uint8)


def encoded(image, kind: str = "PNG", mode: str | None = None, **options) -> bytes:
    """Return an image or array encoded as a file."""
    if not isinstance(image, Image.Image):
        image = Image.fromarray(np.asarray(image, dtype=np.uint8))
    out = io.BytesIO()
    (image.convert(mode) if mode else image).save(out, kind, **options)
    return out.getvalue()


def with_header(png: bytes, width: int, height: int, kind: bytes) -> bytes:
    """Return a PNG with another size, bit depth and so on in its header. kind: The last 5 bytes."""
    header = b"IHDR" + struct.pack(">II", width, height) + kind
    return png[:12] + header + struct.pack(">I", zlib.crc32(header)) + png[33:]


def folder(path: Path, files: Files) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        inner = path / name
        (inner if name.endswith("/") else inner.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            inner.write_bytes(content)
    return path


def zipped(path: Path, files: Files) -> Path:
    path = path.with_name(f"{path.name}.zip")
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def tarred(path: Path, files: Files, compression: str = "") -> Path:
    end = f".{compression}" if compression else ""
    path = path.with_name(f"{path.name}.tar{end}")
    with tarfile.open(path, f"w:{compression}") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name.rstrip("/"))
            info.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


PACKERS: dict[str, Callable[[Path, Files], Path]] = {
    "folder": folder,
    "zip": zipped,
    "tar": tarred,
    **{f"tar.{end}": partial(tarred, compression=end) for end in ("gz", "bz2", "xz")},
}


def contents(root: Path) -> list:
    """Name, time and size of everything below a folder."""
    return sorted((str(p), p.lstat().st_mtime_ns, p.lstat().st_size) for p in root.rglob("*"))


def mapped_file(tensor: torch.Tensor) -> Path | None:
    """The file mapped into a tensor's memory, according to the kernel; None if there is none."""
    address = tensor.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, _, inode, *name = line.split(maxsplit=5)
        start, end = (int(part, 16) for part in span.split("-"))
        if start <= address < end and inode != "0":
            return Path(*name)
    return None
