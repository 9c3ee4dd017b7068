"""torchvision's sets, from tiny files in each one's published format; nothing is fetched."""

import bz2
import gzip
import hashlib
import io
import lzma
import pickle
import struct
import sys
import tarfile
import urllib.error
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import dpmcl
from dpmcl import plugins
from dpmcl.data.labelled import Labelled
from dpmcl.exceptions import DataError, SpecError
from dpmcl.streams import _idx_files as idx_files
from dpmcl.streams import torchvision as generic
from dpmcl.streams._torchvision_sets import torchvision_class
from dpmcl.streams.cifar100 import CIFAR100
from dpmcl.streams.emnist import EMNIST
from dpmcl.streams.fashionmnist import FashionMNIST
from dpmcl.streams.kmnist import KMNIST
from dpmcl.streams.mnist import MNIST
from dpmcl.streams.svhn import SVHN
from dpmcl.streams.torchvision import OWN, SETS, Torchvision

sets = pytest.importorskip("torchvision.datasets")

PIXELS = np.random.default_rng(0)
NAMED = (FashionMNIST, KMNIST, EMNIST, CIFAR100, SVHN)


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch) -> Path:
    """An empty cache, no data in the usual place, and no way to the network."""
    monkeypatch.setenv("DPMCL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DPMCL_DATA", str(tmp_path / "data"))

    def refuse(*args, **kwargs):
        raise AssertionError("a test asked for the network")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    return tmp_path


def md5(path: Path) -> str:
    from torchvision.datasets.utils import calculate_md5

    return calculate_md5(path)


def contents(root: Path) -> list:
    return sorted((str(p), p.lstat().st_mtime_ns, p.lstat().st_size) for p in root.rglob("*"))


def line(settings) -> str:
    with pytest.raises(DataError) as caught:
        settings.read()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def noise(*shape: int) -> np.ndarray:
    return PIXELS.integers(0, 256, shape, dtype=np.uint8)


def as_idx(array: np.ndarray) -> bytes:
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


# ---- FashionMNIST and KMNIST: IDX ----------------------------------------------------------------

IDX = [FashionMNIST, KMNIST]


class IdxFiles:
    """Tiny parts of 5 and 3 images, as files in root/NAME/raw with sums that agree."""

    def __init__(self, root: Path, cls, monkeypatch, labels=((0, 3, 3, 9, 1), (3, 0, 1))) -> None:
        self.root, self.raw, self.torch = root, root / cls.__name__ / "raw", cls
        self.raw.mkdir(parents=True)
        self.images = [noise(len(part), 28, 28) for part in labels]
        self.labels = [np.array(part) for part in labels]
        self.monkeypatch = monkeypatch

    def write(self, packed: bool, change=lambda name, content: content) -> None:
        listed, content_sums = [], {}
        for which, images, labels in zip(("train", "t10k"), self.images, self.labels, strict=True):
            for what, array in (("images-idx3", images), ("labels-idx1", labels)):
                name = f"{which}-{what}-ubyte"
                content = change(name, as_idx(array))
                path = self.raw / (f"{name}.gz" if packed else name)
                path.write_bytes(gzip.compress(content) if packed else content)
                listed.append((f"{name}.gz", md5(path)))
                content_sums[name] = hashlib.md5(content).hexdigest()
        self.monkeypatch.setattr(self.torch, "resources", listed)
        if self.torch is sets.FashionMNIST:
            self.monkeypatch.setitem(idx_files.SUMS, "FashionMNIST", content_sums)


@pytest.fixture(params=IDX, ids=lambda cls: cls.__name__)
def idx(request, nowhere, monkeypatch):
    """The settings of a stream, and its files."""
    cls = request.param
    files = IdxFiles(nowhere / "root", getattr(sets, cls.__name__), monkeypatch)
    return cls(root=str(nowhere / "root"), download=False), files


@pytest.mark.parametrize("packed", [True, False])
def test_idx_files_are_read_training_first_and_left_as_they_are(packed, idx):
    settings, files = idx
    files.write(packed)
    before = contents(files.root)
    data = settings.read()
    assert data.name == type(settings).__name__.lower()
    assert data.x.dtype == torch.uint8
    assert np.array_equal(data.x.numpy(), np.concatenate(files.images)[:, None])
    named = files.torch.classes
    assert data.classes == tuple(named[c] for c in (0, 1, 3, 9))  # those with images
    expected = [named[c] for c in np.concatenate(files.labels)]
    assert [data.classes[c] for c in data.y] == expected
    assert contents(files.root) == before


