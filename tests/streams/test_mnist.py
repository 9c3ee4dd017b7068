"""The real files of MNIST: every row once."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from dpmcl.streams.mnist import MNIST
from packed import contents

FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def idx(path: Path, header: int) -> np.ndarray:
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header)


@pytest.mark.data
def test_mnist_holds_the_files_rows_in_ten_tasks(data, tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name in FILES:
        (raw / name).symlink_to((data / "mnist" / "MNIST" / "raw" / name).resolve())
    before = contents(tmp_path)
    stream = MNIST(root=str(tmp_path), download=False).build([0])
    assert contents(tmp_path) == before
    pixels = np.concatenate([idx(raw / FILES[0], 16), idx(raw / FILES[2], 16)])
    labels = np.concatenate([idx(raw / FILES[1], 8), idx(raw / FILES[3], 8)])
    assert stream.x.shape == (70_000, 1, 28, 28)
    assert stream.x.dtype == torch.uint8
    assert np.array_equal(stream.x.numpy().ravel(), pixels)
    assert np.array_equal(stream.y.numpy(), labels)
    assert torch.equal(stream.y[stream.row], stream.task)
    counts = torch.bincount(stream.task[0])
    assert counts.tolist() == [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]
