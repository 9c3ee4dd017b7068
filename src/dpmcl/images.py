"""Images in a folder, a zip or a tar, one folder a class; decoded once, then read from a cache.

Archives are read in memory. Nothing is unpacked to disk, and names of members serve as labels only.
"""

import hashlib
import json
import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dpmcl.atomic import atomic
from dpmcl.exceptions import DataError

KINDS = ("bmp", "gif", "jpeg", "jpg", "pgm", "png", "ppm", "tif", "tiff", "webp")
"""Suffixes of image files."""
LARGEST = 64 * 2**20
"""Bytes that one image file may have."""

_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")
_VERSION = 1  # of the cache; raise it whenever the same files and Decoding give other tensors
_BROKEN = (
    OSError,
    EOFError,
    RuntimeError,  # an encrypted zip, and NotImplementedError for its rarer compressions
    lzma.LZMAError,
    zlib.error,
    zipfile.BadZipFile,
    tarfile.TarError,
)


class Images(NamedTuple):
    """x: uint8 (rows, channels, height, width). y: int64 (rows,) class numbers.

    classes: the name of each class number, in alphabetical order.
    """

    x: Tensor
    y: Tensor
    classes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """How files become tensors.

    size: (height, width). channels: 1 grey, 3 RGB; transparency is ignored.
    crop: cut the centre out at its own scale; otherwise the image is resized with Pillow's BILINEAR
    filter, which averages over the whole source area when it shrinks. invert: 255 - value.
    levels: how many folders above the file make the class name: 1 for "cat", 2 for
    "Latin/character03". first_classes: how many classes to keep, in order of name; None for all.
    """

    size: tuple[int, int]
    channels: Literal[1, 3]
    crop: bool = False
    invert: bool = False
    levels: int = 1
    first_classes: int | None = None


def data_folder(name: str) -> Path:
    """Where a stream's files are kept: $DPMCL_DATA/name, or else ~/.cache/dpmcl/name."""
    home = os.environ.get("DPMCL_DATA")
    return (Path(home) if home else Path.home() / ".cache" / "dpmcl") / name


def cache_folder() -> Path:
    """Where decoded images are kept: $DPMCL_CACHE, or else ~/.cache/dpmcl/decoded."""
    setting = os.environ.get("DPMCL_CACHE")
    return Path(setting) if setting else Path.home() / ".cache" / "dpmcl" / "decoded"


def read_images(source: Path, decoding: Decoding, cache: Path | None = None) -> Images:
    """The images of a folder, a zip or a tar (any compression), in order of path.

    Files that are not images by their suffix, hidden files and __MACOSX are passed over.
    cache: folder of decoded images, None for `cache_folder()`. A file there counts as long as the
    archive (its path, size and time), or the folder's files (theirs), and `decoding` stay the same.
    Raises DataError for a source that is missing, damaged, unsafe or without images.
    """
    source = source.expanduser().absolute()
    if not source.exists():
        raise DataError(
            f"Images must be a folder, zip or tar that exists, got {source}; correct the path."
        )
    with _whole(str(source)):
        key = _key(source, decoding)
    path = (cache or cache_folder()) / f"{key}.safetensors"
    images = _cached(path)
    if images is None:
        images = _decode(source, decoding)
        # A folder that cannot be written, or a full disk, only costs the next run its time.
        with suppress(OSError, SafetensorError), atomic(path) as temporary:
            _save(temporary, images)
    return images


# ---- what is in a source -------------------------------------------------------------------------


class _File(NamedTuple):
    """An image file. path: inside the source. where: for errors. read: its bytes, if called now."""

    path: PurePosixPath
    where: str
    size: int
    read: Callable[[], bytes]

    def class_name(self, levels: int) -> str:
        folders = self.path.parts[:-1][-levels:]
        if len(folders) < levels:
            raise DataError(
                f"Every image must be in {'a folder' if levels == 1 else f'{levels} folders'} that "
                f"give the class its name; {self.where} is not. Move it, or remove it."
            )
        return "/".join(folders)

    def content(self) -> bytes:
        if self.size > LARGEST:
            raise DataError(
                f"An image file must have at most {LARGEST // 2**20} MiB, {self.where} has "
                f"{self.size / 2**20:.0f}; remove it or make it smaller."
            )
        with _whole(self.where):
            return self.read()


