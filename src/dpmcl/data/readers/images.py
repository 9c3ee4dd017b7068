"""Images in a folder, a zip or a tar, one folder a class; decoded once, then read from a cache.

Archives are read in memory. Nothing is unpacked to disk, and names of members serve as labels only.
"""

import os
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from dpmcl.core.settings import Positive, Settings
from dpmcl.data.damaged import whole
from dpmcl.data.labelled import Labelled
from dpmcl.data.labels import in_order
from dpmcl.data.readers.class_folders import Classes, Entry, class_folders
from dpmcl.data.readers.image_cache import Images, Spool, cache_folder, cache_key, load_images
from dpmcl.data.readers.pil_images import open_image, plain
from dpmcl.data.sources import at_home
from dpmcl.exceptions import DataError, SpecError

if TYPE_CHECKING:
    from PIL import Image

LARGEST = 64 * 2**20
"""Bytes that one image file may have."""

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
"""Suffixes of archives of images."""


@dataclass(frozen=True, kw_only=True)
class Decoding(Settings):
    """How files become tensors.

    size: (height, width); None where all images have one size, which they keep. channels: 1 grey,
    3 RGB, None for 3 unless all images are grey.
    crop: cut the centre out at its own scale; otherwise the image is resized with Pillow's BILINEAR
    filter, which averages over the whole source area when it shrinks. invert: 255 - value.
    levels: how many folders make the class name: 1 for "cat", 2 for "Latin/character03".
    innermost: they are the last above the file, and not the first below the source.
    first_classes: how many classes to keep, in order of name; None for all.

    Raises SpecError for values that cannot be.
    """

    size: tuple[Positive, Positive] | None = None
    channels: Literal[1, 3] | None = None
    crop: bool = False
    invert: bool = False
    levels: Positive = 1
    innermost: bool = False
    first_classes: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size is None and self.crop:
            raise SpecError("crop needs a size to cut out, as in size = [28, 28]; set one.")


def data_folder(name: str) -> Path:
    """Where a stream's files are kept: $DPMCL_DATA/name, or else ~/.cache/dpmcl/name."""
    home = os.environ.get("DPMCL_DATA")
    return (Path(home) if home else Path.home() / ".cache" / "dpmcl") / name


def read_images(source: Path, decoding: Decoding, cache: Path | None = None) -> Images:
    """The images of a folder, a zip or a tar (any compression), in order of path.

    Classes are in alphabetical order. Files that are not images by their suffix, hidden files and
    __MACOSX are passed over; the notes say so. See `class_folders` for the names of classes, and
    `pil_images.plain` for the pixels.
    cache: folder of decoded images, None for `cache_folder()`. A file there counts as long as
    `decoding` and the archive (its path, size and time), or the folder's images (theirs), stay the
    same.
    Raises DataError for a source that is missing, damaged, unsafe or without images, and for images
    that cannot be decoded or are of several sizes where none is given.
    """
    with whole(str(source)[:200]):  # a name too long, a home of nobody
        source = Path(at_home(str(source))).absolute()
        there = source.exists()
    if not there:
        raise DataError(
            f"Images must be a folder, zip or tar that exists, got {source}; correct the path."
        )
    with whole(str(source)):
        path = (cache or cache_folder()) / _key(source, decoding)
    return load_images(path) or _decode(source, decoding, path)


def labelled_images(path: Path, decoding: Decoding, name: str | None = None) -> Labelled:
    """The images of a folder, a zip or a tar, one folder a class, as labelled data.

    name: for titles; None for the folder's or the archive's. Raises DataError as `read_images`.
    """
    images = read_images(path, decoding)
    title = name or _title(path)
    return Labelled(title, "classification", images.x, images.y, images.classes, notes=images.notes)


def _title(path: Path) -> str:
    name = path.expanduser().absolute().name
    return next((name[: -len(end)] for end in ARCHIVES if name.lower().endswith(end)), name)


# ---- what is in a source -------------------------------------------------------------------------


@dataclass(frozen=True)
class _File(Entry):
    """A file or folder. size: in bytes. read: the bytes of a file, if called now."""

    size: int
    read: Callable[[], bytes]

    def content(self) -> bytes:
        if self.size > LARGEST:
            raise DataError(
                f"An image file must have at most {LARGEST // 2**20} MiB, {self.where} has "
                f"{self.size / 2**20:.0f}; remove it or make it smaller."
            )
        with whole(self.where):
            return self.read()


def _files(source: Path) -> Iterator[_File]:
    """All files and folders, in any order. Those of a tar must be read before the next comes."""
    with whole(str(source)):
        if source.is_dir():
            yield from _of_folder(source)
        elif tarfile.is_tarfile(source):  # first: one that ends with a zip looks like a zip as well
            yield from _of_tar(source)
        elif zipfile.is_zipfile(source):
            yield from _of_zip(source)
        else:
            raise DataError(
                f"Images must be in a folder, a zip or a tar, and {source} is none, or is damaged; "
                "correct the path, or pack it again."
            )


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
        for name in (*inner, *names):
            path = Path(folder, name)
            if path.exists() and not (path.is_file() or path.is_dir()):
                raise DataError(f"Images must be files, and {path} is none; remove it.")
            inside = PurePosixPath(path.relative_to(source).as_posix())
            size = path.stat().st_size
            yield _File(inside, str(path), path.is_dir(), size, path.read_bytes)