def test_idx_files_are_found_in_the_usual_place(nowhere, monkeypatch):
    files = IdxFiles(nowhere / "data" / "kmnist", sets.KMNIST, monkeypatch)
    files.write(packed=True)
    assert len(KMNIST(download=True).read().x) == 8


PLACES = ("", "raw", "FashionMNIST/raw")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", ["gzip", "xz", "bz2", "plain", "mixed", "Kaggle's names"])
def test_a_sets_own_files_are_known_by_their_content(form, place, nowhere, monkeypatch):
    """Packed anew, as by Debian, whose files are in /usr/share/datasets/fashion-mnist itself."""
    files = IdxFiles(nowhere / "root", sets.FashionMNIST, monkeypatch)
    files.write(packed=False)
    raw, folder = files.raw, nowhere / "own" / place
    folder.mkdir(parents=True)
    packers = {"gzip": (gzip.compress, ".gz"), "xz": (lzma.compress, ".xz")}
    packers |= {"bz2": (bz2.compress, ".bz2")}
    for path in sorted(raw.iterdir()):
        packed = form in packers or (form == "mixed" and "labels" in path.name)
        pack, end = packers[form if form in packers else "gzip"] if packed else (bytes, "")
        name = path.name.replace("-idx", ".idx") if form == "Kaggle's names" else path.name
        (folder / f"{name}{end}").write_bytes(pack(path.read_bytes()))
    before = contents(nowhere / "own")
    data = FashionMNIST(root=str(nowhere / "own"), download=False).read()
    assert np.array_equal(data.x.numpy(), np.concatenate(files.images)[:, None])
    assert contents(nowhere / "own") == before


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("packed", [True, False])
def test_a_file_of_another_content_is_named(number, packed, nowhere, monkeypatch):
    files = IdxFiles(nowhere / "root", sets.FashionMNIST, monkeypatch)
    files.write(packed)
    name, published = list(idx_files.SUMS["FashionMNIST"].items())[number]
    path = files.raw / (f"{name}.gz" if packed else name)
    content = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
    changed = content[:-1] + bytes([content[-1] ^ 1])
    path.write_bytes(gzip.compress(changed) if packed else changed)
    error = line(FashionMNIST(root=str(files.root), download=False))
    assert str(path) in error
    assert f"MD5 {published}, unpacked" in error


def test_where_only_sums_of_packed_files_are_known_the_way_out_is_to_unpack(nowhere, monkeypatch):
    files = IdxFiles(nowhere / "root", sets.KMNIST, monkeypatch)
    files.write(packed=True)
    settings = KMNIST(root=str(files.root), download=False)
    expected = settings.read()
    name, published = files.torch.resources[2]
    path = files.raw / name
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), mtime=1))
    error = line(settings)
    assert str(path) in error
    assert f"MD5 {published}" in error
    assert "unpack it" in error
    path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
    path.unlink()
    assert torch.equal(settings.read().x, expected.x)


def test_a_set_is_not_read_for_another_whose_files_have_the_same_names(nowhere, monkeypatch):
    files = IdxFiles(nowhere / "root", sets.FashionMNIST, monkeypatch)
    files.write(packed=False)
    assert "is FashionMNIST's" in line(KMNIST(root=str(files.raw), download=False))
    assert "MNIST's published file" in line(MNIST(root=str(files.raw), download=False))


