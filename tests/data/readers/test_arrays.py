import io
import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

import dpmcl
from dpmcl import DataError, SpecError
from dpmcl.data import pools
from dpmcl.data.pools import compact, empty_pool
from dpmcl.data.readers.arrays import read_arrays
from dpmcl.streams.arrays import Arrays

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
    """The path is refused with one line that has all the parts."""
    with pytest.raises(DataError) as caught:
        read_arrays(path, **options)
    line = str(caught.value)
    assert "\n" not in line
    for part in parts:
        assert part in line


def is_mapped(tensor: torch.Tensor, path: Path) -> bool:
    """Whether the tensor's bytes are a map of the file, by the process's own list of maps."""
    address = tensor.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *_, name = line.split(maxsplit=5)
        start, end = (int(part, 16) for part in span.split("-"))
        if start <= address < end:
            return name == str(path.resolve())
    return False


needs_maps = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's /proc")
ways = pytest.mark.parametrize(
    ("name", "save"),
    [("my.npz", np.savez), ("my.npz", np.savez_compressed), ("my", None)],
    ids=["npz", "compressed", "folder"],
)


# ---- what is read --------------------------------------------------------------------------------


@ways
def test_labels_and_tasks(tmp_path, name, save):
    data = read_arrays(saved(tmp_path / name, save, x=X, y=Y, task=TASK, other=X))
    assert (data.name, data.kind, data.x.dtype) == ("my", "classification", torch.uint8)
    assert data.x.tolist() == X.tolist()
    assert (data.classes, data.y.tolist()) == (("a", "b"), [1, 0, 1, 0, 1, 0])
    assert (data.tasks, data.task.tolist()) == (("0", "1"), TASK.tolist())
    y = np.linspace(0, 1, 12).reshape(6, 2)
    (tmp_path / "more").mkdir()
    data = read_arrays(saved(tmp_path / "more" / name, save, x=X, y=y), name="waves")
    assert (data.name, data.kind, data.task, data.classes) == ("waves", "regression", None, ())
    assert (data.y.dtype, data.y.tolist()) == (torch.float64, y.tolist())


@ways
@pytest.mark.parametrize(
    ("stored", "kept"),
    [
        ("u1", torch.uint8),
        (">f4", torch.float32),
        ("f2", torch.float16),
        ("g", torch.float64),
        (">u2", torch.float32),
        ("i8", torch.float32),
    ],
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_types_and_orders(tmp_path, name, save, stored, kept, order):
    x = np.arange(60).reshape(5, 3, 4).astype(stored, order=order)
    path = saved(tmp_path / name, save, x=x, y=np.arange(5).astype(">i4"))
    data = read_arrays(path)
    assert data.x.dtype == kept
    assert data.x.is_contiguous()
    assert data.x.data_ptr() % data.x.element_size() == 0
    assert data.x.tolist() == np.arange(60).reshape(5, 3, 4).tolist()
    assert data.classes == ("0", "1", "2", "3", "4")


@pytest.mark.parametrize("stored", ["<U2", ">U2", "S2"])
def test_text_of_any_kind(tmp_path, stored):
    y = np.array(["u" if "S" in stored else "ü", "o"]).astype(stored)
    assert read_arrays(saved(tmp_path / "my.npz", x=X[:2], y=y)).classes == ("o", y[0].astype(str))


@pytest.mark.parametrize("name", ["my.npz", "my"])
def test_truth_as_bytes_of_any_value(tmp_path, name):
    x = np.frombuffer(bytes([0, 1, 2, 255]), np.bool_).reshape(4, 1)
    data = read_arrays(saved(tmp_path / name, x=x, y=x[:, 0]))
    assert data.x.dtype == torch.uint8
    assert data.x.flatten().tolist() == [0, 255, 255, 255]
    assert (data.classes, data.y.tolist()) == (("False", "True"), [0, 1, 1, 1])


def test_a_zip_behind_other_bytes_and_with_odd_names(tmp_path):
    inner = io.BytesIO()
    np.savez(inner, x=X, y=Y)
    with zipfile.ZipFile(inner, "a") as archive:
        archive.writestr("../x.npy", b"not this")
        archive.writestr("x", b"nor this")
    path = tmp_path / "my.npz"
    path.write_bytes(b"some other bytes" + inner.getvalue())
    assert read_arrays(path).x.tolist() == X.tolist()


# ---- maps ----------------------------------------------------------------------------------------


@needs_maps
@pytest.mark.filterwarnings("error")
def test_what_is_mapped_and_what_is_not(tmp_path):
    floats = X.astype(np.float32)
    npz, folder = saved(tmp_path / "u.npz", x=X, y=Y), saved(tmp_path / "f", x=floats, y=Y)
    assert is_mapped(read_arrays(npz).x, npz)
    assert is_mapped(read_arrays(folder).x, folder / "x.npy")
    targets = saved(tmp_path / "t", x=X, y=floats[:, :, 0])
    assert is_mapped(read_arrays(targets).y, targets / "y.npy")
    packed = saved(tmp_path / "c.npz", np.savez_compressed, x=X, y=Y)
    assert not is_mapped(read_arrays(packed).x, packed)
    columns = saved(tmp_path / "o", x=np.asfortranarray(X), y=Y)
    assert not is_mapped(read_arrays(columns).x, columns / "x.npy")


@pytest.mark.parametrize("name", ["my.npz", "my"])
def test_nothing_is_ever_written_to_the_files(tmp_path, name):
    path = saved(tmp_path / name, x=X, y=np.zeros((6, 1)))
    files = [path] if path.is_file() else sorted(path.iterdir())
    before = [file.read_bytes() for file in files]
    for file in files:
        file.chmod(0o444)
    data = read_arrays(path)
    data.x.fill_(7)
    data.y.fill_(7)
    assert data.x.float().mean() == 7
    del data
    assert [file.read_bytes() for file in files] == before


def sparse(path: Path, shape: tuple[int, ...]) -> Path:
    """A folder whose x is uint8 zeros that take no disk."""
    path.mkdir()
    np.save(path / "y.npy", np.arange(shape[0]))
    with (path / "x.npy").open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + int(np.prod(shape)))
    return path


