"""Streams of images: own ones, and Omniglot and CIFAR10 with what their real files give."""

import io
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import dpmcl
from dpmcl import plugins
from dpmcl.core.tree import leaves as leaves_of
from dpmcl.data.splits import split
from dpmcl.data.stream import Stream
from dpmcl.exceptions import DataError, SpecError
from dpmcl.streams.cifar10 import CIFAR10, CLASSES
from dpmcl.streams.images import ImageFolder
from dpmcl.streams.omniglot import Omniglot

torchvision = pytest.importorskip("torchvision.datasets")


@pytest.fixture(scope="module")
def omniglot(data) -> Stream:
    return Omniglot(images=str(data / "omniglot" / "images_background.zip")).build([0])


@pytest.fixture(scope="module")
def cifar(data) -> Stream:
    with pytest.MonkeyPatch.context() as patch:
        # As the contract's test finds them, so that one decoding serves both.
        patch.setenv("DPMCL_DATA", str(data))
        return CIFAR10().build([0])


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """An empty cache and no data."""
    monkeypatch.setenv("DPMCL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DPMCL_DATA", str(tmp_path / "data"))
    return tmp_path


def png(pixels) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(out, "PNG")
    return out.getvalue()


def drawings(path, characters=("Latin/character01", "Latin/character02", "Greek/character01")):
    """A zip as Omniglot's, with a drawing a character: a black square on white."""
    path.parent.mkdir(parents=True, exist_ok=True)
    page = np.full((105, 105), 255)
    page[30:75, 30:75] = 0
    with zipfile.ZipFile(path, "w") as archive:
        for name in characters:
            archive.writestr(f"images_background/{name}/0001_01.png", png(page))
    return path


def photographs(path, names=CLASSES, side=32):
    """A tar as CIFAR10's, with two images a class, whose rows and columns are numbered."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:xz") as archive:
        for part in ("train", "test"):
            for number, name in enumerate(names):
                pixels = np.zeros((side, side, 3))
                pixels[..., 0] = np.arange(side)[:, None]
                pixels[..., 1] = np.arange(side)
                pixels[..., 2] = number + 100 * (part == "test")
                content = png(pixels)
                info = tarfile.TarInfo(f"{part}/{name}/0000.png")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return path


def official_batches(root, monkeypatch):
    """The published layout with two rows a file, and sums that agree."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    files = torchvision.CIFAR10
    rng = np.random.default_rng(0)
    batches = {}
    listed = {"train_list": [], "test_list": []}
    for which, entries in listed.items():
        for name, _ in getattr(files, which):
            labels = [int(i) for i in rng.permutation(10)]
            pixels = rng.integers(0, 256, (10, 3072), dtype=np.uint8)
            (folder / name).write_bytes(pickle.dumps({"data": pixels, "labels": labels}))
            batches[name] = pixels.reshape(-1, 3, 32, 32), labels
            entries.append([name, md5(folder / name)])
        monkeypatch.setattr(files, which, entries)
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list(CLASSES)}))
    meta = {**files.meta, "md5": md5(folder / "batches.meta")}
    monkeypatch.setattr(files, "meta", meta)
    return batches


def md5(path) -> str:
    from torchvision.datasets.utils import calculate_md5

    return calculate_md5(path)


def line(settings) -> str:
    with pytest.raises(DataError) as caught:
        settings.build([0])
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---- own images ---------------------------------------------------------------------------------


def shapes(rows=10, side=8) -> dict[str, bytes]:
    """Images of three classes, in colour, each class of one brightness under noise."""
    rng = np.random.default_rng(0)
    return {
        f"photos/{name}/{row}.png": png(rng.integers(70 * c, 70 * c + 60, (side, side, 3)))
        for c, name in enumerate(("bird", "cat", "dog"))
        for row in range(rows)
    }