def test_a_packed_file_that_is_cut_is_named(idx):
    settings, files = idx
    files.write(packed=True)
    path = files.raw / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-30])
    sums = [(name, md5(files.raw / name)) for name, _ in files.torch.resources]
    files.monkeypatch.setattr(files.torch, "resources", sums)
    error = line(settings)
    assert f"{path} cannot be read" in error


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content[:-1],
        lambda content: content[:7],
        lambda content: b"",
        lambda content: b"\x00\x00\x0d\x03" + content[4:],
        lambda content: b"hello" * 9,
    ],
)
@pytest.mark.parametrize("file", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
@pytest.mark.parametrize("packed", [True, False])
def test_idx_files_that_are_damaged_are_one_line(packed, file, change, nowhere, monkeypatch):
    files = IdxFiles(nowhere / "root", sets.KMNIST, monkeypatch)
    files.write(packed, lambda name, content: change(content) if name == file else content)
    assert str(files.raw) in line(KMNIST(root=str(files.root), download=False))


def test_labels_without_a_class_are_an_error(idx):
    settings, files = idx
    files.labels[1][0] = 200
    files.write(packed=False)
    assert "200" in line(settings)


def test_parts_of_other_sizes_are_an_error(idx):
    settings, files = idx
    files.images[1] = noise(3, 20, 28)
    files.write(packed=False)
    error = line(settings)
    assert "20x28" in error
    assert "28x28" in error


def test_images_without_labels_are_an_error(idx):
    settings, files = idx
    files.labels[1] = files.labels[1][:2]
    files.write(packed=False)
    assert "8 rows and 7 targets" in line(settings)


def test_mnist_is_checked_by_the_sums_of_the_unpacked_files(nowhere, monkeypatch):
    files = IdxFiles(nowhere / "root", sets.MNIST, monkeypatch)
    for packed, end in ((True, ".gz"), (False, "")):
        files.write(packed)
        error = line(MNIST(root=str(files.root), download=False))
        assert str(files.raw / f"train-images-idx3-ubyte{end}") in error
        assert "MD5 6bbc9ace898e44ae57da46a324031adb, unpacked" in error


# ---- EMNIST --------------------------------------------------------------------------------------


def emnist_files(root: Path, part: str, labels, packed=False) -> np.ndarray:
    """The images of both parts, as the files hold them: rows and columns exchanged."""
    raw = root / "EMNIST" / "raw"
    raw.mkdir(parents=True)
    out = []
    for which, own in zip(("train", "test"), labels, strict=True):
        out.append(noise(len(own), 28, 28))
        for what, array in (("images-idx3", out[-1]), ("labels-idx1", np.array(own))):
            path = raw / f"emnist-{part}-{which}-{what}-ubyte{'.gz' if packed else ''}"
            content = as_idx(array)
            path.write_bytes(gzip.compress(content) if packed else content)
    return np.concatenate(out)


@pytest.mark.parametrize("packed", [True, False])
def test_emnists_images_stand_upright(packed, nowhere):
    root = nowhere / "root"
    lying = emnist_files(root, "balanced", ([0, 10, 46, 10], [46, 0]), packed)
    before = contents(root)
    data = EMNIST(root=str(root), download=False).read()
    assert np.array_equal(data.x.numpy(), lying.transpose(0, 2, 1)[:, None])
    assert data.x.is_contiguous()
    assert data.classes == ("0", "A", "t")
    assert data.y.tolist() == [0, 1, 2, 1, 2, 0]
    assert contents(root) == before


def test_emnists_letters_count_from_one_and_have_no_class_for_nothing(nowhere):
    letters = list(range(1, 27))
    emnist_files(nowhere / "root", "letters", (letters, letters[::-1]))
    data = EMNIST(root=str(nowhere / "root"), part="letters", download=False).read()
    assert data.classes == tuple("abcdefghijklmnopqrstuvwxyz")
    assert data.y.tolist() == [*range(26), *range(25, -1, -1)]


@pytest.mark.parametrize("part", ["byclass", "bymerge", "digits", "mnist"])
def test_emnists_other_parts_have_files_of_their_own(part, nowhere):
    emnist_files(nowhere / "root", part, ([3, 1], [1]))
    data = EMNIST(root=str(nowhere / "root"), part=part, download=False).read()
    assert data.classes == ("1", "3")
    assert "emnist-balanced-train" in line(EMNIST(root=str(nowhere / "root"), download=False))


def test_emnist_has_no_other_parts():
    with pytest.raises(SpecError, match="part must be"):
        EMNIST(part="capitals")


# ---- CIFAR100: pickles ---------------------------------------------------------------------------

THINGS = ["apple", "aquarium_fish", "baby", "bear"]


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


class Cifar:
    """Batches of 6 and 4 images, the archive of them, and sums that agree."""

    def __init__(self, root: Path, monkeypatch) -> None:
        self.root, self.folder = root, root / "cifar-100-python"
        self.folder.mkdir(parents=True)
        self.pixels, self.labels = (
            [noise(6, 3072), noise(4, 3072)],
            [[0, 3, 1, 1, 0, 3], [3, 0, 1, 0]],
        )
        cls = sets.CIFAR100
        for which, name, pixels, labels in zip(
            ("train_list", "test_list"), ("train", "test"), self.pixels, self.labels, strict=True
        ):
            batch = {"data": pixels, "fine_labels": labels, "coarse_labels": [0] * len(labels)}
            (self.folder / name).write_bytes(pickle.dumps(batch))
            monkeypatch.setattr(cls, which, [[name, md5(self.folder / name)]])
        meta = {"fine_label_names": THINGS, "coarse_label_names": ["all"]}
        (self.folder / "meta").write_bytes(pickle.dumps(meta))
        monkeypatch.setattr(cls, "meta", {**cls.meta, "md5": md5(self.folder / "meta")})
        self.archive = root / "cifar-100-python.tar.gz"
        with tarfile.open(self.archive, "w:gz") as tar:
            tar.add(self.folder, "cifar-100-python")
        monkeypatch.setattr(cls, "tgz_md5", md5(self.archive))


@pytest.fixture
def cifar(nowhere, monkeypatch) -> Cifar:
    return Cifar(nowhere / "root", monkeypatch)


@pytest.mark.parametrize("packed", [True, False])
def test_cifar100_from_its_files_or_their_archive(packed, cifar):
    if packed:
        for path in list(cifar.folder.iterdir()):
            path.unlink()
    else:
        cifar.archive.unlink()
    before = contents(cifar.root)
    data = CIFAR100(root=str(cifar.root), download=False).read()
    assert np.array_equal(data.x.numpy(), np.concatenate(cifar.pixels).reshape(-1, 3, 32, 32))
    assert data.x.is_contiguous()
    assert data.classes == ("apple", "aquarium_fish", "bear")
    assert data.y.tolist() == [0, 2, 1, 1, 0, 2, 2, 0, 1, 0]
    assert contents(cifar.root) == before


@pytest.mark.parametrize("form", ["gz", "xz", "", "without a folder", "files in root"])
def test_cifar100_is_known_by_its_content(form, cifar):
    """Its archive packed anew, or its files without their folder."""
    expected = CIFAR100(root=str(cifar.root), download=False).read()
    cifar.archive.unlink()
    inside = "" if form == "without a folder" else "cifar-100-python/"
    end = f".{form}" if form in ("gz", "xz") else ""
    for path in sorted(cifar.folder.iterdir()):
        if form == "files in root":
            path.rename(cifar.root / path.name)
    if form != "files in root":
        with tarfile.open(cifar.root / f"cifar-100-python.tar{end}", f"w:{end[1:]}") as tar:
            for path in sorted(cifar.folder.iterdir()):
                tar.add(path, f"{inside}{path.name}")
                path.unlink()
    before = contents(cifar.root)
    found = CIFAR100(root=str(cifar.root), download=False).read()
    assert torch.equal(found.x, expected.x)
    assert torch.equal(found.y, expected.y)
    assert contents(cifar.root) == before


@pytest.mark.parametrize("name", ["../../it ran", "/tmp/it ran", "link"])
def test_an_archive_of_cifar100_writes_nothing_outside(name, cifar, nowhere):
    for path in list(cifar.folder.iterdir()):
        path.unlink()
    with tarfile.open(cifar.archive, "w:gz") as tar:
        info = tarfile.TarInfo("cifar-100-python/train" if name == "link" else f"{name}/train")
        if name == "link":
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(info)
    before = contents(nowhere)
    error = line(CIFAR100(root=str(cifar.root), download=False))
    assert f"{cifar.archive} must hold the published file train" in error
    assert contents(nowhere) == before


@pytest.mark.parametrize("name", ["train", "test", "meta"])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("download", [True, False])
def test_an_altered_pickle_is_refused_and_never_opened(download, packed, name, cifar, nowhere):
    trace = nowhere / "it ran"
    evil = pickle.dumps(Payload(trace))
    pickle.loads(evil)
    assert trace.exists()
    trace.unlink()

    (cifar.folder / name).write_bytes(evil)
    path = cifar.folder / name
    if packed:
        with tarfile.open(cifar.archive, "w:gz") as tar:
            tar.add(cifar.folder, "cifar-100-python")
        for file in list(cifar.folder.iterdir()):
            file.unlink()
        path = cifar.archive
    error = line(CIFAR100(root=str(cifar.root), download=download))
    assert str(path) in error
    assert "MD5" in error
    assert not trace.exists()


def test_a_link_beside_the_batches_does_not_help(cifar, nowhere):
    """A file that is missing is not taken from elsewhere."""
    (cifar.folder / "meta").unlink()
    cifar.archive.unlink()
    error = line(CIFAR100(root=str(cifar.root), download=False))
    assert str(cifar.folder) in error
    assert "looked for train, test, meta" in error


# ---- SVHN ----------------------------------------------------------------------------------------


@pytest.fixture
def svhn(nowhere, monkeypatch):
    """Files of 5 and 2 images, in MATLAB's order, with the digit 0 called 10."""
    savemat = pytest.importorskip("scipy.io").savemat
    root = nowhere / "root"
    root.mkdir()
    listed, images = dict(sets.SVHN.split_list), []
    for part, digits in (("train", [10, 1, 9, 1, 10]), ("test", [9, 10])):
        pixels = noise(32, 32, 3, len(digits))
        name = f"{part}_32x32.mat"
        savemat(root / name, {"X": pixels, "y": np.array(digits, dtype=np.uint8)[:, None]})
        listed[part] = [listed[part][0], name, md5(root / name)]
        images.append(pixels.transpose(3, 2, 0, 1))
    monkeypatch.setattr(sets.SVHN, "split_list", listed)
    return root, np.concatenate(images)


def test_svhn_is_read_training_first(svhn):
    root, images = svhn
    before = contents(root)
    data = SVHN(root=str(root), download=False).read()
    assert np.array_equal(data.x.numpy(), images)
    assert data.classes == ("0", "1", "9")
    assert data.y.tolist() == [0, 1, 2, 1, 0, 2, 0]
    assert contents(root) == before


@pytest.mark.parametrize("name", ["train_32x32.mat", "test_32x32.mat"])
@pytest.mark.parametrize("download", [True, False])
def test_an_altered_mat_file_is_named(download, name, svhn):
    root, _ = svhn
    with (root / name).open("ab") as file:
        file.write(b"more")
    error = line(SVHN(root=str(root), download=download))
    assert f"{root / name} must be the published file" in error


def test_svhn_without_scipy_says_what_to_install(svhn, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "scipy"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [])
    monkeypatch.setattr(sys, "path_hooks", [])
    assert "SVHN needs scipy: pip install scipy" in line(SVHN(root=str(svhn[0])))


# ---- the stream `torchvision` --------------------------------------------------------------------


def png(path: Path, pixels: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, "PNG")
    return path


@pytest.fixture
def eurosat(nowhere) -> dict[str, np.ndarray]:
    """EuroSAT's folders, 6 images a class; by name, in torchvision's order."""
    images = {}
    for name in ("AnnualCrop", "Forest", "River"):
        for number in range(6):
            file = f"{name}/{name}_{number}.png"
            images[file] = noise(16, 18, 3)
            png(nowhere / "data" / "eurosat" / "eurosat" / "2750" / file, images[file])
    return images


def expected_of(images) -> np.ndarray:
    return np.stack(list(images)).transpose(0, 3, 1, 2)


def test_a_set_in_folders_is_read_and_not_decoded_twice(eurosat, monkeypatch):
    decoded = []
    real = generic.pixels

    def spy(image, where, decoding):
        decoded.append(where)
        return real(image, where, decoding)

    monkeypatch.setattr(generic, "pixels", spy)
    for _ in range(2):
        data = Torchvision(dataset="EuroSAT", download=False).read()
        assert np.array_equal(data.x.numpy(), expected_of(eurosat.values()))
        assert data.name == "eurosat"
        assert data.classes == ("AnnualCrop", "Forest", "River")
        assert data.y.tolist() == [0] * 6 + [1] * 6 + [2] * 6
        assert len(decoded) == 18
    small = Torchvision(dataset="EuroSAT", size=(4, 5), channels=1, download=False).read()
    assert small.x.shape == (18, 1, 4, 5)
    assert len(decoded) == 36


def test_a_changed_set_is_decoded_anew(eurosat, nowhere):
    place = nowhere / "data" / "eurosat" / "eurosat" / "2750"
    assert len(Torchvision(dataset="EuroSAT").read().x) == 18
    png(place / "Forest" / "Forest_9.png", noise(16, 18, 3))
    assert len(Torchvision(dataset="EuroSAT").read().x) == 19
    png(place / "Forest" / "Forest_9.png", black := np.zeros((16, 18, 3), np.uint8))
    assert np.array_equal(Torchvision(dataset="EuroSAT").read().x[12].permute(1, 2, 0), black)


def test_root_may_be_named(eurosat, nowhere):
    (nowhere / "data" / "eurosat").rename(nowhere / "elsewhere")
    settings = Torchvision(dataset="EuroSAT", root=str(nowhere / "elsewhere"), download=False)
    assert len(settings.read().x) == 18


def test_images_of_several_sizes_need_one(eurosat, nowhere):
    place = nowhere / "data" / "eurosat" / "eurosat" / "2750"
    png(place / "Forest" / "Forest_3.png", noise(20, 18, 3))
    error = line(Torchvision(dataset="EuroSAT"))
    assert "stream.size" in error
    assert "image 9 (part 0) is 20x18" in error
    data = Torchvision(dataset="EuroSAT", size=(8, 8)).read()
    assert data.x.shape == (18, 3, 8, 8)


def test_a_damaged_image_is_named_by_its_number(eurosat, nowhere):
    path = nowhere / "data" / "eurosat" / "eurosat" / "2750" / "Forest" / "Forest_3.png"
    path.write_bytes(path.read_bytes()[:100])
    error = line(Torchvision(dataset="EuroSAT"))
    assert "EuroSAT's image 9 (part 0) cannot be decoded" in error


def test_a_link_to_nothing_is_named(eurosat, nowhere):
    """As a folder has it whose large files were not copied along."""
    path = nowhere / "data" / "eurosat" / "eurosat" / "2750" / "Forest" / "Forest_3.png"
    path.unlink()
    path.symlink_to(nowhere / "gone")
    error = line(Torchvision(dataset="EuroSAT"))
    assert str(path) in error
    assert "No such file" in error


def test_a_sets_parts_are_one_pool_and_numbered_by_name(nowhere):
    """DTD numbers the classes of each part for itself."""
    root = nowhere / "root"
    place = root / "dtd" / "dtd"
    (place / "labels").mkdir(parents=True)
    images = []
    for part, names in (("train", "bc"), ("val", "ca"), ("test", "b")):
        files = [f"{name}/{name}_{part}.png" for name in names]
        (place / "labels" / f"{part}1.txt").write_text("".join(f"{file}\n" for file in files))
        for file in files:
            images.append(noise(6, 6, 3))
            png(place / "images" / file, images[-1])
    data = Torchvision(dataset="DTD", root=str(root), download=False).read()
    assert [data.classes[c] for c in data.y] == ["b", "c", "c", "a", "b"]
    assert np.array_equal(data.x.numpy(), expected_of(images))


def fer_row(label, pixels, usage=None) -> str:
    text = " ".join(str(p) for p in pixels.ravel())
    return ",".join(str(part) for part in (label, text, usage) if part is not None) + "\n"


def test_a_set_torchvision_cannot_fetch(nowhere):
    error = line(Torchvision(dataset="FER2013"))
    assert "torchvision cannot fetch it" in error
    assert str(nowhere / "data" / "fer2013") in error
    assert "stream.root" in error
    assert not (nowhere / "data").exists()


def test_images_without_a_label_are_left_out(nowhere, monkeypatch):
    """FER2013's training rows alone have one, in the files of the competition."""
    folder = nowhere / "data" / "fer2013" / "fer2013"
    folder.mkdir(parents=True)
    pixels = noise(3, 48, 48)
    (folder / "train.csv").write_text(
        "emotion,pixels\n" + fer_row(4, pixels[0]) + fer_row(2, pixels[1])
    )
    (folder / "test.csv").write_text("pixels\n" + fer_row(None, pixels[2]))
    files = {part: (f"{part}.csv", md5(folder / f"{part}.csv")) for part in ("train", "test")}
    monkeypatch.setattr(sets.FER2013, "_RESOURCES", {**sets.FER2013._RESOURCES, **files})
    data = Torchvision(dataset="FER2013").read()
    assert np.array_equal(data.x.numpy(), pixels[:2, None])
    assert data.classes == ("2", "4")
    assert data.y.tolist() == [1, 0]


def semeion(root: Path, labels, change=lambda text: text) -> np.ndarray:
    """Its one file, of 16x16 black and white pixels and one-hot labels."""
    root.mkdir(parents=True, exist_ok=True)
    ink = PIXELS.integers(0, 2, (len(labels), 256))
    rows = np.concatenate([ink, np.eye(10, dtype=np.int64)[labels]], 1)
    text = "\n".join(" ".join(str(v) for v in row) for row in rows) + "\n"
    (root / "semeion.data").write_text(change(text))
    return ink


def test_a_set_in_one_file_is_checked_by_its_sum(nowhere, monkeypatch):
    root = nowhere / "data" / "semeion"
    ink = semeion(root, [7, 0, 7])
    for download in (True, False):
        error = line(Torchvision(dataset="SEMEION", download=download))
        assert f"{root / 'semeion.data'} must be the published file" in error
    monkeypatch.setattr(sets.SEMEION, "md5_checksum", md5(root / "semeion.data"))
    data = Torchvision(dataset="SEMEION").read()
    assert np.array_equal(data.x.numpy(), 255 * ink.reshape(3, 1, 16, 16))
    assert data.classes == ("0", "7")
    assert data.y.tolist() == [1, 0, 1]


def test_a_set_of_packed_text(nowhere):
    root = nowhere / "data" / "usps"
    root.mkdir(parents=True)
    for name, digits in (("usps.bz2", [9, 0]), ("usps.t.bz2", [4])):
        rows = [f"{d + 1} " + " ".join(f"{i + 1}:{d / 5 - 1}" for i in range(256)) for d in digits]
        (root / name).write_bytes(bz2.compress("\n".join(rows).encode()))
    data = Torchvision(dataset="USPS").read()
    assert data.classes == ("0", "4", "9")
    assert data.y.tolist() == [2, 0, 1]
    assert data.x[:, 0, 3, 5].tolist() == [229, 0, 102]


def test_the_stream_needs_a_dataset():
    with pytest.raises(SpecError, match=r"needs a dataset, as in stream\.dataset = 'EuroSAT'"):
        Torchvision()


def test_a_dataset_that_nobody_has_is_answered_with_one_like_it():
    with pytest.raises(SpecError, match=r"No dataset of torchvision 'Eurosat'\..*'EuroSAT'"):
        Torchvision(dataset="Eurosat")
    with pytest.raises(SpecError, match=r"There are .*DTD"):
        Torchvision(dataset="ImageFolder")  # torchvision's, but no set


@pytest.mark.parametrize("name", OWN)
def test_a_set_with_a_stream_of_its_own_says_so(name):
    with pytest.raises(SpecError, match=f"set stream = '{name.lower()}'"):
        Torchvision(dataset=name)
    assert name.lower() in plugins.names("stream")


@pytest.mark.parametrize("wrong", [{"size": (0, 4)}, {"size": (4,)}, {"channels": 2}])
def test_wrong_settings_of_the_stream(wrong):
    with pytest.raises(SpecError, match="must be"):
        Torchvision(dataset="EuroSAT", **wrong)


def test_every_set_takes_the_arguments_that_it_gets():
    import inspect

    for name, (files, parts) in SETS.items():
        signature = inspect.signature(getattr(sets, name))
        assert files
        for part in parts:
            signature.bind("root", **part)


# ---- what is missing, and fetching it ------------------------------------------------------------

ALL = [*(pytest.param(cls, {}, id=cls.__name__) for cls in NAMED)] + [
    pytest.param(Torchvision, {"dataset": name}, id=name) for name in ("EuroSAT", "DTD", "SEMEION")
]
WITHIN = {
    "FashionMNIST": "fashionmnist/FashionMNIST/raw",
    "KMNIST": "kmnist/KMNIST/raw",
    "EMNIST": "emnist/EMNIST/raw",
    "CIFAR100": "cifar100/cifar-100-python",
    "SVHN": "svhn",
    "EuroSAT": "eurosat",
    "DTD": "dtd",
    "SEMEION": "semeion",
}
LOOKED = {
    "FashionMNIST": "train-images-idx3-ubyte.gz",
    "KMNIST": "t10k-labels-idx1-ubyte.gz",
    "EMNIST": "emnist-balanced-test-images-idx3-ubyte.gz",
    "CIFAR100": "train, test, meta",
    "SVHN": "train_32x32.mat, test_32x32.mat",
    "EuroSAT": "eurosat/2750",
    "DTD": "dtd/dtd",
    "SEMEION": "semeion.data",
}


@pytest.mark.parametrize(("cls", "settings"), ALL)
def test_missing_files_say_where_it_looked_and_what_to_do(cls, settings, nowhere):
    name = settings.get("dataset", cls.__name__)
    error = line(cls(download=False, **settings))
    assert f"{nowhere / 'data' / WITHIN[name]} " in error
    assert LOOKED[name] in error
    assert "stream.root" in error
    assert "stream.download = true" in error
    assert list(nowhere.iterdir()) == []
    own = line(cls(download=False, root=str(nowhere / "own"), **settings))
    assert str(nowhere / "own") in own
    assert list(nowhere.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (urllib.error.URLError("no route to host"), "no route to host"),
        (RuntimeError("Error downloading\nsomething"), "Error downloading something"),
        (KeyError(), "KeyError"),
    ],
)
@pytest.mark.parametrize(("cls", "settings"), ALL)
def test_files_that_cannot_be_fetched_say_why(cls, settings, error, reason, nowhere, monkeypatch):
    name = settings.get("dataset", cls.__name__)

    def fail(self):
        raise error

    monkeypatch.setattr(getattr(sets, name), "_download" if name == "DTD" else "download", fail)
    told = line(cls(**settings))
    assert f"{nowhere / 'data' / WITHIN[name]}" in told
    assert "could not be fetched" in told
    assert reason in told
    assert LOOKED[name] in told
    assert not hasattr(tarfile.TarFile, "extraction_filter") or (
        "extraction_filter" not in vars(tarfile.TarFile)
    )