def test_a_pool_larger_than_memory(tmp_path):
    size = psutil.virtual_memory().total + psutil.swap_memory().total + (1 << 30)
    try:
        path = sparse(tmp_path / "my", (4, size // 4))
    except OSError:
        pytest.skip("needs a disk with sparse files")
    before = psutil.Process().memory_info().rss
    data = read_arrays(path)
    assert data.x[2:, -1].tolist() == [0, 0]
    assert data.x.nbytes == size // 4 * 4
    assert psutil.Process().memory_info().rss - before < 50 << 20


# ---- pools ---------------------------------------------------------------------------------------


def no_memory(monkeypatch: pytest.MonkeyPatch, free: int = 0) -> None:
    monkeypatch.setattr(pools, "_free_memory", lambda: free)


@pytest.mark.filterwarnings("error")
def test_without_memory_a_pool_is_in_a_file_without_a_name(tmp_path, monkeypatch):
    no_memory(monkeypatch)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    pool = empty_pool((3, 2), np.dtype(np.float32))
    assert isinstance(pool, np.memmap)
    assert not pool.any()
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(pools, "_BYTES_AT_ONCE", 20)
    x = np.asfortranarray(np.arange(14, dtype=">i8").reshape(7, 2))
    made = compact(x, "x")
    assert isinstance(made, np.memmap)
    assert made.tolist() == x.tolist()


def test_without_room_on_disk_either(tmp_path, monkeypatch):
    no_memory(monkeypatch)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    for shape in ((3, 2), (1 << 58,)):
        with pytest.raises(DataError, match=r"neither has room .* set TMPDIR"):
            empty_pool(shape, np.dtype(np.float32))
        monkeypatch.setenv("TMPDIR", str(tmp_path))


# ---- what is refused -----------------------------------------------------------------------------


def test_what_is_no_pair_of_arrays(tmp_path):
    refused(saved(tmp_path / "a.npz", data=X, y=Y), "no 'x'", "'data', 'y'", "a.npz")
    refused(saved(tmp_path / "c", x=X, labels=Y), "no 'y'", "'labels', 'x'")
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        archive.writestr("../x.npy", b"")
        archive.writestr("line\nbreak.npy", b"")
    refused(tmp_path / "d.npz", "no 'x'", "'../x'")
    refused(tmp_path / "none.npz", "is not there", "none.npz")
    refused(tmp_path / ("n" * 3000), "cannot be read")
    refused(tmp_path / "c" / "x.npy", "neither", "a folder with x.npy and y.npy")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_pipes_are_not_waited_for(tmp_path):
    folder = saved(tmp_path / "my", y=Y)
    os.mkfifo(folder / "x.npy")
    refused(folder, "no 'x'")


def test_python_objects_are_not_loaded(tmp_path):
    class Trap:
        def __reduce__(self):
            return Path.touch, (tmp_path / "sprung",)

    trap = np.array([Trap()] * 6, dtype=object)
    for name in ("my.npz", "my"):
        path = saved(tmp_path / name, x=X, y=trap)
        refused(path, "y", "Python objects", "dtype='U'")
    only = tmp_path / "pickled.npz"
    only.write_bytes(pickle.dumps(Trap()))
    refused(only, "neither")
    (tmp_path / "my" / "y.npy").write_bytes(pickle.dumps(Trap()))
    refused(tmp_path / "my", "y.npy", "NumPy's format")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("array", "part"),
    [
        (np.zeros(6, [("a", "f4"), ("b", "i4")]), "each field"),
        (np.zeros((6, 2), "M8[s]"), "numbers of one shape a row (got type datetime64[s])"),
        (np.zeros((6, 2), "V3"), "plain numbers"),
        (np.uint8(3), "single value"),
        (np.zeros((0, 2)), "no rows"),
        (np.full((6, 2), np.nan), "finite"),
    ],
)
def test_inputs_that_cannot_be_used(tmp_path, array, part):
    for name in ("my.npz", "my"):
        refused(saved(tmp_path / name, x=array, y=Y), part)


@pytest.mark.parametrize(
    ("array", "part"),
    [
        (np.zeros(6, "M8[s]"), "datetime"),
        (np.float32(3), "shape"),
        (np.full(6, 0x7FFFFFFF, np.uint32).view("<U1"), "Unicode"),
    ],
)
def test_labels_that_cannot_be_used(tmp_path, array, part):
    for name in ("my.npz", "my"):
        refused(saved(tmp_path / name, x=X, y=array), part)


def header(shape: str, descr: str = "'|u1'", order: str = "False") -> bytes:
    line = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(line)) + line


