"""Images in a folder, a zip or a tar, one folder a class; decoded once, then read from a cache.

Archives are read in memory. Nothing is unpacked to disk, and names of members serve as labels only.
"""

import lzma
import os
import stat
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from dpmcl.exceptions import DataError, DpmclError, SpecError
from dpmcl.image_cache import Images, Spool, cache_folder, cache_key, load_images
from dpmcl.labelled import Labelled
from dpmcl.sources import at_home

if TYPE_CHECKING:
    from PIL import Image

KINDS = ("bmp", "gif", "jpeg", "jpg", "pgm", "png", "ppm", "tif", "tiff", "webp")
"""Suffixes of image files."""
LARGEST = 64 * 2**20
"""Bytes that one image file may have."""

_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")
_GREY = ("1", "L", "LA")
_MODES = (*_GREY, "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")
_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
_BROKEN = (
    OSError,
    EOFError,
    RuntimeError,  # an encrypted zip, and NotImplementedError for its rarer compressions
    lzma.LZMAError,
    zlib.error,
    zipfile.BadZipFile,
    tarfile.TarError,
    ValueError,  # tarfile's, for numbers in a header that are none
)


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """How files become tensors.

    size: (height, width); None where all images have one size, which they keep. channels: 1 grey,
    3 RGB, None for 3 unless all images are grey; transparency is ignored.
    crop: cut the centre out at its own scale; otherwise the image is resized with Pillow's BILINEAR
    filter, which averages over the whole source area when it shrinks. invert: 255 - value.
    levels: how many folders above the file make the class name: 1 for "cat", 2 for
    "Latin/character03". first_classes: how many classes to keep, in order of name; None for all.

    Raises SpecError for values that cannot be.
    """

    size: tuple[int, int] | None = None
    channels: Literal[1, 3] | None = None
    crop: bool = False
    invert: bool = False
    levels: int = 1
    first_classes: int | None = None

    def __post_init__(self) -> None:
        if self.size is not None and not _is_size(self.size):
            got = list(self.size) if isinstance(self.size, tuple) else repr(self.size)
            raise SpecError(f"size must be two numbers above 0, height and width, got {got}.")
        if self.size is None and self.crop:
            raise SpecError("crop needs a size to cut out, as in size = [28, 28]; set one.")
        if self.channels not in (None, 1, 3):
            raise SpecError(f"channels must be 1 (grey) or 3 (RGB), got {self.channels!r}.")
        if self.levels < 1:
            raise SpecError(f"levels must be at least 1, got {self.levels}.")


def _is_size(size: object) -> bool:
    """Whether it is what the annotation says; Python users may give anything."""
    return (
        isinstance(size, tuple | list)
        and len(size) == 2
        and all(isinstance(side, int) and side > 0 for side in size)
    )


def data_folder(name: str) -> Path:
    """Where a stream's files are kept: $DPMCL_DATA/name, or else ~/.cache/dpmcl/name."""
    home = os.environ.get("DPMCL_DATA")
    return (Path(home) if home else Path.home() / ".cache" / "dpmcl") / name


def read_images(source: Path, decoding: Decoding, cache: Path | None = None) -> Images:
    """The images of a folder, a zip or a tar (any compression), in order of path.

    Classes are in alphabetical order. Files that are not images by their suffix, hidden files and
    __MACOSX are passed over.
    cache: folder of decoded images, None for `cache_folder()`. A file there counts as long as the
    archive (its path, size and time), or the folder's files (theirs), and `decoding` stay the same.
    Raises DataError for a source that is missing, damaged, unsafe or without images, and for images
    that cannot be decoded or are of several sizes where none is given.
    """
    with _whole(str(source)[:200]):  # a name too long, a home of nobody
        source = Path(at_home(str(source))).absolute()
        there = source.exists()
    if not there:
        raise DataError(
            f"Images must be a folder, zip or tar that exists, got {source}; correct the path."
        )
    with _whole(str(source)):
        path = (cache or cache_folder()) / _key(source, decoding)
    return load_images(path) or _decode(source, decoding, path)


def labelled_images(path: Path, decoding: Decoding, name: str | None = None) -> Labelled:
    """The images of a folder, a zip or a tar, one folder a class, as labelled data.

    name: for titles; None for the folder's or the archive's. Raises DataError as `read_images`.
    """
    images = read_images(path, decoding)
    return Labelled(name or _title(path), "classification", images.x, images.y, images.classes)


def _title(path: Path) -> str:
    name = path.expanduser().absolute().name
    return next((name[: -len(end)] for end in _ARCHIVES if name.lower().endswith(end)), name)


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
    except DpmclError:
        raise
    except _BROKEN as error:
        reason = str(error) or type(error).__name__
        raise DataError(f"{where} cannot be read ({reason}); fetch or pack it again.") from None


def _files(source: Path) -> Iterator[_File]:
    """The image files, in any order. Those of a tar must be read before the next is asked for."""
    if source.is_dir():
        every = _of_folder(source)
    elif _is_tar(source):  # first: a tar that ends with a zip looks like a zip as well
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


def _is_tar(source: Path) -> bool:
    with _large_headers():
        return tarfile.is_tarfile(source)


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    while True:
        with _large_headers():
            info = archive.next()
        if info is None:
            return
        yield info


