"""Known sets: by the content of their files, wherever they lie and however they are packed."""

import bz2
import gzip
import hashlib
import io
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from conftest import complaint, refused
from dpmcl import plugins
from dpmcl.streams import _known_files as known_files
from packed import contents, folder, noise, tarred, zipped

sets = pytest.importorskip("torchvision.datasets")

pytestmark = pytest.mark.usefixtures("nowhere")

NAMES = ("mnist", "fashionmnist", "kmnist", "emnist", "cifar10", "cifar100", "svhn")
CHECKED = ("mnist", "fashionmnist", "cifar10", "cifar100", "svhn")
DIGITS = [[0, 3, 3, 9, 1], [3, 0, 1]]
"""Labels of the training and the test part."""


def stream(name: str, **settings):
    return plugins.find("stream", name)(**settings)


def line(settings) -> str:
    return complaint(settings.read)


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def as_idx(array: np.ndarray) -> bytes:
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


class Tiny:
    """A set of eight images in its published format, with sums that agree.

    files: their contents, by name. x: (rows, channels, height, width). classes: of the rows.
    """

    def __init__(self, name: str, patch: pytest.MonkeyPatch) -> None:
        self.name, self.patch = name, patch
        self.files: dict[str, bytes] = {}
        make = {"svhn": self._svhn, "cifar10": self._cifar, "cifar100": self._cifar}
        make.get(name, self._idx)()

    def _idx(self) -> None:
        start, parts = ("", ("train", "t10k"))
        if self.name == "emnist":
            start, parts = "emnist-digits-", ("train", "test")
        images = [noise(i, len(part), 28, 28) for i, part in enumerate(DIGITS)]
        for part, x, y in zip(parts, images, DIGITS, strict=True):
            self.files[f"{start}{part}-images-idx3-ubyte"] = as_idx(x)
            self.files[f"{start}{part}-labels-idx1-ubyte"] = as_idx(np.array(y))
        self.x = np.concatenate(images)[:, None]
        if self.name == "emnist":  # whose images lie on their side
            self.x = self.x.swapaxes(2, 3)
        of = {"kmnist": sets.KMNIST.classes, "fashionmnist": sets.FashionMNIST.classes}
        self.classes = [of.get(self.name, "0123456789")[c] for part in DIGITS for c in part]
        sums = {"mnist": known_files.MNIST, "fashionmnist": known_files.FASHION_MNIST}
        for file, content in self.files.items():
            if self.name in sums:
                self.patch.setitem(sums[self.name], file, md5(content))

    def _cifar(self) -> None:
        cls = getattr(sets, self.name.upper())
        key = cls.meta["key"]
        names = list("abcdefghij")
        self.files[cls.meta["filename"]] = pickle.dumps({key: names})
        self.patch.setattr(cls, "meta", {**cls.meta, "md5": md5(pickle.dumps({key: names}))})
        pixels, self.classes = [], []
        for part in ("train_list", "test_list"):
            listed = []
            for file, _ in getattr(cls, part):
                labels = DIGITS[part == "test_list"]
                pixels.append(noise(len(pixels), len(labels), 3072))
                batch = {"data": pixels[-1], "labels": labels, "fine_labels": labels}
                batch.pop("fine_labels" if self.name == "cifar10" else "labels")
                self.files[file] = pickle.dumps(batch)
                listed.append([file, md5(self.files[file])])
                self.classes += [names[c] for c in labels]
            self.patch.setattr(cls, part, listed)
        self.x = np.concatenate(pixels).reshape(-1, 3, 32, 32)

    def _svhn(self) -> None:
        savemat = pytest.importorskip("scipy.io").savemat
        listed, pixels = dict(sets.SVHN.split_list), []
        for i, (part, labels) in enumerate(zip(("train", "test"), DIGITS, strict=True)):
            pixels.append(noise(i, 32, 32, 3, len(labels)))
            digits = np.array([c or 10 for c in labels], dtype=np.uint8)[:, None]
            savemat(out := io.BytesIO(), {"X": pixels[-1], "y": digits})
            file = f"{part}_32x32.mat"
            self.files[file] = out.getvalue()
            listed[part] = [listed[part][0], file, md5(out.getvalue())]
        self.patch.setattr(sets.SVHN, "split_list", listed)
        self.x = np.concatenate([x.transpose(3, 2, 0, 1) for x in pixels])
        self.classes = [str(c) for part in DIGITS for c in part]

    def settings(self, root: Path, **more):
        part = {"part": "digits"} if self.name == "emnist" else {}
        size = {"size": 32} if self.name == "cifar10" else {}
        return stream(self.name, root=str(root), **{"download": False, **part, **size, **more})