def in_folder(path: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def in_zip(path: Path, files: dict[str, bytes]) -> Path:
    path = path.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def in_tar(path: Path, files: dict[str, bytes]) -> Path:
    path = path.with_name(f"{path.name}.tar.gz")
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def linked(path: Path, files: dict[str, bytes]) -> Path:
    """A tar in which the last member is a link."""
    path = path.with_suffix(".tar")
    with tarfile.open(path, "w") as archive:
        for name in files:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(info)
    return path


PACKERS = [in_folder, in_zip, in_tar]


def run(stream: dict, **entries):
    return dpmcl.run(
        {
            "stream": stream,
            "network": "mlp",
            "methods": ["er"],
            "replicas": 2,
            "training": {"updates": 20},
            "device": "cpu",
            **entries,
        }
    )


def test_own_images_give_the_same_errors_however_they_are_packed(nowhere):
    results = [
        run({"name": "images", "path": str(packer(nowhere / "own", shapes()))})
        for packer in PACKERS
    ]
    first = results[0].errors["er"].values
    assert first.shape == (2, 4, 3)  # before the first task, and after each
    assert np.nanmin(first) >= 0
    assert np.nanmax(first) <= 1
    assert np.isfinite(first[:, -1]).all()
    for result in results:
        assert result.stream.classes == ("bird", "cat", "dog")
        assert result.stream.tasks == ("bird", "cat", "dog")
        assert np.array_equal(result.errors["er"].values, first, equal_nan=True)
        leaves, firsts = (leaves_of(r.theta["er"]) for r in (result, results[0]))
        assert len(leaves) > 2
        assert all(torch.equal(a, b) for a, b in zip(leaves, firsts, strict=True))


def test_own_images_are_told_by_their_path_alone(nowhere):
    path = in_zip(nowhere / "own", shapes(rows=5))
    settings = {"network": "mlp", "training.updates": 2, "stream.order": ["dog", "bird", "cat"]}
    result = dpmcl.run(str(path), methods=["er"], replicas=1, settings=settings)
    assert result.spec["stream"]["name"] == "images"
    assert result.stream.tasks == ("dog", "bird", "cat")


def test_own_images_in_one_call_of_python(nowhere):
    path = in_tar(nowhere / "own", shapes(rows=4, side=9))
    stream = dpmcl.Stream.from_images(path, classes_per_task=(2, 1), order=("cat", "bird", "dog"))
    assert stream.name == "own"
    assert stream.tasks == ("cat, bird", "dog")
    assert stream.classes == ("bird", "cat", "dog")
    assert stream.x.shape == (12, 3, 9, 9)
    assert torch.bincount(stream.y).tolist() == [4, 4, 4]
    small = dpmcl.Stream.from_images(
        str(path), size=(5, 4), channels=1, crop=True, invert=True, levels=2, name="small"
    )
    assert small.name == "small"
    assert small.x.shape == (12, 1, 5, 4)
    assert small.classes == ("photos/bird", "photos/cat", "photos/dog")
    grey = dpmcl.Stream.from_images(path, channels=1).x[:, :, 2:7, 2:6]
    assert torch.equal(small.x, 255 - grey)


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({}, r"stream 'images' needs a path"),
        ({"path": ""}, "needs a path"),
        ({"path": "a", "size": (0, 4)}, "size.* must be .*greater than or equal to 1"),
        ({"path": "a", "size": (4,)}, "size must be"),
        ({"path": "a", "size": 28}, "size must be"),
        ({"path": "a", "channels": 2}, "channels must be 1 or 3"),
        ({"path": "a", "crop": True}, "crop needs a size"),
        ({"path": "a", "levels": 0}, "levels must be"),
        ({"path": "a", "split": (0.5, 0.5, 0.5)}, "add up to 1"),
    ],
)
def test_settings_of_own_images_that_cannot_be(settings, rule):
    with pytest.raises(SpecError, match=rule) as caught:
        ImageFolder(**settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong", [{"size": 28}, {"size": (2.5, 3)}, {"channels": 4}, {"levels": 0}]
)
def test_settings_of_from_images_that_cannot_be(wrong, nowhere):
    with pytest.raises(SpecError, match="must be"):
        dpmcl.Stream.from_images(in_zip(nowhere / "own", shapes(rows=1)), **wrong)


