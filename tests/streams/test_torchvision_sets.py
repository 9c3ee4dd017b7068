"""The stream `torchvision`, from tiny files in each set's published format; nothing is fetched."""

import hashlib
import inspect
import io
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from conftest import complaint, refused
from dpmcl import plugins
from dpmcl.exceptions import SpecError
from dpmcl.streams.torchvision import NAMED, SETS, Torchvision
from packed import encoded, noise

sets = pytest.importorskip("torchvision.datasets")

pytestmark = pytest.mark.usefixtures("nowhere")


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def line(settings) -> str:
    return complaint(settings.read)


# ---- the stream `torchvision` --------------------------------------------------------------------


def png(path: Path, pixels: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(pixels))
    return path


@pytest.fixture
def eurosat(nowhere) -> dict[Path, np.ndarray]:
    """EuroSAT's folders, 6 images a class; by path, in torchvision's order."""
    root = nowhere / "data" / "eurosat" / "eurosat" / "2750"
    images = {}
    for seed, name in enumerate(("AnnualCrop", "Forest", "River")):
        for number in range(6):
            pixels = noise(6 * seed + number, 16, 18, 3)
            images[png(root / name / f"{name}_{number}.png", pixels)] = pixels
    return images


def expected_of(images) -> np.ndarray:
    return np.stack(list(images)).transpose(0, 3, 1, 2)


def test_a_set_in_folders_is_read_and_not_decoded_twice_unless_it_changes(eurosat, decoded):
    for _ in range(2):
        data = Torchvision(dataset="EuroSAT", download=False).read()
        assert np.array_equal(data.x.numpy(), expected_of(eurosat.values()))
        assert (data.name, data.classes) == ("eurosat", ("AnnualCrop", "Forest", "River"))
        assert data.y.tolist() == [0] * 6 + [1] * 6 + [2] * 6
        assert len(decoded) == 18
    small = Torchvision(dataset="EuroSAT", size=(4, 5), channels=1, download=False).read()
    assert small.x.shape == (18, 1, 4, 5)
    png(next(iter(eurosat)), black := np.zeros((16, 18, 3), np.uint8))
    assert np.array_equal(Torchvision(dataset="EuroSAT").read().x[0].permute(1, 2, 0), black)
    assert len(decoded) == 3 * 18


def test_a_bad_image_is_named(eurosat):
    path = list(eurosat)[9]
    png(path, noise(0, 20, 18, 3))
    bad = Torchvision(dataset="EuroSAT")
    refused(bad.read, "stream.size", "image 9 (part 0) (3, 20, 18)")
    path.write_bytes(path.read_bytes()[:100])
    refused(bad.read, "EuroSAT's image 9 (part 0) cannot be read")


def test_a_sets_parts_are_one_pool_and_numbered_by_name(nowhere):
    """DTD numbers the classes of each part for itself."""
    root = nowhere / "root" / "dtd" / "dtd"
    (root / "labels").mkdir(parents=True)
    images = []
    for part, names in (("train", "bc"), ("val", "ca"), ("test", "b")):
        files = [f"{name}/{name}_{part}.png" for name in names]
        (root / "labels" / f"{part}1.txt").write_text("".join(f"{file}\n" for file in files))
        for file in files:
            images.append(noise(len(images), 6, 6, 3))
            png(root / "images" / file, images[-1])
    data = Torchvision(dataset="DTD", root=str(nowhere / "root"), download=False).read()
    assert [data.classes[c] for c in data.y] == ["b", "c", "c", "a", "b"]
    assert np.array_equal(data.x.numpy(), expected_of(images))


def test_images_without_a_label_are_left_out(nowhere, monkeypatch):
    """FER2013's training rows alone have one, in the files of the competition."""
    settings = Torchvision(dataset="FER2013")
    folder = nowhere / "data" / "fer2013" / "fer2013"
    refused(settings.read, "could not be fetched", str(folder.parent), "stream.root")
    folder.mkdir()
    pixels = noise(0, 3, 48, 48)
    text = [" ".join(map(str, image.ravel())) for image in pixels]
    (folder / "train.csv").write_text(f"emotion,pixels\n4,{text[0]}\n2,{text[1]}\n")
    (folder / "test.csv").write_text(f"pixels\n{text[2]}\n")
    files = {part: (f"{part}.csv", md5(folder / f"{part}.csv")) for part in ("train", "test")}
    monkeypatch.setattr(sets.FER2013, "_RESOURCES", {**sets.FER2013._RESOURCES, **files})
    data = settings.read()
    assert np.array_equal(data.x.numpy(), pixels[:2, None])
    assert (data.classes, data.y.tolist()) == (("2", "4"), [1, 0])


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"dataset": ""}, "There are .*DTD"),
        ({"dataset": "Eurosat"}, r"No dataset of torchvision 'Eurosat'\..*'EuroSAT'"),
        ({"dataset": "ImageFolder"}, "There are .*DTD"),  # torchvision's, but no set
        *(({"dataset": name}, f"set stream = '{name.lower()}'") for name in NAMED),
    ],
)
def test_wrong_settings_of_the_stream(settings, rule):
    with pytest.raises(SpecError, match=rule):
        Torchvision(**settings)


