"""Splits: every row once, in its own task, the same for a seed in any company."""

import math
from dataclasses import replace

import pytest
import torch

from conftest import SHARES, complaint, own_rows_stream, rows_of
from dpmcl.data.splits import split
from dpmcl.data.stream import Stream
from dpmcl.exceptions import DataError
from dpmcl.streams.digits import Digits

PARTS = ("train", "validation", "test")


@pytest.mark.parametrize("shares", [SHARES, (0.5, 0.25, 0.25)])
def test_a_task_is_split_disjointly_completely_and_by_its_shares(digits, shares):
    splits = split(digits, [0, 1, 5], shares)
    for replica in range(3):
        for task in range(10):
            train, validation, test = (rows_of(part, replica, task) for part in splits[:3])
            members = (digits.y == task).nonzero().flatten().tolist()
            assert sorted([*train, *validation, *test]) == members
            assert len(train) == int(shares[0] * len(members) + 0.5)
            assert len(test) == int(shares[2] * len(members) + 0.5)
            assert train != sorted(train)
    for part in splits[:3]:
        assert set(rows_of(part, 0, 3)) != set(rows_of(part, 1, 3))


@pytest.mark.parametrize("seed", [0, 7])
def test_a_seed_is_split_the_same_alone_among_ten_and_on_a_shorter_stream(digits, seed):
    among = split(digits, range(10), SHARES)
    alone = split(digits, [seed], SHARES)
    short = split(Digits(tasks=3).build([0]), [seed], SHARES)
    for part in PARTS:
        for many, one in zip(among.named(part), alone.named(part), strict=True):
            assert torch.equal(many[seed], one[0])
        for task in range(3):
            assert rows_of(short.named(part), 0, task) == rows_of(alone.named(part), 0, task)


def test_too_few_rows_name_class_and_task():
    def small(rows):
        y = ["ant"] * 10 + ["bee"] * rows + ["cat"] * 10
        return Stream.from_arrays(torch.zeros(len(y), 1), y, name="small", classes_per_task=3)

    assert complaint(split, small(2), [0], SHARES) == (
        "Every class of a task needs a row to train, to validate and to test; class 'bee' of "
        "task 0 ('ant, bee, cat') in 'small' has 2, of 3 at least. Give it more rows, or "
        "leave it out."
    )
    assert split(small(3), [0], SHARES)


def test_a_task_without_rows_is_refused():
    stream = replace(own_rows_stream([[5, 0, 5]]), tasks=("a", "b", "c"))
    with pytest.raises(DataError, match=r"Every task needs rows; task 1 \('b'\) has none"):
        split(stream, [0], SHARES)


def test_every_class_of_a_task_is_split_by_itself_and_mixed_with_the_others():
    y = ["rare"] * 5 + ["common"] * 100
    stream = Stream.from_arrays(torch.zeros(105, 1), y, classes_per_task=2)
    splits = split(stream, range(5), SHARES)
    rare = stream.y[:1]
    for part, count in zip(splits[:3], (3, 1, 1), strict=True):
        assert ((stream.y[part.row] == rare).sum(1) == count).all()
    even = Stream.from_arrays(torch.zeros(400, 1), torch.arange(400) // 200, classes_per_task=2)
    first = even.y[split(even, range(4), SHARES).test.row][:, :20].float().mean(1)
    assert ((first > 0.1) & (first < 0.9)).all()


def test_at_most_some_rows_of_each_task(digits):
    test = split(digits, [0, 1], SHARES).test
    few = test.at_most(5)
    assert few.offset.diff(dim=1).tolist() == [[5] * 10] * 2
    assert all(rows_of(few, 1, k) == rows_of(test, 1, k)[:5] for k in range(10))


def test_a_row_of_several_tasks_is_in_one_split_in_all_of_them():
    stream = Stream.from_arrays(
        torch.rand(60, 4), torch.arange(60) % 3, scenario="domain-incremental", tasks=4
    )
    splits = split(stream, [0, 1], SHARES)
    for part in PARTS:
        for replica in range(2):
            first = rows_of(splits.named(part), replica, 0)
            for task in range(1, 4):
                assert rows_of(splits.named(part), replica, task) == first
    assert rows_of(splits.train, 0, 0) != rows_of(splits.train, 1, 0)


@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [([4] * 10, [6, 2, 2]), ([4] * 13, [8, 2, 3]), ([1, 2, 3, 4, 5, 6, 7, 8, 9, 20], [6, 2, 2])],
)
def test_rows_of_one_trajectory_are_in_one_split_in_all_tasks(lengths, sizes):
    rows, number = sum(lengths), torch.arange(len(lengths))
    trajectory = number.repeat_interleave(torch.tensor(lengths)).repeat(2 * 3)
    stream = own_rows_stream([[rows] * 3] * 2)
    splits = split(replace(stream, trajectory=trajectory), [0, 1], SHARES)
    for replica in range(2):
        parts = []
        for name in PARTS:
            first, *later = (
                set(trajectory[rows_of(splits.named(name), replica, k)].tolist()) for k in range(3)
            )
            assert later == [first, first]
            parts.append(first)
        assert [len(part) for part in parts] == sizes
        assert set.union(*parts) == set(number.tolist())
        assert sum(len(rows_of(splits.named(name), replica, 0)) for name in PARTS) == rows
    far = split(replace(stream, trajectory=10**12 * (trajectory - 1)), [0, 1], SHARES)
    assert torch.equal(far.train.row, splits.train.row)  # whatever numbers name the trajectories
    fewer = split(replace(stream, trajectory=trajectory), [0, 1], SHARES, 0.3)
    for replica in range(2):
        for k in range(3):
            kept, held = (rows_of(fewer.named(name), replica, k) for name in ("train", "test"))
            assert len(kept) + len(held) == len(rows_of(splits.train, replica, k))
            numbers = [set(trajectory[part].tolist()) for part in (kept, held)]
            assert not numbers[0] & numbers[1]
            assert len(numbers[0]) == math.floor(0.7 * sizes[0])