def test_a_setting_that_nobody_reads_is_an_error(nowhere):
    with pytest.raises(SpecError, match="Did you mean 'invert'"):
        run({"name": "images", "path": "a", "inverted": True})
    with pytest.raises(SpecError, match="sizes"):
        dpmcl.Stream.from_images(in_zip(nowhere / "own", shapes(rows=3)), sizes=3)


def test_settings_of_own_images_come_back_and_the_path_moves_no_numbers():
    settings = ImageFolder(path="a.zip", size=(4, 5), channels=1, crop=True, levels=2, tasks=3)
    assert ImageFolder.from_table(settings.to_table(), "[stream]") == settings
    assert plugins.find("stream", "images") is ImageFolder
    assert ImageFolder.places == ("path",)


@pytest.mark.parametrize("packer", PACKERS)
def test_own_images_that_are_not_there(packer, nowhere):
    path = packer(nowhere / "own", {"cat/notes.txt": b"no image"})
    assert f"There must be images in {path}" in line(ImageFolder(path=str(path)))
    gone = nowhere / "gone"
    assert f"got {gone};" in line(ImageFolder(path=str(gone)))


def test_a_user_who_is_not_there_is_one_line():
    assert "~nobody-of-that-name/photos" in line(ImageFolder(path="~nobody-of-that-name/photos"))


def test_a_path_that_no_file_can_have_is_one_line():
    for path in ("x" * 5000, "a\0b"):
        assert line(ImageFolder(path=path))


def test_home_may_be_written_as_a_tilde(nowhere, monkeypatch):
    monkeypatch.setenv("HOME", str(nowhere))
    in_folder(nowhere / "own", shapes(rows=3))
    assert len(ImageFolder(path="~/own").build([0]).x) == 9


@pytest.mark.parametrize("packer", PACKERS)
def test_a_truncated_own_image_is_named(packer, nowhere):
    files = shapes(rows=3)
    files["photos/cat/1.png"] = files["photos/cat/1.png"][:-60]
    error = line(ImageFolder(path=str(packer(nowhere / "own", files))))
    assert "photos/cat/1.png" in error
    assert "whole image" in error


@pytest.mark.parametrize(
    ("packer", "name"),
    [(packer, name) for packer in (in_zip, in_tar) for name in ("../x/1.png", "/x/1.png")]
    + [(linked, "x/1.png")],
)
def test_an_archive_that_reaches_outside_is_refused_and_nothing_is_written(packer, name, nowhere):
    path = packer(nowhere / "own", {name: png(np.zeros((4, 4, 3)))})
    before = set(nowhere.rglob("*"))
    error = line(ImageFolder(path=str(path)))
    assert repr(name) in error
    assert str(path) in error
    after = {path for path in nowhere.rglob("*") if (nowhere / "cache") not in path.parents}
    assert after - {nowhere / "cache"} == before


def test_a_class_with_too_few_images_is_named(nowhere):
    files = shapes(rows=4)
    del files["photos/cat/1.png"], files["photos/cat/2.png"], files["photos/cat/3.png"]
    with pytest.raises(DataError, match="cat"):
        run({"name": "images", "path": str(in_zip(nowhere / "own", files))})


# ---- both ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "cls"), [("omniglot", Omniglot), ("cifar10", CIFAR10)])
def test_they_are_found_and_their_settings_come_back(name, cls):
    assert plugins.find("stream", name) is cls
    settings = cls(images="some.zip", tasks=3)
    assert cls.from_table(settings.to_table(), "[stream]") == settings


@pytest.mark.parametrize("cls", [Omniglot, CIFAR10])
def test_two_places_are_one_too_many(cls):
    with pytest.raises(SpecError, match="cannot both be set"):
        cls(images="a", root="b")