def test_a_folder_that_cannot_be_made_is_one_line(nowhere):
    (nowhere / "data").write_text("in the way")
    for settings in (KMNIST(), CIFAR100(), Torchvision(dataset="EuroSAT")):
        assert str(nowhere / "data") in line(settings)


@pytest.mark.parametrize("root", ["~nobody-of-that-name/x", "x" * 5000, "a\0b"])
@pytest.mark.parametrize(("cls", "settings"), ALL)
def test_a_root_that_cannot_be_is_one_line(cls, settings, root):
    error = line(cls(root=root, **settings))
    assert root[:20].replace("\0", "\\x00") in error  # an error shows what cannot be printed
    assert "stream.root" in error or "there" in error


def test_what_is_fetched_is_read(nowhere, monkeypatch):
    def fetch(self):
        for name in ("Forest", "River"):
            png(Path(self._data_folder) / name / "1.png", noise(5, 5, 3))

    monkeypatch.setattr(sets.EuroSAT, "download", fetch)
    data = Torchvision(dataset="EuroSAT").read()
    assert data.classes == ("Forest", "River")
    assert data.x.shape == (2, 3, 5, 5)

    def fetch_idx(self):
        if not Path(self.raw_folder).exists():
            IdxFiles(Path(self.root), sets.KMNIST, monkeypatch).write(packed=False)

    monkeypatch.setattr(sets.KMNIST, "download", fetch_idx)
    assert len(KMNIST().read().x) == 8


