"""Streams and their splits: every row once, in its own task, the same for a seed in any company."""

import gzip
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from conftest import tiny_stream
from dpmcl.exceptions import DataError, SpecError
from dpmcl.stream import Stream, class_incremental, split
from dpmcl.streams.digits import Digits
from dpmcl.streams.mnist import MNIST, data_folder

SHARES = (0.6, 0.2, 0.2)
PARTS = ("train", "validation", "test")
FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


@pytest.fixture(scope="module")
def digits() -> Stream:
    return Digits().build([0])


def rows_of(part, replica: int, task: int) -> list[int]:
    first, last = part.offset[replica, task : task + 2].tolist()
    assert (part.task[replica, first:last] == task).all()
    return part.row[replica, first:last].tolist()


def own_rows_stream(sizes: list[list[int]]) -> Stream:
    """Each replica has rows of its own, and as many a task as `sizes` say."""
    replicas, tasks = len(sizes), len(sizes[0])
    n = sum(sizes[0])
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(replicas * n, 2, generator=generator, dtype=torch.float64)
    return Stream(
        name="own",
        kind="regression",
        x=x,
        y=x.sum(1, keepdim=True),
        row=torch.arange(replicas * n).view(replicas, n),
        task=torch.stack(
            [torch.arange(tasks).repeat_interleave(torch.tensor(own)) for own in sizes]
        ),
        tasks=tuple(f"task {k}" for k in range(tasks)),
        classes=(),
        outputs=1,
    )


def test_the_split_of_a_task_is_disjoint_and_complete(digits):
    splits = split(digits, [0, 1, 5], SHARES)
    for replica in range(3):
        for task in range(10):
            rows = [row for part in PARTS for row in rows_of(splits.named(part), replica, task)]
            assert sorted(rows) == (digits.y == task).nonzero().flatten().tolist()


def test_the_split_has_the_shares_to_the_nearest_row(digits):
    splits = split(digits, [0], SHARES)
    count = torch.bincount(digits.y).tolist()
    sizes = {part: splits.named(part).offset[0].diff().tolist() for part in PARTS}
    assert sizes["train"] == [round(0.6 * n) for n in count]
    assert sizes["test"] == [round(0.2 * n) for n in count]
    assert all(abs(v - 0.2 * n) <= 1 for v, n in zip(sizes["validation"], count, strict=True))


def test_other_shares_give_other_sizes(digits):
    splits = split(digits, [0], (0.5, 0.25, 0.25))
    assert splits.train.offset[0, 1] == 89
    assert splits.test.offset[0, 1] == 45
    assert splits.validation.offset[0, 1] == 178 - 89 - 45


def test_the_split_differs_by_seed(digits):
    splits = split(digits, [0, 1], SHARES)
    for part in PARTS:
        first, second = (set(rows_of(splits.named(part), replica, 3)) for replica in (0, 1))
        assert len(first) == len(second)
        assert first != second


def test_the_rows_are_mixed_within_a_task(digits):
    rows = rows_of(split(digits, [0], SHARES).train, 0, 0)
    assert rows != sorted(rows)


@pytest.mark.parametrize("seed", [0, 7])
def test_a_seed_is_split_the_same_alone_and_among_ten(digits, seed):
    among = split(digits, range(10), SHARES)
    alone = split(digits, [seed], SHARES)
    for part in PARTS:
        for many, one in zip(among.named(part), alone.named(part), strict=True):
            assert torch.equal(many[seed], one[0])


def test_a_shorter_stream_splits_its_tasks_as_the_full_one(digits):
    shorter = Digits(tasks=3).build([0])
    assert shorter.tasks == ("0", "1", "2")
    assert shorter.outputs == 10
    some, full = (split(stream, [0, 4], SHARES) for stream in (shorter, digits))
    for part in PARTS:
        assert some.named(part).offset.shape == (2, 4)
        for replica in (0, 1):
            for task in range(3):
                rows = rows_of(some.named(part), replica, task)
                assert rows == rows_of(full.named(part), replica, task)


@pytest.mark.parametrize(("rows", "lacking"), [(1, "validation"), (2, "test"), (3, "validation")])
def test_too_few_rows_name_the_task(rows, lacking):
    y = torch.tensor([0] * 10 + [1] * rows + [2] * 10)
    stream = class_incremental("small", torch.zeros(len(y), 1), y, ["ant", "bee", "cat"], None)
    with pytest.raises(DataError) as caught:
        split(stream, [0], SHARES)
    line = str(caught.value)
    assert "task 1 ('bee')" in line
    assert f"has {rows} rows, none for {lacking}" in line


@pytest.mark.parametrize("sizes", [[[10, 20], [15, 15]], [[12, 12, 6], [11, 11, 8], [5, 5, 20]]])
def test_replicas_may_own_their_rows_and_differ_in_task_sizes(sizes):
    stream = own_rows_stream(sizes)
    seeds = range(len(sizes))
    splits = split(stream, seeds, SHARES)
    for replica, own in enumerate(sizes):
        for task, size in enumerate(own):
            rows = [row for part in PARTS for row in rows_of(splits.named(part), replica, task)]
            at = stream.task[replica] == task
            assert sorted(rows) == stream.row[replica, at].tolist()
            assert len(rows) == size
            assert len(rows_of(splits.train, replica, task)) == int(0.6 * size + 0.5)