@pytest.mark.parametrize("cls", [Omniglot, CIFAR10])
def test_missing_images_say_where_they_should_be(cls, nowhere):
    assert str(nowhere / "a.zip") in line(cls(images=str(nowhere / "a.zip")))


@pytest.mark.parametrize(
    ("cls", "within"),
    [
        (Omniglot, "omniglot/omniglot-py/images_background.zip"),
        (CIFAR10, "cifar10/cifar-10-batches-py"),
    ],
)
def test_missing_files_say_where_it_looked_and_what_to_do(cls, within, nowhere):
    error = line(cls(download=False))
    assert str(nowhere / "data" / within) in error
    for way in ("stream.root", "stream.images", "stream.download = true"):
        assert way in error
    assert not (nowhere / "data").exists()


@pytest.mark.parametrize("cls", [Omniglot, CIFAR10])
def test_a_download_that_fails_is_one_line(cls, nowhere, monkeypatch):
    def fail(self):
        raise OSError("no network")

    monkeypatch.setattr(getattr(torchvision, cls.__name__), "download", fail)
    error = line(cls(root=str(nowhere / "root")))
    assert "could not be fetched (no network)" in error
    assert str(nowhere / "root") in error


# ---- Omniglot ------------------------------------------------------------------------------------


def test_omniglot_in_the_usual_place(nowhere):
    drawings(nowhere / "data" / "omniglot" / "images_background.zip")
    stream = Omniglot(classes=2).build([0])
    assert stream.classes == ("Greek/character01", "Latin/character01")
    assert stream.outputs == 2
    assert stream.x.shape == (2, 1, 28, 28)
    assert stream.x[0, 0, 14, 14] == 255
    assert stream.x[0, 0, 1, 1] == 0


def test_omniglot_with_more_classes_than_there_are(nowhere):
    path = drawings(nowhere / "a.zip")
    assert "holds 3" in line(Omniglot(images=str(path)))


def test_omniglot_from_torchvisions_zip_only_if_it_is_the_published_one(nowhere, monkeypatch):
    path = drawings(nowhere / "root" / "omniglot-py" / "images_background.zip")
    settings = Omniglot(classes=3, root=str(nowhere / "root"), download=False)
    assert "MD5 68d2efa1b9178cc56df9314c21c6e718" in line(settings)
    monkeypatch.setitem(torchvision.Omniglot.zips_md5, "images_background", md5(path))
    assert len(settings.build([0]).tasks) == 3


def test_omniglot_is_fetched_where_it_is_missing(nowhere, monkeypatch):
    def fetch(url, root, filename, md5):
        path = drawings(nowhere / "root" / "omniglot-py" / filename)
        with zipfile.ZipFile(path) as archive:
            archive.extractall(root)

    monkeypatch.setattr("torchvision.datasets.omniglot.download_and_extract_archive", fetch)
    published = md5(drawings(nowhere / "same.zip"))
    monkeypatch.setitem(torchvision.Omniglot.zips_md5, "images_background", published)
    stream = Omniglot(classes=3, root=str(nowhere / "root")).build([0])
    assert stream.tasks == ("Greek/character01", "Latin/character01", "Latin/character02")


@pytest.mark.data
def test_omniglot_has_fifty_tasks_in_alphabetical_order(omniglot, data):
    with zipfile.ZipFile(data / "omniglot" / "images_background.zip") as archive:
        folders = sorted({name.rsplit("/", 1)[0] for name in archive.namelist()})
    expected = [folder.removeprefix("images_background/") for folder in folders[:50]]
    assert list(omniglot.tasks) == list(omniglot.classes) == expected
    assert omniglot.outputs == 50
    assert torch.bincount(omniglot.y).tolist() == [20] * 50
    assert omniglot.x.shape == (1000, 1, 28, 28)
    assert omniglot.x.dtype == torch.uint8


@pytest.mark.data
def test_omniglot_splits_twenty_drawings_into_12_3_and_5(omniglot):
    splits = split(omniglot, [0, 1], Omniglot().split)
    for name, rows in (("train", 12), ("validation", 3), ("test", 5)):
        assert (splits.named(name).offset.diff() == rows).all()