def test_a_row_or_trajectory_that_would_be_in_two_splits_is_refused():
    stream = own_rows_stream([[40, 40]])
    trajectory = torch.cat([torch.arange(40) // 4, torch.arange(40) // 4 + 5])
    with pytest.raises(DataError, match="A trajectory must be in the same split in all its tasks"):
        split(replace(stream, trajectory=trajectory), [0], SHARES)
    with pytest.raises(DataError, match=r"needs a trajectory to train.*has 2, of 3 at least"):
        split(replace(stream, trajectory=torch.arange(80) % 2), [0], SHARES)
    row = torch.cat([torch.arange(40), torch.arange(20, 60)])[None]
    with pytest.raises(DataError, match=r"A row must .*; row \d+ of .* the same rows"):
        split(replace(stream, row=row, repeats=True), [0], SHARES)


@pytest.mark.parametrize("trajectories", [False, True])
def test_no_row_is_learned_in_one_task_and_held_out_in_another(trajectories):
    stream = own_rows_stream([[40] * 3])
    point = torch.arange(120) % 40
    if trajectories:
        stream = replace(stream, trajectory=point)
    else:
        stream = replace(stream, row=point[None], repeats=True)
    splits = split(replace(stream, blur=0.3), [0, 1], SHARES, 0.25)
    for replica in range(2):
        parts = [set(point[splits.named(name).row[replica]].tolist()) for name in PARTS]
        assert sum(map(len, parts)) == len(set.union(*parts)) == 32  # the 8 test rows are not used
        assert splits.train.task[replica].diff().min() < 0  # some rows come in another task


def test_blurred_boundaries_move_the_asked_share_to_the_neighbours():
    y = torch.arange(400) // 100
    stream = Stream.from_arrays(torch.zeros(400, 1), y, blur=0.25)
    sharp = split(Stream.from_arrays(torch.zeros(400, 1), y), [0, 3], SHARES)
    splits = split(stream, [0, 3], SHARES)
    for part in ("train", "validation"):
        n = 60 if part == "train" else 20
        moved = n // 4
        back = moved // 2
        on = moved - back
        for replica in range(2):
            rows, before = splits.named(part), sharp.named(part)
            counts = [
                rows.task[replica, a:b].bincount(minlength=4).tolist()
                for a, b in rows.offset[replica].unfold(0, 2, 1).tolist()
            ]
            assert counts == [
                [n - moved, back, 0, 0],
                [moved, n - moved, back, 0],
                [0, on, n - moved, moved],
                [0, 0, on, n - moved],
            ]
            assert sorted(rows.row[replica].tolist()) == sorted(before.row[replica].tolist())
            assert torch.equal(stream.y[rows.row[replica]], rows.task[replica])
    assert all(torch.equal(a, b) for a, b in zip(splits.test, sharp.test, strict=True))