FORMS = {
    "as torchvision has it": lambda root, files: folder(root / "Set" / "raw", files),
    "gzip, as Debian packs": lambda root, files: folder(root, packed(files, gzip.compress, ".gz")),
    "bz2": lambda root, files: folder(root / "raw", packed(files, bz2.compress, ".bz2")),
    "Kaggle's names": lambda root, files: folder(
        root, {name.replace("-idx", ".idx"): content for name, content in files.items()}
    ),
    "zip of gzip": lambda root, files: zipped(
        folder(root, {}) / "x", {f"gzip/{n}": c for n, c in packed(files, gzip.compress).items()}
    ),
    "tar.xz": lambda root, files: tarred(
        folder(root / "inner", {}) / "x", {f"any/{n}": c for n, c in files.items()}, "xz"
    ),
    "beside wrong ones": lambda root, files: (
        folder(root / "a", {**dict.fromkeys(files, b"wrong"), "a.tar": b"damaged"}),
        tarred(folder(root / "b", {}) / "b", files),
    ),
}


def packed(files, pack=gzip.compress, end=".gz"):
    return {f"{name}{end}": pack(content) for name, content in files.items()}


READ = [
    *((name, form) for name in NAMES for form in ("as torchvision has it", "tar.xz")),
    *(("mnist", form) for form in FORMS),
    *((name, "beside wrong ones") for name in CHECKED),
]


@pytest.mark.parametrize(("name", "form"), READ)
def test_a_set_is_read_training_first_however_it_is_packed(name, form, nowhere, monkeypatch):
    tiny, root = Tiny(name, monkeypatch), nowhere / "root"
    FORMS[form](root, tiny.files)
    before = contents(nowhere)
    data = tiny.settings(root).read()
    assert data.name == name
    assert np.array_equal(data.x.numpy(), tiny.x)
    assert data.x.is_contiguous()
    assert [data.classes[c] for c in data.y] == tiny.classes
    assert len(data.classes) == 4  # those with images
    assert ("class names: the data set's own, in its order" in data.notes) == (name != "svhn")
    assert any("unchecked" in note for note in data.notes) == (name not in CHECKED)
    assert contents(nowhere) == before


@pytest.mark.parametrize("name", CHECKED)
def test_another_content_is_named_and_never_opened(name, nowhere, monkeypatch):
    """Also where it could be fetched: nobody's files are replaced. Pickles could run code."""
    tiny, trace = Tiny(name, monkeypatch), nowhere / "it ran"
    evil = b"cposix\nmkdir\n(V" + str(trace).encode() + b"\ntR."
    pickle.loads(evil)
    trace.rmdir()
    for file in tiny.files:
        for pack, end in ((gzip.compress, ".gz"), (bytes, "")):
            root = folder(nowhere / f"{file}{end}", packed({**tiny.files, file: evil}, pack, end))
            parts = (f"{root / file}{end} must hold", md5(tiny.files[file]))
            refused(tiny.settings(root, download=True).read, *parts)
    root = nowhere / "archive"
    path = tarred(folder(root, {}) / "x", {**tiny.files, file: evil}, "gz")
    assert f"'{file}' in {path} must hold" in line(tiny.settings(root, download=True))
    assert not trace.exists()


def test_a_set_is_not_read_for_another_whose_files_have_the_same_names(nowhere, monkeypatch):
    root = folder(nowhere / "root", Tiny("fashionmnist", monkeypatch).files)
    assert "is FashionMNIST's" in line(stream("kmnist", root=str(root)))
    assert "MNIST's published file" in line(stream("mnist", root=str(root)))


LABELS = "t10k-labels-idx1-ubyte"
DAMAGED = [
    (lambda content: content[:-1], ""),
    (lambda content: b"\x00\x00\x0d\x03" + content[4:], ""),
    (lambda content: as_idx(noise(3, 3, 20, 28)), ""),
    (lambda content: as_idx(np.array([200, 0, 1])), "got 200"),
    (lambda content: as_idx(np.array([3, 0])), "8 rows and 7 targets"),
]


@pytest.mark.parametrize(("change", "rule"), DAMAGED)
def test_idx_files_that_are_damaged_are_one_line(change, rule, nowhere, monkeypatch):
    files = Tiny("kmnist", monkeypatch).files
    root = folder(nowhere / "root", {**files, LABELS: change(files[LABELS])})
    error = line(stream("kmnist", root=str(root)))
    assert "kmnist" in error.lower()
    assert rule in error


def test_emnists_letters_count_from_one_and_its_parts_have_files_of_their_own(nowhere):
    files, letters = {}, np.arange(1, 27)
    for which in ("train", "test"):
        files[f"emnist-letters-{which}-images-idx3-ubyte"] = as_idx(noise(0, 26, 28, 28))
        files[f"emnist-letters-{which}-labels-idx1-ubyte"] = as_idx(letters)
    root = str(folder(nowhere / "root", files))
    data = stream("emnist", root=root, part="letters").read()
    assert data.classes == tuple("abcdefghijklmnopqrstuvwxyz")
    assert data.y.tolist() == [*range(26), *range(26)]
    assert "emnist-balanced-train" in line(stream("emnist", root=root, download=False))