@contextmanager
def _whole(where: str) -> Iterator[None]:
    """Errors that damaged or unreadable files cause become DataErrors."""
    try:
        yield
    except _BROKEN as error:
        reason = str(error) or type(error).__name__
        raise DataError(f"{where} cannot be read ({reason}); fetch or pack it again.") from None


def _files(source: Path) -> Iterator[_File]:
    """The image files, in any order. Those of a tar must be read before the next is asked for."""
    if source.is_dir():
        every = _of_folder(source)
    elif tarfile.is_tarfile(source):  # first: a tar that ends with a zip looks like a zip as well
        every = _of_tar(source)
    elif zipfile.is_zipfile(source):
        every = _of_zip(source)
    else:
        raise DataError(
            f"Images must be in a folder, a zip or a tar, and {source} is none, or is damaged; "
            "fetch it again, or correct the path."
        )
    for file in every:
        hidden = any(part.startswith(".") or part == "__MACOSX" for part in file.path.parts)
        if not hidden and file.path.suffix.lower()[1:] in KINDS:
            yield file


def _of_folder(source: Path) -> Iterator[_File]:
    for folder, inner, names in os.walk(source, onerror=_raise):
        for name in inner:
            if Path(folder, name).is_symlink():
                raise DataError(
                    f"Links to folders are not followed, and {Path(folder, name)} is one; put the "
                    "folder itself there."
                )
        for name in names:
            path = Path(folder, name)
            inside = PurePosixPath(path.relative_to(source).as_posix())
            yield _File(inside, str(path), path.stat().st_size, path.read_bytes)


def _of_zip(source: Path) -> Iterator[_File]:
    with zipfile.ZipFile(source) as archive:
        for info in archive.infolist():
            link = stat.S_ISLNK(info.external_attr >> 16)
            path = _label(info.filename, source, plain=not link)
            if not info.is_dir():
                where = f"{info.filename!r} in {source}"
                yield _File(path, where, info.file_size, partial(archive.read, info))


def _of_tar(source: Path) -> Iterator[_File]:
    # Not in tarfile's stream mode, which takes the end of a truncated file for the archive's.
    with tarfile.open(source, "r:*") as archive:
        for info in archive:
            path = _label(info.name, source, plain=info.isfile() or info.isdir())
            if info.isfile():
                where = f"{info.name!r} in {source}"
                yield _File(path, where, info.size, partial(_member, archive, info))
        assert archive.fileobj is not None
        archive.fileobj.seek(archive.offset)
        if archive.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise tarfile.ReadError("it ends before the end mark")