def test_a_replica_with_rows_of_its_own_is_split_the_same_alone():
    sizes = [[12, 12, 6], [11, 11, 8], [5, 5, 20]]
    stream = own_rows_stream(sizes)
    among = split(stream, [4, 5, 6], SHARES)
    single = replace(stream, row=stream.row[1:2], task=stream.task[1:2])
    alone = split(single, [5], SHARES)
    for part in PARTS:
        assert torch.equal(among.named(part).offset[1], alone.named(part).offset[0])
        for task in range(3):
            rows = rows_of(among.named(part), 1, task)
            assert rows == rows_of(alone.named(part), 0, task)


def test_a_byte_pool_is_scaled_in_a_batch_and_absent_rows_weigh_nothing():
    x = torch.tensor([[0, 51], [102, 255], [1, 2]], dtype=torch.uint8)
    stream = class_incremental("bytes", x, torch.tensor([0, 1, 0]), ["a", "b"], None)
    row = torch.tensor([[1, 0], [0, 1]])
    present = torch.tensor([[True, False], [True, True]])
    batch = stream.batch(row, present, torch.tensor([[1, 0], [0, 1]]), torch.float64)
    expected = torch.tensor([[0.4, 1.0], [0.0, 0.2]], dtype=torch.float64)
    torch.testing.assert_close(batch.x[0], expected)
    assert batch.x.dtype == batch.w.dtype == torch.float64
    assert batch.y.tolist() == [[1, 0], [0, 1]]
    assert batch.w.tolist() == [[1.0, 0.0], [1.0, 1.0]]
    assert stream.x.dtype == torch.uint8


def test_a_float_pool_is_not_scaled():
    x = torch.tensor([[200.0], [-3.0]])
    stream = class_incremental("floats", x, torch.tensor([0, 1]), ["a", "b"], None)
    row = torch.tensor([0, 1])
    batch = stream.batch(row, row >= 0, row, torch.float64)
    assert batch.x.tolist() == [[200.0], [-3.0]]


def test_regression_targets_come_in_the_runs_type():
    stream = own_rows_stream([[10, 20]])
    row = torch.arange(4)
    batch = stream.batch(row, row >= 0, row * 0, torch.float32)
    assert batch.y.dtype == torch.float32
    assert batch.y.shape == (4, 1)


def test_an_example_is_two_rows_of_inputs(digits):
    example = digits.example(torch.float64)
    assert example.shape == (2, 1, 8, 8)
    assert example.dtype == torch.float64


def test_classes_become_tasks_in_the_order_of_their_numbers():
    y = torch.tensor([2, 0, 1, 0, 2])
    stream = class_incremental("abc", torch.arange(5.0)[:, None], y, ["a", "b", "c"], None)
    assert stream.row.tolist() == [[1, 3, 2, 0, 4]]
    assert stream.task.tolist() == [[0, 0, 1, 2, 2]]
    assert stream.tasks == stream.classes == ("a", "b", "c")


def test_fewer_tasks_keep_a_place_for_every_class():
    y = torch.tensor([2, 0, 1, 0, 2])
    stream = class_incremental("abc", torch.zeros(5, 1), y, ["a", "b", "c"], 2)
    assert stream.row.tolist() == [[1, 3, 2]]
    assert stream.tasks == ("a", "b")
    assert stream.outputs == len(stream.classes) == 3


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_refused_with_their_row(bad):
    x = torch.zeros(6, 2, 3)
    x[4, 1, 2] = x[5, 0, 0] = bad
    with pytest.raises(DataError) as caught:
        class_incremental("holes", x, torch.arange(6) // 3, ["a", "b"], None)
    line = str(caught.value)
    assert "row 4 of stream 'holes'" in line
    assert f"{bad} at (1, 2)" in line
    assert "2 values" in line


def test_a_class_without_rows_is_refused_by_name():
    with pytest.raises(DataError, match="class 'bee' of 'zoo' has none"):
        class_incremental(
            "zoo", torch.zeros(4, 1), torch.tensor([0, 0, 2, 2]), ["ant", "bee", "cat"], None
        )


def test_more_tasks_than_classes_are_refused():
    with pytest.raises(SpecError) as caught:
        Digits(tasks=11).build([0])
    assert str(caught.value) == "tasks must be at most 10 for stream 'digits', got 11."


@pytest.mark.parametrize("shares", [(0.6, 0.2, 0.1), (0.8, 0.2, 0.0), (1.2, -0.1, -0.1)])
def test_shares_that_are_no_split_are_refused(shares):
    with pytest.raises(SpecError, match="split must be three shares above 0 that add up to 1"):
        Digits(split=shares)


def test_digits_are_the_real_ones(digits):
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    assert digits.x.shape == (1797, 1, 8, 8)
    np.testing.assert_array_equal(digits.x.flatten(1).numpy() * 16, pixels)
    np.testing.assert_array_equal(digits.y.numpy(), labels)
    assert (float(digits.x.min()), float(digits.x.max())) == (0.0, 1.0)


def test_digits_come_as_ten_tasks_in_order(digits):
    assert digits.tasks == digits.classes == tuple("0123456789")
    assert digits.row.shape == digits.task.shape == (1, 1797)
    assert torch.equal(digits.y[digits.row], digits.task)
    assert (digits.task.diff() >= 0).all()
    assert sorted(digits.row[0].tolist()) == list(range(1797))


def test_a_stream_moves_whole():
    moved = tiny_stream().to(torch.device("meta"))
    for tensor in (moved.x, moved.y, moved.row, moved.task):
        assert tensor.device.type == "meta"


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
        (b"no archive at all", "cannot be unpacked"),
        (gzip.compress(bytes(1000), mtime=0)[:-9], "cannot be unpacked"),
        (gzip.compress(b"something else", mtime=0), "must hold the published file"),
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
