"""Reader of images in a folder, zip or tar with one folder per class; decoded once and cached."""

from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from dpmcl.core.settings import Positive, Settings
from dpmcl.data.labelled import Labelled
from dpmcl.data.labels import sorted_names
from dpmcl.data.read_errors import reading
from dpmcl.data.readers.class_folders import class_folders
from dpmcl.data.readers.entries import ARCHIVES, entries, stamp
from dpmcl.data.readers.gathering import Gathering
from dpmcl.data.readers.image_cache import cached
from dpmcl.data.readers.pil_images import open_image, plain_image
from dpmcl.data.sources import expand_home
from dpmcl.exceptions import DataError, SpecError

if TYPE_CHECKING:
    from PIL import Image

SET_A_SIZE = "set stream.size, as in size = [64, 64]"
"""Advice in errors about images of several sizes."""


@dataclass(frozen=True, kw_only=True)
class Decoding(Settings):
    """Settings that decide how image files become tensors.

    Attributes:
        size: (height, width) of the inputs; None to keep the size, which must then be the same for
            all images.
        channels: 1 for grey, 3 for RGB; None for grey if all images are grey, else RGB.
        crop: Whether to crop the centre without scaling. Otherwise images are resized with Pillow's
            BILINEAR filter, which averages over the whole source area when it shrinks an image.
        invert: Whether to replace each value by 255 - value.
        levels: Number of nested folders whose names make a class name: 1 for "cat", 2 for
            "Latin/character03".

    Raises:
        SpecError: A value is invalid.
    """

    size: tuple[Positive, Positive] | None = None
    channels: Literal[1, 3] | None = None
    crop: bool = False
    invert: bool = False
    levels: Positive = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size is None and self.crop:
            raise SpecError("crop needs a size to cut out, as in size = [28, 28]; set one.")

    def cache_key(self) -> list[Any]:
        """Return the values of these settings, without those that a subclass adds."""
        return [getattr(self, field.name) for field in fields(Decoding)]


def labelled_images(path: Path, decoding: Decoding, name: str | None = None) -> Labelled:
    """Return the images of a folder, zip or tar with one folder per class as labelled data.

    Rows are in order of path, classes in alphabetical order. Hidden files and files without the
    suffix of an image are skipped and counted in the notes. See `class_folders` for the names of
    classes, and `pil_images.plain_image` for the pixels. Images are decoded once, and then read
    from `image_cache.cache_folder()` as long as path, size and times of the source's files stay
    the same.

    Args:
        path: Path of the folder or archive; ~ is the home folder.
        decoding: Settings that decide how files become tensors.
        name: Name for titles; None for the name of the folder or archive.

    Raises:
        DataError: The source is missing, damaged, unsafe or without images, an image cannot be
            decoded, or images have several sizes and `decoding` sets none.
    """
    with reading(str(path)[:200]):  # the name may be too long, or name an unknown user
        source = Path(expand_home(str(path))).absolute()
        if not source.exists():
            raise DataError(
                f"Images must be a folder, zip or tar that exists, got {source}; correct the path."
            )
        key_parts = ["files", str(source.resolve()), stamp(source), decoding.cache_key()]
    title = next((source.name[: -len(s)] for s in ARCHIVES if source.name.lower().endswith(s)), "")
    return cached(name or title or source.name, key_parts, partial(_decode, source, decoding))


def pixels(
    image: "Image.Image", where: str, decoding: Decoding, mode: str | None = None
) -> NDArray[np.uint8]:
    """Return an image as uint8 (channels, height, width).

    Args:
        image: Any image, loaded or not.
        where: Name of the image in errors.
        decoding: Settings that decide how images become tensors.
        mode: Pillow's mode to convert to first, or None (see `plain_image`).

    Raises:
        DataError: `plain_image` refuses the image, or it is too small to crop.
    """
    from PIL.Image import Resampling

    image = plain_image(image, where, decoding.channels, mode)
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


def _decode(source: Path, decoding: Decoding) -> Labelled:
    """Decode the images of a source: one pass to name the classes, and one to read the images."""
    files = list(entries(source))
    classes = class_folders(files, str(source), decoding.levels)
    paths = sorted(classes.by_path, key=lambda path: path.parts)
    row = {path: number for number, path in enumerate(paths)}
    rows = Gathering(len(paths), lambda index: f"{str(paths[index])!r} in {source}", SET_A_SIZE)
    missing = set(paths)
    for file in entries(source):
        if file.path in row and not file.is_folder:
            image = open_image(file.content(), file.where)
            rows.put_image(row[file.path], pixels(image, file.where, decoding))
            missing.discard(file.path)
    if missing:
        raise DataError(
            f"Files must stay as they are while they are read, and {str(min(missing))!r} in "
            f"{source} is gone; start again."
        )
    names = sorted_names(set(classes.by_path.values()), folders=True)
    number = {name: i for i, name in enumerate(names)}
    y = torch.tensor([number[classes.by_path[path]] for path in paths])
    x = torch.from_numpy(rows.array)
    return Labelled(source.name, "classification", x, y, tuple(names), notes=classes.notes)