def _of_zip(source: Path) -> Iterator[_File]:
    with zipfile.ZipFile(source) as archive:
        for info in sorted(archive.infolist(), key=lambda info: info.filename):
            link = stat.S_ISLNK(info.external_attr >> 16)
            name = _zip_name(info)
            path = _label(name, source, plain=not link)
            where = f"{name!r} in {source}"
            yield _File(path, where, info.is_dir(), info.file_size, partial(archive.read, info))


def _zip_name(info: zipfile.ZipInfo) -> str:
    """The name of a member; many programs write UTF-8 and do not say so, as they should."""
    if info.flag_bits & 0x800:
        return info.filename
    try:
        return info.filename.encode("cp437").decode("utf-8")
    except UnicodeError:
        return info.filename


def _of_tar(source: Path) -> Iterator[_File]:
    # Not in tarfile's stream mode, which takes the end of a truncated file for the archive's.
    with tarfile.open(source, "r:*") as archive:
        for info in archive:
            path = _label(info.name, source, plain=info.isfile() or info.isdir())
            where = f"{info.name!r} in {source}"
            yield _File(path, where, info.isdir(), info.size, partial(_member, archive, info))
        assert archive.fileobj is not None
        archive.fileobj.seek(archive.offset)
        if archive.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise tarfile.ReadError("it ends before the end mark")


def _member(archive: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(info)
    assert file is not None
    return file.read()


def _label(name: str, source: Path, plain: bool) -> PurePosixPath:
    """A member's name as a path, if it is one of a plain file or folder inside the archive.

    Some programs of Windows part folders by "\\".
    """
    parts = name.replace("\\", "/").split("/")
    if not plain or parts[0] == "" or parts[0].endswith(":") or ".." in parts:
        raise DataError(
            "An archive must hold plain files and folders, without links, absolute names or '..'; "
            f"{name!r} in {source} is not so. Pack it again without that."
        )
    return PurePosixPath(*parts)


def _raise(error: OSError) -> NoReturn:
    raise error


# ---- decoding ------------------------------------------------------------------------------------


def _decode(source: Path, decoding: Decoding, path: Path) -> Images:
    """path: in the cache."""
    found: dict[PurePosixPath, int] = {}  # number in the spool
    # The classes come first where that costs no second pass, or only some are wanted.
    with whole(str(source)):
        quick = source.is_dir() or not tarfile.is_tarfile(source)
    early = quick or decoding.first_classes is not None
    with Spool(path.parent) as spool:
        classes = _classes(list(_files(source)), source, decoding) if early else None
        files = []
        for file in _files(source):
            files.append(file)
            if file.is_image and (classes is None or file.path in classes.of):
                found[file.path] = len(spool)
                spool.add(_pixels(file, decoding), file.where)
        classes = classes or _classes(files, source, decoding)
        paths = sorted(found, key=lambda path: path.parts)
        names = in_order({classes.of[path] for path in paths}, folders=True)
        number = {name: i for i, name in enumerate(names)}
        y = np.array([number[classes.of[path]] for path in paths], dtype=np.int64)
        return spool.keep(path, y, names, [found[path] for path in paths], classes.notes)


def _classes(files: Sequence[Entry], source: Path, decoding: Decoding) -> Classes:
    """The classes of the images that are wanted."""
    classes = class_folders(files, str(source), decoding.levels, decoding.innermost)
    if decoding.first_classes is None:
        return classes
    names = in_order(set(classes.of.values()), folders=True)
    if len(names) < decoding.first_classes:
        raise DataError(
            f"The first {decoding.first_classes} classes are wanted, and {source} holds "
            f"{len(names)}; ask for fewer, or use a source with more."
        )
    kept = set(names[: decoding.first_classes])
    return classes._replace(of={path: name for path, name in classes.of.items() if name in kept})


def _pixels(file: _File, decoding: Decoding) -> NDArray[np.uint8]:
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise DataError("Reading images needs Pillow: pip install 'dpmcl[vision]'.") from None
    return pixels(open_image(file.content(), file.where), file.where, decoding)


def pixels(image: "Image.Image", where: str, decoding: Decoding) -> NDArray[np.uint8]:
    """An image as uint8 (channels, height, width). where: names it in errors.

    Raises DataError for what `plain` refuses, and for images too small to be cropped.
    """
    from PIL.Image import Resampling

    image = plain(image, where, decoding.channels)
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
    out = np.asarray(image).reshape(height, width, -1).transpose(2, 0, 1)
    return 255 - out if decoding.invert else out


def _key(source: Path, decoding: Decoding) -> str:
    """Of everything that the tensors depend on."""
    source = source.resolve()
    if not source.is_dir():
        info = source.stat()
        times = [("", info.st_size, info.st_mtime_ns)]
        return cache_key("archive", str(source), times, asdict(decoding))
    times = sorted(
        (str(f.path), f.size, Path(f.where).stat().st_mtime_ns) if f.is_image
        # Names alone tell which class folders are empty, and what was passed over.
        else (str(f.path), 0, 0)
        for f in _files(source)
    )  # fmt: skip
    return cache_key("folder", str(source), times, asdict(decoding))
