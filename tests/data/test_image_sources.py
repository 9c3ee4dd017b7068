"""The same images give the same stream from every source, or are refused by name in all of them."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import dpmcl
from conftest import refused
from packed import Files, encoded, folder, noise, with_header

datasets = pytest.importorskip("datasets")
torchvision = pytest.importorskip("torchvision")

HEIGHT, WIDTH = 4, 6


pytestmark = pytest.mark.usefixtures("nowhere")


def colour(seed: int) -> Image.Image:
    return Image.fromarray(noise(seed, HEIGHT, WIDTH, 3))


def grey(seed: int) -> Image.Image:
    return Image.fromarray(noise(seed, HEIGHT, WIDTH))


# ---- sources: class/name -------------------------------------------------------------------------


def in_folder(place: Path, files: Files) -> dpmcl.Stream:
    return dpmcl.Stream.from_images(folder(place, files))


def in_hugging_face(place: Path, files: Files) -> dpmcl.Stream:
    names = sorted(files)
    made = {
        "image": [{"bytes": files[name], "path": None} for name in names],
        "label": [name.split("/")[0] for name in names],
    }
    features = {"image": datasets.Image(), "label": datasets.Value("string")}
    made = datasets.Dataset.from_dict(made, features=datasets.Features(features))
    return dpmcl.Stream.from_dataset(made)


def as_items(place: Path, files: Files) -> dpmcl.Stream:
    return dpmcl.Stream.from_dataset(
        [(Image.open(io.BytesIO(files[name])), name.split("/")[0]) for name in sorted(files)]
    )


SOURCES = [in_folder, in_hugging_face, as_items]
"""One of each that decodes or receives images in its own way."""


# ---- what is read --------------------------------------------------------------------------------

UPRIGHT: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda stored: stored,
    2: lambda stored: stored[:, ::-1],
    3: lambda stored: stored[::-1, ::-1],
    4: lambda stored: stored[::-1],
    5: lambda stored: stored.swapaxes(0, 1),
    6: lambda stored: np.rot90(stored, -1),
    7: lambda stored: np.rot90(stored, 2).swapaxes(0, 1),
    8: lambda stored: np.rot90(stored, 1),
}
"""What each orientation of EXIF asks a viewer to do."""


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize(
    ("kind", "options"), [("PNG", {}), ("TIFF", {}), ("WEBP", {"lossless": True}), ("JPEG", {})]
)
def test_images_stand_upright_from_every_source(kind, options, orientation, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = [encoded(colour(seed), kind, exif=exif, **options) for seed in range(2)]
    files = {f"{'ab'[i]}/{i}.{kind.lower()}": content for i, content in enumerate(stored)}
    plain = [np.asarray(colour(seed)) for seed in range(2)]
    if kind == "JPEG":  # lossy
        plain = [np.asarray(Image.open(io.BytesIO(content))) for content in stored]
    expected = np.stack([UPRIGHT[orientation](pixels) for pixels in plain]).transpose(0, 3, 1, 2)
    for source in SOURCES:
        stream = source(tmp_path / source.__name__, files)
        assert np.array_equal(stream.x.numpy(), expected), source.__name__
    theirs = torchvision.datasets.ImageFolder(tmp_path / "in_folder")
    assert np.array_equal(dpmcl.Stream.from_dataset(theirs).x.numpy(), expected)


def few_colours(seed: int) -> Image.Image:
    return colour(seed).quantize(8)


KINDS = {
    "grey": lambda i: encoded(grey(i), "PNG"),
    "black and white": lambda i: encoded(grey(i).convert("1"), "PNG"),
    "palette": lambda i: encoded(few_colours(i), "PNG"),
    "CMYK, as Adobe inverts it": lambda i: encoded(colour(i).convert("CMYK"), "JPEG"),
    "CMYK": lambda i: encoded(colour(i).convert("CMYK"), "TIFF"),
    "YCbCr": lambda i: encoded(colour(i), "TIFF", compression="jpeg"),
    "grey and colour": lambda i: encoded((grey if i else colour)(i), "PNG"),
    "several kinds": lambda i: encoded(few_colours(i) if i % 2 else grey(i), "PNG"),
}


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_image_is_the_same_from_every_source(kind, tmp_path):
    files = {f"{name}/{i}.png": KINDS[kind](i) for i, name in enumerate("aabb")}
    pictures = [Image.open(io.BytesIO(files[name])) for name in sorted(files)]
    mode = "L" if all(p.mode in ("1", "L") for p in pictures) else "RGB"
    expected = np.stack([np.asarray(picture.convert(mode)) for picture in pictures])
    expected = expected[:, None] if mode == "L" else expected.transpose(0, 3, 1, 2)
    first = in_folder(tmp_path / "folder", files)
    assert np.array_equal(first.x.numpy(), expected)
    for source in SOURCES:
        stream = source(tmp_path / source.__name__, files)
        assert torch.equal(stream.x, first.x), source.__name__
        assert stream.classes == ("a", "b")
        assert stream.digest() == first.digest()


def test_a_photograph_of_a_phone_shows_its_first_picture(tmp_path):
    """A JPEG with a preview behind it (MPO)."""
    content = encoded(colour(0), "MPO", save_all=True, append_images=[grey(1).convert("RGB")])
    assert Image.open(io.BytesIO(content)).n_frames == 2
    expected = np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).transpose(2, 0, 1)
    for source in SOURCES:
        stream = source(tmp_path / source.__name__, {"a/1.jpg": content, "b/1.jpg": content})
        assert np.array_equal(stream.x[1].numpy(), expected), source.__name__


# ---- what is refused -----------------------------------------------------------------------------


def sixteen_bits(mode: str) -> bytes:
    """A PNG of two bytes a channel, which Pillow cannot write in colour."""
    content = encoded(Image.fromarray(noise(0, HEIGHT, 6 * WIDTH).view(np.uint16)))
    return (
        with_header(content, WIDTH, HEIGHT, bytes((16, 2, 0, 0, 0))) if mode == "RGB" else content
    )


def see_through(image: Image.Image) -> Image.Image:
    image.putpixel((0, 0), (*image.getpixel((0, 0))[:-1], 254))
    return image


FRAMES = {"save_all": True, "append_images": [colour(1), colour(2)]}
REFUSED = {
    "transparent": (encoded(see_through(colour(0).convert("RGBA")), "PNG"), "opaque"),
    "transparent palette": (encoded(few_colours(0), "PNG", transparency=1), "opaque"),
    "16 bits": (sixteen_bits("I;16"), "8 bits"),
    "16 bits of colour": (sixteen_bits("RGB"), "8 bits"),
    "floats": (encoded(grey(0).convert("F"), "TIFF"), "8 bits"),
    "an animated GIF": (encoded(colour(0), "GIF", **FRAMES), "holds 3"),
    "an animated PNG": (encoded(colour(0), "PNG", **FRAMES), "holds 3"),
    "a TIFF of three pages": (encoded(colour(0), "TIFF", **FRAMES), "holds 3"),
    "cut": (encoded(colour(0), "BMP")[:-9], "cannot be read"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_would_be_lost_is_refused_by_name_from_every_source(kind, tmp_path):
    content, rule = REFUSED[kind]
    files = {"a/0.png": encoded(colour(0), "PNG"), "b/1.png": content}
    for source, name in zip(SOURCES, ("b/1.png", "item 1", "item 1"), strict=True):
        place = tmp_path / source.__name__
        refused(lambda source=source, place=place: source(place, files), rule, name)