def test_an_archive_that_is_fetched_cannot_leave_its_folder(nowhere, monkeypatch):
    def fetch(self):
        place = Path(self.root)
        with tarfile.open(place / "evil.tar", "w") as tar:
            info = tarfile.TarInfo("../../../outside")
            info.size = 4
            tar.addfile(info, io.BytesIO(b"evil"))
        from torchvision.datasets.utils import extract_archive

        extract_archive(place / "evil.tar", place / "inside")

    monkeypatch.setattr(sets.EuroSAT, "download", fetch)
    assert "could not be fetched" in line(Torchvision(dataset="EuroSAT"))
    assert not list(nowhere.rglob("outside"))
    assert not (nowhere.parent / "outside").exists()


def test_nothing_is_fetched_where_the_files_are(eurosat, cifar, nowhere, monkeypatch):
    def fail(self):
        raise AssertionError("fetched")

    IdxFiles(nowhere / "root", sets.KMNIST, monkeypatch).write(packed=True)
    for cls in (sets.EuroSAT, sets.CIFAR100, sets.KMNIST):
        monkeypatch.setattr(cls, "download", fail)
    assert len(Torchvision(dataset="EuroSAT").read().x) == 18
    assert len(CIFAR100(root=str(nowhere / "root")).read().x) == 10
    assert len(KMNIST(root=str(nowhere / "root")).read().x) == 8


