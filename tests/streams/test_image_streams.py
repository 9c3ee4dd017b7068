"""Streams of images: own ones, and Omniglot and CIFAR10 with what their real files give."""

import hashlib
import io
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

import dpmcl
from conftest import complaint, refused
from dpmcl import plugins
from dpmcl.data.splits import split
from dpmcl.exceptions import SpecError
from dpmcl.streams.cifar10 import CIFAR10, CLASSES
from dpmcl.streams.images import ImageFolder
from dpmcl.streams.omniglot import Omniglot
from packed import PACKERS, encoded, folder, noise, tarred, zipped

torchvision = pytest.importorskip("torchvision.datasets")


def drawings():
    """Files as Omniglot's, with a drawing a character: a black square on white."""
    page = np.full((105, 105), 255)
    page[30:75, 30:75] = 0
    names = ("Latin/character01", "Latin/character02", "Greek/character01")
    return {f"images_background/{name}/0001_01.png": encoded(page) for name in names}


def photographs(names=CLASSES):
    """Files as CIFAR10's, with two images a class, whose rows and columns are numbered."""
    files = {}
    for part in ("train", "test"):
        for number, name in enumerate(names):
            pixels = np.zeros((32, 32, 3))
            pixels[..., 0] = np.arange(32)[:, None]
            pixels[..., 1] = np.arange(32)
            pixels[..., 2] = number + 100 * (part == "test")
            files[f"{part}/{name}/0000.png"] = encoded(pixels)
    return files


def line(settings) -> str:
    return complaint(settings.build, [0])


# ---- own images ---------------------------------------------------------------------------------


def shapes(rows=10, side=8) -> dict[str, bytes]:
    """Images of three classes, in colour, each class of one brightness under noise."""
    return {
        f"photos/{name}/{row}.png": encoded(noise(row, side, side, 3) // 5 + 70 * c)
        for c, name in enumerate(("bird", "cat", "dog"))
        for row in range(rows)
    }


def test_own_images_in_one_call_of_python(nowhere):
    path = tarred(nowhere / "own", shapes(rows=4, side=9), "gz")
    stream = dpmcl.Stream.from_images(path, classes_per_task=(2, 1), order=("cat", "bird", "dog"))
    assert (stream.name, stream.tasks) == ("own", ("cat, bird", "dog"))
    assert stream.x.shape == (12, 3, 9, 9)
    assert torch.bincount(stream.y).tolist() == [4, 4, 4]
    small = dpmcl.Stream.from_images(
        str(path), size=(5, 4), channels=1, crop=True, invert=True, levels=2, name="small"
    )
    assert small.name == "small"
    assert small.classes == ("photos/bird", "photos/cat", "photos/dog")
    grey = dpmcl.Stream.from_images(path, channels=1).x[:, :, 2:7, 2:6]
    assert torch.equal(small.x, 255 - grey)


def test_crop_needs_a_size():
    with pytest.raises(SpecError, match="crop needs a size"):
        ImageFolder(path="a", crop=True)


@pytest.mark.parametrize("name", ["omniglot", "cifar10"])
def test_two_places_are_one_too_many(name):
    with pytest.raises(SpecError, match="cannot both be set"):
        plugins.find("stream", name)(images="a", root="b")


# ---- Omniglot ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "inside"), [("folder", ""), ("folder", "omniglot-py"), ("zip", ""), ("tar.xz", "")]
)
def test_omniglot_is_read_however_it_is_packed(kind, inside, nowhere):
    files = drawings()
    if kind == "folder":
        folder(nowhere / "data" / "omniglot" / inside, files)
    else:
        root = folder(nowhere / "data" / "omniglot" / inside, {})
        PACKERS[kind](root / "images_background", files)
    stream = Omniglot(classes=2, download=False).build([0])
    assert stream.tasks == stream.classes == ("Greek/character01", "Latin/character01")
    assert stream.x.shape == (2, 1, 28, 28)
    assert (stream.x[0, 0, 14, 14], stream.x[0, 0, 1, 1]) == (255, 0)
    assert any("unchecked" in note for note in stream.notes)
    assert "holds 3" in line(Omniglot(classes=4, root=str(nowhere / "data" / "omniglot")))


def test_omniglot_is_fetched_where_it_is_missing(nowhere, monkeypatch):
    published = torchvision.Omniglot.zips_md5
    content = zipped(nowhere / "made", drawings()).read_bytes()
    monkeypatch.setitem(published, "images_background", hashlib.md5(content).hexdigest())

    def fetch(url, root, filename, md5):
        path = nowhere / "root" / "omniglot-py" / filename
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        with zipfile.ZipFile(path) as archive:
            archive.extractall(root)

    monkeypatch.setattr("torchvision.datasets.omniglot.download_and_extract_archive", fetch)
    stream = Omniglot(classes=3, root=str(nowhere / "root")).build([0])
    assert stream.tasks == ("Greek/character01", "Latin/character01", "Latin/character02")


@pytest.mark.data
def test_omniglots_real_files_are_fifty_tasks_of_pillows_pixels(data):
    path = data / "omniglot" / "images_background.zip"
    stream = Omniglot(images=str(path)).build([0])
    with zipfile.ZipFile(path) as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".png"))
        for row in (0, 23, 999):
            drawing = Image.open(io.BytesIO(archive.read(names[row]))).convert("L")
            small = drawing.resize((28, 28), Image.Resampling.BILINEAR)
            assert np.array_equal(stream.x[row, 0].numpy(), 255 - np.asarray(small))
    folders = sorted({name.rsplit("/", 1)[0] for name in names})
    expected = tuple(name.removeprefix("images_background/") for name in folders[:50])
    assert stream.tasks == stream.classes == expected
    assert torch.bincount(stream.y).tolist() == [20] * 50
    for part, rows in zip(split(stream, [0, 1], Omniglot().split)[:3], (12, 3, 5), strict=True):
        assert (part.offset.diff() == rows).all()


# ---- CIFAR10 -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "size", "edge"), [("zip", 28, 2), ("tar.xz", 32, 0)])
def test_cifar_in_the_usual_folder(size, edge, kind, nowhere):
    PACKERS[kind](folder(nowhere / "data" / "cifar10", {}) / "cifar10-images", photographs())
    stream = CIFAR10(size=size).build([0])
    assert stream.tasks == CLASSES
    assert stream.x.shape == (20, 3, size, size)
    for channel in (0, 1):
        ramp = stream.x[0, channel].float().mean(1 - channel)
        assert ramp.tolist() == list(range(edge, edge + size))
    assert torch.equal(stream.x[:, 2, 0, 0] % 100, stream.y.to(torch.uint8))


def test_cifar_needs_its_ten_classes(nowhere):
    path = zipped(nowhere / "a", photographs(("airplane", "car")))
    refused(lambda: CIFAR10(images=str(path)).build([0]), "automobile", "airplane, car")