def _member(archive: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(info)
    assert file is not None
    return file.read()


def _label(name: str, source: Path, plain: bool) -> PurePosixPath:
    """A member's name as a path, if it is one of a plain file or folder inside the archive."""
    parts = name.replace("\\", "/").split("/")
    if not plain or parts[0] == "" or parts[0].endswith(":") or ".." in parts:
        raise DataError(
            "An archive must hold plain files and folders, without links, absolute names or '..'; "
            f"{name!r} in {source} is not so. Pack it again without that."
        )
    return PurePosixPath(name)


def _raise(error: OSError) -> NoReturn:
    raise error


# ---- decoding ------------------------------------------------------------------------------------


def _decode(source: Path, decoding: Decoding) -> Images:
    decoded: dict[tuple[str, ...], tuple[str, NDArray[np.uint8]]] = {}
    with _whole(str(source)):
        # Only a choice of classes needs the names first, which costs a second pass over a tar.
        kept = None if decoding.first_classes is None else _first_classes(source, decoding)
        for file in _files(source):
            name = file.class_name(decoding.levels)
            if kept is None or name in kept:
                decoded[file.path.parts] = name, _pixels(file, decoding)
    if not decoded:
        raise _none_in(source)
    classes = _in_order({name for name, _ in decoded.values()})
    number = {name: i for i, name in enumerate(classes)}
    x = np.empty((len(decoded), decoding.channels, *decoding.size), dtype=np.uint8)
    y = np.empty(len(decoded), dtype=np.int64)
    for i, path in enumerate(sorted(decoded)):
        name, pixels = decoded[path]
        x[i], y[i] = pixels.transpose(2, 0, 1), number[name]
    if decoding.invert:
        np.subtract(255, x, out=x)
    return Images(torch.from_numpy(x), torch.from_numpy(y), tuple(classes))


def _first_classes(source: Path, decoding: Decoding) -> set[str]:
    names = _in_order({file.class_name(decoding.levels) for file in _files(source)})
    if not names:
        raise _none_in(source)
    if len(names) < (decoding.first_classes or 0):
        raise DataError(
            f"The first {decoding.first_classes} classes are wanted, and {source} holds "
            f"{len(names)}; ask for fewer, or use a source with more."
        )
    return set(names[: decoding.first_classes])


def _in_order(names: set[str]) -> list[str]:
    """Alphabetical, folder by folder."""
    return sorted(names, key=lambda name: name.split("/"))


def _none_in(source: Path) -> DataError:
    return DataError(
        f"There must be images in {source}, and there are none ({', '.join(KINDS)}); "
        "correct the path."
    )


def _pixels(file: _File, decoding: Decoding) -> NDArray[np.uint8]:
    """(height, width, channels), values 0 to 255."""
    try:
        from PIL import Image
    except ImportError:
        raise DataError("Reading images needs Pillow: pip install 'dpmcl[vision]'.") from None
    content = file.content()
    try:
        image: Image.Image = Image.open(BytesIO(content), formats=_FORMATS)
        image.load()
    except Exception as error:  # Pillow raises whatever a damaged file makes its readers stumble on
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"{file.where} must be a whole image, and cannot be decoded ({reason}); fetch it "
            "again, or remove it."
        ) from None
    if image.mode not in _MODES:
        raise DataError(
            f"Images must have 8 bits a channel or fewer, {file.where} is of Pillow's mode "
            f"'{image.mode}'; convert it."
        )
    image = image.convert("L" if decoding.channels == 1 else "RGB")
    height, width = decoding.size
    if not decoding.crop:
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    else:
        left, top = (image.width - width) // 2, (image.height - height) // 2
        if min(left, top) < 0:
            raise DataError(
                f"Images must be at least {height}x{width} to be cropped to that, {file.where} is "
                f"{image.height}x{image.width}; use larger ones."
            )
        image = image.crop((left, top, left + width, top + height))
    return np.asarray(image).reshape(height, width, decoding.channels)


# ---- the cache -----------------------------------------------------------------------------------


def _key(source: Path, decoding: Decoding) -> str:
    """Names everything that the tensors depend on: SHA-256, in hex."""
    source = source.resolve()
    if source.is_dir():
        kind = "folder"
        times = sorted(
            (str(f.path), f.size, Path(f.where).stat().st_mtime_ns) for f in _files(source)
        )
    else:
        kind, info = "archive", source.stat()
        times = [("", info.st_size, info.st_mtime_ns)]
    line = json.dumps([_VERSION, kind, str(source), times, asdict(decoding)], sort_keys=True)
    return hashlib.sha256(line.encode()).hexdigest()


def _save(path: Path, images: Images) -> None:
    classes = json.dumps(images.classes)
    about = {"classes": classes, "sum": _sum(images.x, images.y, classes)}
    save_file({"x": images.x, "y": images.y}, path, about)


def _cached(path: Path) -> Images | None:
    """What the file holds; None where there is none, or it is damaged."""
    try:
        with safe_open(path, "pt") as file:
            about = file.metadata()
            x, y, classes = file.get_tensor("x"), file.get_tensor("y"), about["classes"]
        if about["sum"] == _sum(x, y, classes):
            return Images(x, y, tuple(json.loads(classes)))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        pass
    return None


def _sum(x: Tensor, y: Tensor, classes: str) -> str:
    """CRC-32 of all three: safetensors itself would not notice a changed pixel."""
    return str(zlib.crc32(x.numpy().data, zlib.crc32(y.numpy().data, zlib.crc32(classes.encode()))))