def test_every_set_takes_the_arguments_that_it_gets():
    for name, parts in SETS.items():
        signature = inspect.signature(getattr(sets, name))
        for part in parts:
            signature.bind("root", **part)


# ---- what is missing, and fetching it ------------------------------------------------------------

LOOKED = {
    "FashionMNIST": "train-images-idx3-ubyte",
    "KMNIST": "t10k-labels-idx1-ubyte",
    "EMNIST": "emnist-balanced-test-images-idx3-ubyte",
    "CIFAR10": "data_batch_1",
    "SVHN": "train_32x32.mat, test_32x32.mat",
    "Omniglot": "images_background.zip",
    "EuroSAT": "EuroSAT is not in",
    "SEMEION": "SEMEION is not in",
}
"""What an error says of the files of a set."""


def stream(name: str, **settings):
    if name in NAMED:
        return plugins.find("stream", name.lower())(**settings)
    return Torchvision(dataset=name, **settings)


@pytest.mark.parametrize("name", LOOKED)
def test_missing_files_say_where_it_looked_and_what_to_do(name, nowhere):
    usual, other = nowhere / "data" / name.lower(), nowhere / "other"
    for root, settings in ((usual, {}), (other, {"root": str(other)})):
        made = stream(name, download=False, **settings)
        refused(made.read, str(root), LOOKED[name], "stream.root", "stream.download = true")
        assert ("stream.images" in line(made)) == (name in ("CIFAR10", "Omniglot"))
    assert list(nowhere.iterdir()) == []
    assert "~nobody" in line(stream(name, root="~nobody-of-that-name/x"))


@pytest.mark.parametrize("name", LOOKED)
def test_files_that_cannot_be_fetched_say_why(name, nowhere, monkeypatch):
    def fail(self):
        raise RuntimeError("Error downloading\nsomething")

    monkeypatch.setattr(getattr(sets, name), "download", fail)
    parts = (str(nowhere / "data" / name.lower()), "could not be fetched", LOOKED[name])
    refused(stream(name).read, *parts, "Error downloading something")
    assert "extraction_filter" not in vars(tarfile.TarFile)


@pytest.mark.parametrize("evil", [False, True])
def test_what_is_fetched_is_read_once_and_cannot_leave_its_folder(evil, nowhere, monkeypatch):
    fetched = []

    def fetch(self):
        from torchvision.datasets.utils import extract_archive

        fetched.append(self)
        member = tarfile.TarInfo("../../../outside" if evil else "Forest/1.png")
        content = encoded(noise(5, 5, 5, 3))
        member.size = len(content)
        with tarfile.open(Path(self.root) / "set.tar", "w") as tar:
            tar.addfile(member, io.BytesIO(content))
        extract_archive(Path(self.root) / "set.tar", self._data_folder)

    monkeypatch.setattr(sets.EuroSAT, "download", fetch)
    settings = Torchvision(dataset="EuroSAT")
    if evil:
        assert "could not be fetched" in line(settings)
        assert not list(nowhere.parent.rglob("outside"))
    else:
        for _ in range(2):
            data = settings.read()
            assert (data.classes, data.x.shape) == (("Forest",), (1, 3, 5, 5))
        assert len(fetched) == 1


# ---- all -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["KMNIST", "SVHN", "Omniglot", "EuroSAT"])
def test_without_torchvision_the_error_says_what_to_install(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    assert "pip install 'dpmcl[vision]'" in line(stream(name))


@pytest.mark.parametrize("begun", [False, True])
def test_without_a_package_that_a_set_needs_the_error_says_what_to_install(
    begun, nowhere, monkeypatch
):
    monkeypatch.setitem(sys.modules, "h5py", None)
    if begun:  # files are there, and nothing is fetched
        folder = nowhere / "data" / "pcam" / "pcam"
        folder.mkdir(parents=True)
        (folder / "camelyonpatch_level_2_split_train_x.h5").write_bytes(b"1")
    assert line(stream("PCAM")) == "PCAM needs h5py: pip install h5py."
