"""PIL images of any origin, converted to one form: upright, grey or RGB, 8 bits per channel."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Literal

from dpmcl.data.read_errors import reading
from dpmcl.exceptions import DataError, needed_for

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF", "AVIF", "HEIF")
"""Formats that are read if Pillow supports them: AVIF since 11.3, HEIF with pillow-heif.

Pillow's other formats are excluded because some start external programs.
"""

SUFFIXES = (
    "avif", "bmp", "gif", "heic", "heif", "jfif", "jpe", "jpeg", "jpg", "pbm", "pgm", "png", "pnm",
    "ppm", "tif", "tiff", "webp",
)  # fmt: skip
"""Suffixes of image files."""

_GREY = ("1", "L", "LA")
_MODES = (*_GREY, "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV")


def open_image(content: bytes, where: str) -> "Image.Image":
    """Open an image file.

    Args:
        content: Bytes of the file.
        where: Name of the image in errors.

    Returns:
        The image, not yet decoded.

    Raises:
        DataError: The bytes are not an image in one of the `FORMATS`, or Pillow is not installed.
    """
    with needed_for("Reading images", "dpmcl[vision]", DataError):
        from PIL import Image, UnidentifiedImageError
    Image.init()
    formats = [name for name in FORMATS if name in Image.OPEN]
    with readable(where):
        try:
            return Image.open(BytesIO(content), formats=formats)
        except UnidentifiedImageError:  # its message has the address of an object
            raise DataError(
                f"An image must be a {', '.join(formats)}, and Pillow cannot identify {where} as "
                "one; convert it, replace it, or remove it."
            ) from None


def plain_image(
    image: "Image.Image",
    where: str,
    channels: Literal[1, 3] | None = None,
    mode: str | None = None,
) -> "Image.Image":
    """Return an image as viewers show it, in mode "L" or "RGB".

    The orientation in its EXIF data is applied. Colour profiles and gamma are not; CMYK is
    converted as Pillow does.

    Args:
        image: Any image, loaded or not.
        where: Name of the image in errors.
        channels: 1 for grey, 3 for RGB; None for grey if the image is grey, else RGB.
        mode: Pillow's mode to convert to first, which a Hugging Face column can request; or None.

    Raises:
        DataError: The image cannot be decoded, or has several frames, more than 8 bits per channel,
            or transparent pixels.
    """
    from PIL import ImageOps

    with readable(where):
        # The first picture of a multi-picture JPEG (MPO, from phones) is the image itself.
        if getattr(image, "is_animated", False) and image.format != "MPO":
            raise DataError(
                f"An image must be a single picture, and {where} holds {image.n_frames} "  # type: ignore[attr-defined]
                "(an animation, or pages); save the one that is meant, or remove it."
            )
        deep = _is_deep(image)
        image.load()
        image = ImageOps.exif_transpose(image)
        if mode is not None and not deep and not image.mode.startswith(("I", "F")):
            image = image.convert(mode)
        if deep or image.mode not in _MODES:
            what = "has more" if deep else f"is of Pillow's mode '{image.mode}'"
            raise DataError(
                "Images must be grey, RGB or CMYK with 8 bits a channel or fewer, and "
                f"{where} {what}; convert it."
            )
        transparent = image.mode in ("LA", "P", "PA", "RGBA") or "transparency" in image.info
        if transparent and image.convert("RGBA").getchannel("A").getextrema()[0] != 255:
            raise DataError(
                f"Images must be opaque, and {where} has transparent pixels, whose colour depends "
                "on what lies behind; paste it on a background."
            )
        return image.convert("L" if (channels or (1 if image.mode in _GREY else 3)) == 1 else "RGB")


def _is_deep(image: "Image.Image") -> bool:
    """Return True for more than 8 bits per channel, which Pillow would silently reduce to 8."""
    for *_, arguments in getattr(image, "tile", ()):
        mode, *rest = arguments if isinstance(arguments, tuple) else (arguments,)
        if ";16" in str(mode) and not str(mode).startswith("BGR"):  # "BGR;16": 5, 6 and 5 bits
            return True
        if mode in ("L", "RGB") and rest[:1] and isinstance(rest[0], int) and rest[0] > 255:
            return image.format == "PPM"  # whose argument is the largest value
    return False


@contextmanager
def readable(where: str) -> Iterator[None]:
    """Turn an error of Pillow, or its warning about a huge image, into a DataError.

    Args:
        where: Name of the image in errors.

    Raises:
        DataError: Pillow cannot read the image, or it has too many pixels.
    """
    from PIL import Image

    with reading(where, "replace it, or remove it", anything=True), warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        # `plain_image` checks the alpha channel of such images itself.
        warnings.filterwarnings("ignore", "Palette images with Transparency")
        try:
            yield
        except (Image.DecompressionBombWarning, Image.DecompressionBombError):
            most = (Image.MAX_IMAGE_PIXELS or 0) / 1e6
            raise DataError(
                f"An image must have at most {most:.0f} million pixels, {where} has more; make it "
                "smaller, or remove it."
            ) from None