@contextmanager
def _large_headers() -> Iterator[None]:
    """tarfile reads a header in one piece, however large it says to be."""
    try:
        yield
    except (MemoryError, OverflowError):
        raise tarfile.ReadError("a header is too large") from None


def _of_folder(source: Path) -> Iterator[_File]:
    for folder, inner, names in os.walk(source, onerror=_raise):
        inner.sort()
        names.sort()
        for name in inner:
            if Path(folder, name).is_symlink():
                raise DataError(
                    f"Links to folders are not followed, and {Path(folder, name)} is one; put the "
                    "folder itself there."
                )
        for name in names:
            path = Path(folder, name)
            if path.exists() and not path.is_file():
                raise DataError(f"Images must be files, and {path} is none; remove it.")
            inside = PurePosixPath(path.relative_to(source).as_posix())
            yield _File(inside, str(path), path.stat().st_size, path.read_bytes)


def _of_zip(source: Path) -> Iterator[_File]:
    with zipfile.ZipFile(source) as archive:
        for info in sorted(archive.infolist(), key=lambda info: info.filename):
            link = stat.S_ISLNK(info.external_attr >> 16)
            path = _label(info.filename, source, plain=not link)
            if not info.is_dir():
                where = f"{info.filename!r} in {source}"
                yield _File(path, where, info.file_size, partial(archive.read, info))


def _of_tar(source: Path) -> Iterator[_File]:
    # Not in tarfile's stream mode, which takes the end of a truncated file for the archive's.
    with tarfile.open(source, "r:*") as archive:
        for info in _members(archive):
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


def _decode(source: Path, decoding: Decoding, path: Path) -> Images:
    """path: in the cache."""
    found: dict[tuple[str, ...], tuple[str, int]] = {}  # class name, and number in the spool
    with _whole(str(source)), Spool(path.parent) as spool:
        # Only a choice of classes needs the names first, which costs a second pass over a tar.
        kept = None if decoding.first_classes is None else _first_classes(source, decoding)
        for file in _files(source):
            name = file.class_name(decoding.levels)
            if kept is None or name in kept:
                found[file.path.parts] = name, len(spool)
                spool.add(_pixels(file, decoding), file.where)
        if not found:
            raise _none_in(source)
        rows = [found[parts] for parts in sorted(found)]
        classes = _in_order({name for name, _ in rows})
        number = {name: i for i, name in enumerate(classes)}
        y = np.array([number[name] for name, _ in rows], dtype=np.int64)
        return spool.keep(path, y, classes, [row for _, row in rows])


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
    try:
        from PIL import Image
    except ImportError:
        raise DataError("Reading images needs Pillow: pip install 'dpmcl[vision]'.") from None
    content = file.content()
    with readable(file.where):
        image: Image.Image = Image.open(BytesIO(content), formats=_FORMATS)
        image.load()
    return pixels(image, file.where, decoding)


@contextmanager
def readable(where: str) -> Iterator[None]:
    """Errors of Pillow become DataErrors; so does its warning of images too large to unpack."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise DataError(
            f"An image must have at most {(Image.MAX_IMAGE_PIXELS or 0) / 1e6:.0f} million pixels, "
            f"{where} has more; make it smaller, or remove it."
        ) from None
    except Exception as error:  # Pillow raises whatever a damaged file makes its readers stumble on
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"{where} must be a whole image, and cannot be decoded ({reason}); fetch it again, or "
            "remove it."
        ) from None


def pixels(image: "Image.Image", where: str, decoding: Decoding) -> NDArray[np.uint8]:
    """An image that is loaded, as uint8 (channels, height, width). where: names it in errors.

    Raises DataError for more than 8 bits a channel, and for images too small to be cropped.
    """
    from PIL.Image import Resampling

    if image.mode not in _MODES:
        raise DataError(
            f"Images must have 8 bits a channel or fewer, {where} is of Pillow's mode "
            f"'{image.mode}'; convert it."
        )
    channels = decoding.channels or (1 if image.mode in _GREY else 3)
    image = image.convert("L" if channels == 1 else "RGB")
    height, width = decoding.size or (image.height, image.width)
    if not decoding.crop:
        image = image.resize((width, height), Resampling.BILINEAR)
    else:
        left, top = (image.width - width) // 2, (image.height - height) // 2
        if min(left, top) < 0:
            raise DataError(
                f"Images must be at least {height}x{width} to be cropped to that, {where} is "
                f"{image.height}x{image.width}; use larger ones."
            )
        image = image.crop((left, top, left + width, top + height))
    out = np.asarray(image).reshape(height, width, channels).transpose(2, 0, 1)
    return 255 - out if decoding.invert else out


def _key(source: Path, decoding: Decoding) -> str:
    """Of everything that the tensors depend on."""
    source = source.resolve()
    if not source.is_dir():
        info = source.stat()
        times = [("", info.st_size, info.st_mtime_ns)]
        return cache_key("archive", str(source), times, asdict(decoding))
    times = sorted((str(f.path), f.size, Path(f.where).stat().st_mtime_ns) for f in _files(source))
    return cache_key("folder", str(source), times, asdict(decoding))