LIES = {
    "more than there is": header("(6, 1000000000000000)"),
    "more than can be": header(f"(6, {10**40})"),
    "less than there is": header("(6, 1)"),
    "negative": header("(-6, -4)"),
    "nothing, in vast shapes": header(f"(0, {10**30})"),
    "truth": header("(True, 1)"),
    "objects": header("(6, 4)", "'|O'"),
    "code": header("(6, __import__('os').getpid())"),
    "depth": header("(6, " + "-" * 9000 + "4)"),
    "version 9": b"\x93NUMPY\x09\x00" + header("(6, 4)")[8:],
    "nothing at all": b"",
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


@pytest.mark.filterwarnings("error")
def test_what_does_not_fit_when_unpacked_goes_to_a_file(tmp_path, monkeypatch):
    path = saved(tmp_path / "my.npz", np.savez_compressed, x=X, y=TASK)
    no_memory(monkeypatch)
    assert read_arrays(path).x.tolist() == X.tolist()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    refused(path, "set TMPDIR")


def test_a_zip_whose_sizes_lie(tmp_path):
    path = tmp_path / "my.npz"
    size = 1 << 27
    content = header(f"(1, {size - 100})").ljust(100)
    np.savez(path, y=Y[:1])
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", content)
    raw = bytearray(path.read_bytes())
    entry = raw.rindex(b"PK\x01\x02")
    length = size - 100 + len(header(f"(1, {size - 100})"))
    raw[entry + 24 : entry + 28] = struct.pack("<I", length)
    path.write_bytes(raw)
    before = psutil.Process().memory_info().rss
    refused(path, "'x'")
    assert psutil.Process().memory_info().rss - before < size // 2


@pytest.mark.parametrize(
    ("save", "local", "central", "part"),
    [(np.savez_compressed, None, 16, "CRC"), (np.savez, 6, 8, "encrypted")],
)
def test_flags_and_checksums_of_members(tmp_path, save, local, central, part):
    path = saved(tmp_path / "my.npz", save, x=X, y=Y)
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"PK\x01\x02") + central] ^= 1
    if local is not None:
        raw[local] ^= 1
    path.write_bytes(raw)
    refused(path, "'x'", part)


# ---- the stream ----------------------------------------------------------------------------------


def test_from_a_file_to_results(tmp_path):
    y = np.repeat(np.arange(3), 20)
    x = (200 * np.eye(3)[y] + np.random.default_rng(0).uniform(0, 50, (60, 3))).astype(np.uint8)
    path = saved(tmp_path / "my.npz", x=x, y=np.array(["pear", "apple", "quince"])[y])
    result = dpmcl.run(path, methods=["er"], replicas=2, settings={"training.updates": 20})
    assert result.stream.tasks == ("apple", "pear", "quince")
    assert 0 <= result.rows()[0]["cme_mean"] < 0.3


def test_a_path_is_needed():
    with pytest.raises(SpecError, match=r"stream 'arrays' needs a path, as in stream.path"):
        Arrays()
