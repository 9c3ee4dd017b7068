"""MNIST: the published files, every row once, nothing written into their folder."""

import gzip
import shutil

import numpy as np
import pytest
import torch

from dpmcl.data.readers.images import data_folder
from dpmcl.data.splits import split
from dpmcl.exceptions import DataError
from dpmcl.streams.mnist import MNIST

SHARES = (0.6, 0.2, 0.2)
PARTS = ("train", "validation", "test")
FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def idx(path, header: int) -> np.ndarray:
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header)


def contents(root) -> list:
    return sorted((str(p), p.lstat().st_mtime_ns, p.lstat().st_size) for p in root.rglob("*"))


@pytest.fixture(scope="module")
def mnist(data, tmp_path_factory):
    """The stream, from a folder that could be written to; and what the folder held before."""
    root = tmp_path_factory.mktemp("mnist")
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name in FILES:
        (raw / name).symlink_to((data / "mnist" / "MNIST" / "raw" / name).resolve())
    before = contents(root)
    return MNIST(root=str(root), download=False).build([0]), root, before


@pytest.mark.data
def test_mnist_holds_the_files_images_and_labels_row_by_row(mnist, data):
    stream, _, _ = mnist
    raw = data / "mnist" / "MNIST" / "raw"
    pixels = np.concatenate([idx(raw / FILES[0], 16), idx(raw / FILES[2], 16)])
    labels = np.concatenate([idx(raw / FILES[1], 8), idx(raw / FILES[3], 8)])
    assert stream.x.shape == (70_000, 1, 28, 28)
    assert stream.x.dtype == torch.uint8
    assert np.array_equal(stream.x.numpy().ravel(), pixels)
    assert np.array_equal(stream.y.numpy(), labels)


@pytest.mark.data
def test_mnist_comes_as_ten_tasks_in_order(mnist):
    stream, _, _ = mnist
    assert stream.tasks == tuple("0123456789")
    assert torch.equal(stream.y[stream.row], stream.task)
    counts = torch.bincount(stream.task[0]).tolist()
    assert counts == [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]


@pytest.mark.data
def test_mnist_is_split_sixty_twenty_twenty(mnist):
    splits = split(mnist[0], [0], SHARES)
    sizes = [splits.named(part).offset[0].diff().tolist() for part in PARTS]
    for task, n in enumerate(torch.bincount(mnist[0].y).tolist()):
        train, validation, test = (size[task] for size in sizes)
        assert (train, test) == (round(0.6 * n), round(0.2 * n))
        assert train + validation + test == n


@pytest.mark.data
def test_mnist_writes_nothing_into_its_folder(mnist):
    _, root, before = mnist
    assert len(before) == 6
    assert contents(root) == before


@pytest.mark.data
def test_mnist_refuses_a_file_that_was_damaged(data, tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name in FILES:
        shutil.copyfile(data / "mnist" / "MNIST" / "raw" / name, raw / name)
    damaged = bytearray((raw / FILES[0]).read_bytes())
    middle = len(damaged) // 2
    damaged[middle : middle + 8] = bytes(8)
    (raw / FILES[0]).write_bytes(damaged)
    with pytest.raises(DataError, match=FILES[0]):
        MNIST(root=str(tmp_path), download=False).build([0])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"no archive at all", "cannot be read ("),
        (gzip.compress(bytes(1000), mtime=0)[:-9], "cannot be read ("),
        (gzip.compress(b"something else", mtime=0), "must hold MNIST's published file"),
    ],
)
def test_mnist_refuses_files_that_are_not_the_published_ones(tmp_path, content, reason):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name in FILES:
        (raw / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        MNIST(root=str(tmp_path), download=False).build([0])
    assert str(raw / FILES[0]) in str(caught.value)
    assert reason in str(caught.value)
    assert sorted(p.name for p in raw.iterdir()) == sorted(FILES)


def test_mnist_that_is_not_there_says_where_it_looked(tmp_path):
    with pytest.raises(DataError) as caught:
        MNIST(root=str(tmp_path / "nowhere"), download=False).build([0])
    line = str(caught.value)
    assert str(tmp_path / "nowhere" / "MNIST" / "raw") in line
    assert all(name in line for name in FILES)
    assert "stream.download = true" in line
    assert not (tmp_path / "nowhere").exists()


def test_the_folder_of_data_is_the_environments_or_a_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DPMCL_DATA", str(tmp_path))
    assert data_folder("mnist") == tmp_path / "mnist"
    monkeypatch.delenv("DPMCL_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folder("mnist") == tmp_path / ".cache" / "dpmcl" / "mnist"