# ---- all -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cls", "settings"), ALL)
def test_settings_come_back_and_places_move_no_numbers(cls, settings):
    made = cls(root="somewhere", tasks=2, **settings)
    assert cls.from_table(made.to_table(), "[stream]") == made
    assert {"root", "download"} <= set(cls.places)
    name = "torchvision" if settings else cls.__name__.lower()
    assert plugins.find("stream", name) is cls


@pytest.mark.parametrize(("cls", "settings"), ALL)
def test_without_torchvision_the_error_says_what_to_install(cls, settings, monkeypatch, nowhere):
    for file in SETS[settings["dataset"]].files if settings else ():
        (nowhere / "data" / settings["dataset"].lower() / file).mkdir(parents=True)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    assert "pip install 'dpmcl[vision]'" in line(cls(**settings))


def test_a_set_that_the_installed_torchvision_lacks(monkeypatch):
    monkeypatch.delattr(sets, "EuroSAT")
    with pytest.raises(DataError, match="has no EuroSAT; use a newer one"):
        torchvision_class("EuroSAT")


def run(stream: dict):
    return dpmcl.run(
        {
            "stream": stream,
            "network": "mlp",
            "methods": ["er"],
            "replicas": 2,
            "training": {"updates": 20},
            "device": "cpu",
        }
    )


def test_from_folders_to_a_result(eurosat):
    result = run({"name": "torchvision", "dataset": "EuroSAT", "size": [8, 8]})
    assert result.stream.classes == ("AnnualCrop", "Forest", "River")
    assert result.stream.tasks == ("AnnualCrop", "Forest", "River")
    errors = result.errors["er"].values
    assert errors.shape[0] == 2
    assert errors.shape[2] == 3


def test_from_idx_files_to_a_result(nowhere, monkeypatch):
    labels = ([c for c in (2, 7, 5) for _ in range(6)], [2, 5, 7])
    files = IdxFiles(nowhere / "root", sets.FashionMNIST, monkeypatch, labels)
    files.write(packed=True)
    stream = {"name": "fashionmnist", "root": str(files.root), "download": False}
    result = run({**stream, "order": ["Sneaker", "Sandal", "Pullover"]})
    assert result.stream.classes == ("Pullover", "Sandal", "Sneaker")
    assert result.stream.tasks == ("Sneaker", "Sandal", "Pullover")
    assert isinstance(FashionMNIST(root=str(files.root)).read(), Labelled)