@pytest.mark.data
def test_omniglots_ink_is_positive_and_its_pixels_are_pillows(omniglot, data):
    assert 5 < omniglot.x.float().mean() < 64
    assert (omniglot.x.flatten(1).max(1).values > 128).all()
    with zipfile.ZipFile(data / "omniglot" / "images_background.zip") as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".png"))
        for row in (0, 23, 999):
            drawing = Image.open(io.BytesIO(archive.read(names[row]))).convert("L")
            small = drawing.resize((28, 28), Image.Resampling.BILINEAR)
            assert np.array_equal(omniglot.x[row, 0].numpy(), 255 - np.asarray(small))


# ---- CIFAR10 -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "edge"), [(28, 2), (32, 0)])
def test_cifar_in_the_usual_place(size, edge, nowhere):
    photographs(nowhere / "data" / "cifar10" / "cifar10-images.tar.xz")
    stream = CIFAR10(size=size).build([0])
    assert stream.tasks == CLASSES
    assert stream.x.shape == (20, 3, size, size)
    for channel in (0, 1):
        ramp = stream.x[0, channel].float().mean(1 - channel)
        assert ramp.tolist() == list(range(edge, edge + size))
    assert torch.equal(stream.x[:, 2, 0, 0] % 100, stream.y.to(torch.uint8))


def test_cifar_needs_its_ten_classes(nowhere):
    path = photographs(nowhere / "a.tar.xz", ("airplane", "car"))
    error = line(CIFAR10(images=str(path)))
    assert "automobile" in error
    assert "airplane, car" in error


def test_cifar_of_another_size_is_refused():
    with pytest.raises(SpecError, match="size must be 28 or 32"):
        CIFAR10(size=30)


@pytest.mark.parametrize(("size", "inside"), [(28, slice(2, 30)), (32, slice(None))])
def test_cifar_from_torchvisions_files(size, inside, nowhere, monkeypatch):
    batches = official_batches(nowhere / "root", monkeypatch)
    stream = CIFAR10(size=size, root=str(nowhere / "root"), download=False).build([0])
    pixels = np.concatenate([pixels for pixels, _ in batches.values()])
    assert np.array_equal(stream.x.numpy(), pixels[:, :, inside, inside])
    assert stream.y.tolist() == [label for _, labels in batches.values() for label in labels]
    assert stream.x.is_contiguous()


def test_an_altered_batch_is_named_before_it_is_unpickled(nowhere, monkeypatch):
    official_batches(nowhere / "root", monkeypatch)
    path = nowhere / "root" / "cifar-10-batches-py" / "data_batch_3"
    path.write_bytes(b"cos\nabort\n(tR.")
    error = line(CIFAR10(root=str(nowhere / "root")))
    assert str(path) in error
    assert "MD5" in error


@pytest.mark.data
def test_cifar_has_six_thousand_images_a_class(cifar):
    assert cifar.x.shape == (60_000, 3, 28, 28)
    assert cifar.x.dtype == torch.uint8
    assert torch.bincount(cifar.y).tolist() == [6000] * 10
    assert cifar.tasks == CLASSES


@pytest.mark.data
def test_cifars_pixels_are_the_centre_of_pillows(cifar, data):
    # Sorted by path, the test images come first, and a class has a thousand of them.
    rows = {"train/airplane/0000.jpg": 10_000, "train/airplane/0007.jpg": 10_007}
    with tarfile.open(data / "cifar10" / "cifar10-images.tar.xz", "r|*") as archive:
        for info in archive:
            if info.name in rows:
                row = rows.pop(info.name)
                image = np.asarray(Image.open(io.BytesIO(archive.extractfile(info).read())))
                expected = image[2:30, 2:30].transpose(2, 0, 1)
                assert np.array_equal(cifar.x[row].numpy(), expected)
                assert cifar.y[row] == 0
            if not rows:
                break
    assert not rows
