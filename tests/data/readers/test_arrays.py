import struct
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch

import conftest
from dpmcl.data import pools
from dpmcl.data.pools import compact
from dpmcl.data.readers.arrays import read_arrays
from packed import mapped_file

X = np.arange(24, dtype=np.uint8).reshape(6, 2, 2)
Y = np.array(["b", "a", "b", "a", "b", "a"])
TASK = np.array([1, 1, 0, 0, 1, 0])


def saved(path: Path, save=np.savez, **parts) -> Path:
    """An .npz file, or where the path has no suffix a folder of .npy files."""
    if path.suffix:
        save(path, **parts)
        return path
    path.mkdir()
    for name, array in parts.items():
        np.save(path / f"{name}.npy", array)
    return path


def refused(path: Path, *parts: str, **options) -> None:
    conftest.refused(lambda: read_arrays(path, **options), *parts)


needs_maps = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's /proc")
ways = pytest.mark.parametrize(
    ("name", "save"),
    [("my.npz", np.savez), ("my.npz", np.savez_compressed), ("my", None)],
    ids=["npz", "compressed", "folder"],
)


# ---- what is read --------------------------------------------------------------------------------


@ways
def test_labels_and_tasks(tmp_path, name, save):
    x = np.asfortranarray(X.astype(">u2"))
    data = read_arrays(saved(tmp_path / name, save, x=x, y=Y, task=TASK, other=X))
    assert (data.name, data.kind, data.x.dtype) == ("my", "classification", torch.float32)
    assert data.x.tolist() == X.tolist()
    assert (data.classes, data.y.tolist()) == (("a", "b"), [1, 0, 1, 0, 1, 0])
    assert (data.tasks, data.task.tolist()) == (("0", "1"), TASK.tolist())


# ---- maps ----------------------------------------------------------------------------------------


@needs_maps
@pytest.mark.filterwarnings("error")
def test_what_is_mapped_and_what_is_not(tmp_path):
    floats = X.astype(np.float32)
    folder = saved(tmp_path / "f", x=floats, y=floats[:, 0])
    data = read_arrays(folder)
    assert (mapped_file(data.x), mapped_file(data.y)) == (folder / "x.npy", folder / "y.npy")
    packed = saved(tmp_path / "u.npz", x=X, y=Y)
    columns = saved(tmp_path / "o", x=np.asfortranarray(X), y=Y)
    assert mapped_file(read_arrays(packed).x) is mapped_file(read_arrays(columns).x) is None


@pytest.mark.parametrize("name", ["my.npz", "my"])
def test_nothing_is_ever_written_to_the_files(tmp_path, name):
    path = saved(tmp_path / name, x=X, y=np.zeros((6, 1)))
    files = [path] if path.is_file() else sorted(path.iterdir())
    before = [file.read_bytes() for file in files]
    data = read_arrays(path)
    data.x.fill_(7)
    data.y.fill_(7)
    assert data.x.float().mean() == 7
    del data
    assert [file.read_bytes() for file in files] == before


def test_a_pool_larger_than_memory(tmp_path):
    size = psutil.virtual_memory().total + psutil.swap_memory().total + (1 << 30)
    path = saved(tmp_path / "my", y=np.arange(4))
    try:
        with (path / "x.npy").open("wb") as file:  # zeros that take no disk
            file.write(header(f"(4, {size // 4})"))
            file.truncate(file.tell() + size // 4 * 4)
    except OSError:
        pytest.skip("needs a disk with sparse files")
    before = psutil.Process().memory_info().rss
    data = read_arrays(path)
    assert data.x[2:, -1].tolist() == [0, 0]
    assert data.x.nbytes == size // 4 * 4
    assert psutil.Process().memory_info().rss - before < 50 << 20


# ---- pools ---------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("error")
def test_without_memory_a_pool_is_in_a_file_without_a_name(tmp_path, monkeypatch):
    path = saved(tmp_path / "my", x=np.asfortranarray(X), y=TASK)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=0))
    monkeypatch.setattr(pools, "_BYTES_AT_ONCE", 20)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    x = np.asfortranarray(np.arange(14, dtype=">i8").reshape(7, 2))
    made = compact(x, "x")
    assert isinstance(made, np.memmap)
    assert made.tolist() == x.tolist()
    assert list((tmp_path / "tmp").iterdir()) == []
    assert read_arrays(path).x.tolist() == X.tolist()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    refused(path, "neither has room", "set TMPDIR")


# ---- what is refused -----------------------------------------------------------------------------


def test_what_is_no_pair_of_arrays(tmp_path):
    refused(saved(tmp_path / "a.npz", data=X, y=Y), "no 'x'", "'data', 'y'", "a.npz")
    refused(saved(tmp_path / "c", x=X, labels=Y), "no 'y'", "'labels', 'x'")
    refused(tmp_path / "none.npz", "is not there", "none.npz")
    refused(tmp_path / ("n" * 3000), "cannot be read")
    refused(tmp_path / "c" / "x.npy", "neither", "a folder with x.npy and y.npy")


@pytest.mark.parametrize(
    ("arrays", "part"),
    [
        ({"x": np.zeros(6, [("a", "f4"), ("b", "i4")])}, "numbers of one shape"),
        ({"x": np.uint8(3)}, "the shape ()"),
        ({"y": np.array([{}] * 6, dtype=object)}, "Python objects"),  # no code runs: test_fuzz.py
        ({"y": np.full(6, 0x7FFFFFFF, np.uint32).view("<U1")}, "Unicode"),
    ],
)
def test_arrays_that_cannot_be_used(tmp_path, arrays, part):
    for name in ("my.npz", "my"):
        refused(saved(tmp_path / name, **{"x": X, "y": Y, **arrays}), part)


def header(shape: str, descr: str = "'|u1'", order: str = "False") -> bytes:
    line = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(line)) + line


LIES = {
    "more than there is": header("(6, 1000000000000000)"),
    "no bytes at all": header("(9000000000000, 1)", "'<U0'"),
    "code": header("(6, __import__('os').getpid())"),
    "version 9": b"\x93NUMPY\x09\x00" + header("(6, 4)")[8:],
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("packing", [None, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_headers_that_lie(tmp_path, lie, packing):
    content = LIES[lie] + X.tobytes()
    path = tmp_path / "my.npz"
    if packing is None:
        path = saved(tmp_path / "my", x=X, y=Y)
        (path / "x.npy").write_bytes(content)
    else:
        np.savez(path, y=Y)
        with zipfile.ZipFile(path, "a", packing) as archive:
            archive.writestr("x.npy", content)
    refused(path, "x", str(path))
