"""Scaling: each replica's first training rows decide it, and nothing of what comes later."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import dpmcl
from conftest import SHARES, rows_of, tiny_stream
from dpmcl.data.labelled import Labelled
from dpmcl.data.scaling import check_digits, fit_scale
from dpmcl.data.scenario import ScenarioSettings
from dpmcl.data.splits import Splits, split
from dpmcl.data.stream import LIMIT, Stream
from dpmcl.exceptions import DataError

SEEDS = (0, 1, 5)
ROWS, TASKS = 40, 3  # a task
SCALED = torch.tensor([True, False, True, True])


def labelled(kind: str = "classification", outputs: int = 2, **changes) -> Labelled:
    """A table of four columns: two of any scale, one of 0 and 1 that is not scaled, a constant."""
    generator = torch.Generator().manual_seed(3)
    n = ROWS * TASKS
    task = torch.arange(TASKS).repeat_interleave(ROWS)
    x = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    x = x * torch.tensor([2.0, 1.0, 1e-3, 1.0]) + torch.tensor([100.0, 0.0, -5.0, 0.0])
    x = x + task[:, None] * torch.tensor([1.0, 0.0, 1e-3, 0.0])
    x[:, 1], x[:, 3] = (x[:, 1] > 0).double(), 0.1
    fields = {"x": x.float(), "task": task, "tasks": ("s", "t", "u"), "scaled": SCALED}
    if kind == "classification":
        fields |= {"y": torch.arange(n) % 2, "classes": ("a", "b")}
    else:
        y = torch.randn(n, outputs, generator=generator) * 7 + 30 + 5 * task[:, None]
        fields |= {"y": y}
    return Labelled("table", kind, **{**fields, **changes})


def made(
    data: Labelled | None = None, seeds: tuple[int, ...] = SEEDS, **scenario
) -> tuple[Stream, Splits]:
    """The fitted stream and its splits."""
    stream = Stream.of(data or labelled(), ScenarioSettings(**scenario))
    splits = split(stream, seeds, SHARES)
    return fit_scale(stream, splits), splits


def fitted(stream: Stream, seeds: tuple[int, ...] = (0,)) -> Stream:
    return fit_scale(stream, split(stream, seeds, SHARES))


def batch(stream: Stream, row: torch.Tensor, replica: int | slice = slice(None)):
    present, task = torch.ones_like(row, dtype=torch.bool), torch.zeros_like(row)
    return stream.batch(row, present, task, torch.float64, replica=replica)


# what is fitted


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_means_and_deviations_are_numpys_on_the_first_training_rows(kind):
    stream, splits = made(labelled(kind))
    scale = stream.scale
    assert scale.x_mean.shape == scale.x_deviation.shape == (len(SEEDS), 4)
    assert (scale.x_deviation[:, 3] == 1).all()  # a constant column is only shifted
    for replica in range(len(SEEDS)):
        rows = rows_of(splits.train, replica, 0)
        assert len(rows) == 24
        delivered = batch(stream, torch.tensor(rows), replica)
        checked = [(stream.x, scale.x_mean, scale.x_deviation, [0, 2], delivered.x)]
        if kind == "regression":
            checked.append((stream.y, scale.y_mean, scale.y_deviation, [0, 1], delivered.y))
        for pool, mean, deviation, columns, seen in checked:
            raw = pool.numpy().astype(np.float64)[rows]
            np.testing.assert_allclose(mean[replica], raw.mean(0), rtol=1e-12)
            np.testing.assert_allclose(deviation[replica, columns], raw.std(0)[columns], rtol=1e-9)
            assert seen[:, columns].mean(0).abs().max() < 1e-6
            assert (seen[:, columns].std(0, correction=0) - 1).abs().max() < 1e-6


def test_a_seed_has_a_scale_of_its_own_alone_and_among_others():
    among, _ = made(labelled("regression"))
    alone, _ = made(labelled("regression"), seeds=(5,))
    assert len(among.scale.x_mean[:, 0].unique()) == len(SEEDS)
    for many, one in zip(among.scale, alone.scale, strict=True):
        assert torch.equal(many[2], one[0])


def test_the_pool_and_the_streams_fingerprint_stay():
    for unscaled in (tiny_stream(), Stream.of(labelled(scaled=None))):
        assert fitted(unscaled) is unscaled
    before = Stream.of(labelled("regression"))
    after = fitted(before)
    assert after.x is before.x
    assert after.y is before.y
    assert replace(after, scale=None).digest() == before.digest() != after.digest()
    moved = after.to(torch.device("meta"))
    assert {leaf.device.type for leaf in (*moved.scale, moved.scaled)} == {"meta"}


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_what_is_not_trained_on_first_changes_nothing(kind):
    data = labelled(kind)
    stream, splits = made(data)
    used = {row for replica in range(len(SEEDS)) for row in rows_of(splits.train, replica, 0)}
    unused = torch.tensor([row not in used for row in range(ROWS * TASKS)])
    assert (unused & (data.task == 0)).any()  # validation and test rows of the first task too
    x, y = data.x.clone(), data.y.clone()
    x[unused] = x[unused] * 1e4 - 77
    if kind == "regression":
        y[unused] = y[unused] * 1e4 - 77
    changed, _ = made(replace(data, x=x, y=y))
    for before, after in zip(stream.scale, changed.scale, strict=True):
        assert torch.equal(before, after)
    x[rows_of(splits.train, 0, 0)[0]] += 1
    moved, _ = made(replace(data, x=x, y=y))
    assert not torch.equal(stream.scale.x_mean, moved.scale.x_mean)


# what a batch is


@pytest.mark.parametrize("value", [0.0, 0.1, -1e6, 1e30])
def test_constants_of_any_size_are_only_shifted(value):
    x = labelled().x.clone()
    x[:, 3] = value
    x[ROWS:, 3] += 2.5
    stream, splits = made(labelled(x=x))
    delivered = batch(stream, splits.train.row).x[..., 3]
    near = 1e-6 * max(1.0, abs(value))
    assert delivered[splits.train.task == 0].abs().max() <= near
    later = delivered[splits.train.task > 0]
    torch.testing.assert_close(later, torch.full_like(later, float(x[-1, 3]) - value), atol=near,
        rtol=0)  # fmt: skip


def test_inputs_are_limited_at_ten_deviations_and_targets_are_not():
    data = labelled("regression")
    stream, _ = made(data, seeds=(0,))
    x, y = data.x.double(), data.y.clone()
    x[ROWS], x[ROWS + 1] = 1e6, -1e6
    x[ROWS + 2] = stream.scale.x_mean[0] + 9.5 * stream.scale.x_deviation[0]
    y[ROWS] = 1e6
    delivered = batch(replace(stream, x=x, y=y), torch.tensor([[ROWS, ROWS + 1, ROWS + 2]]))
    assert LIMIT == 10
    for column in (0, 2, 3):
        torch.testing.assert_close(
            delivered.x[0, :, column], torch.tensor([10.0, -10.0, 9.5], dtype=torch.float64)
        )
    assert delivered.x[0, :2, 1].tolist() == [1e6, -1e6]  # this column is not scaled
    expected = (1e6 - stream.scale.y_mean[0]) / stream.scale.y_deviation[0]
    assert expected.min() > 1e4
    torch.testing.assert_close(delivered.y[0, 0], expected)


def test_a_byte_pool_is_scaled_as_its_batches_are():
    x = (labelled().x * 0 + torch.arange(120)[:, None] * 2).to(torch.uint8)
    stream, splits = made(labelled(x=x))
    for replica in range(len(SEEDS)):
        column = batch(stream, torch.tensor(rows_of(splits.train, replica, 0)), replica).x[:, 0]
        assert column.mean().abs() < 1e-6
        assert (column.std(correction=0) - 1).abs() < 1e-6


def test_a_view_comes_after_the_scale():
    """The first task sees its own rows; the scale belongs to columns, not to their new places."""
    data = replace(labelled(), task=None, tasks=())
    stream, _ = made(data, scenario="domain-incremental", tasks=3)
    row = torch.arange(5).repeat(3, 1)
    present = torch.ones_like(row, dtype=torch.bool)
    plain = replace(stream, view=None).batch(row, present, row * 0, torch.float64).x
    for task in range(3):
        seen = stream.batch(row, present, torch.full_like(row, task), torch.float64).x
        assert torch.equal(seen, plain[..., stream.view.source[task, :, 0]])


# numbers that float32 rounds

ONE = {"scenario": "instance-incremental", "tasks": 1}
KIND = np.arange(60) % 2
NEAR = np.random.default_rng(0).normal(size=60)
FAR = 1.7e9 + 40 * KIND + 5 * NEAR


def column(values, **scenario) -> Stream:
    """A table of one column that tells two classes."""
    return Stream.from_table({"t": values, "kind": KIND}, target="kind", **(scenario or ONE))


@pytest.mark.parametrize("offset", [2.0**24, 1e12])
def test_an_offset_changes_nothing_where_numbers_are_scaled(offset):
    targets = (
        Stream.from_table({"a": NEAR, "y": o + 3 * NEAR}, target="y", **ONE) for o in (0, offset)
    )
    first, second = (fitted(s, SEEDS) for s in targets)
    every = torch.arange(60).repeat(3, 1)
    torch.testing.assert_close(batch(first, every).y, batch(second, every).y, atol=1e-4, rtol=0)
    near, far = (column(o + 40 * KIND + 5 * NEAR) for o in (0, offset))
    assert (near.x.dtype, far.x.dtype) == (torch.float32, torch.float64)
    splits = split(near, SEEDS, SHARES)
    row = splits.train.row
    x, moved = (batch(fit_scale(s, splits), row).x for s in (near, far))
    torch.testing.assert_close(x, moved, atol=1e-4, rtol=0)
    assert moved.std(1, correction=0).allclose(torch.ones(1, dtype=torch.float64))


def test_times_keep_their_differences():
    start, step = 1_700_000_000_000_000_000, 4_000_000  # nanoseconds
    stream = column(start + step * np.arange(60) + KIND)
    assert len(stream.x.unique()) == 60
    times = batch(fitted(stream), torch.arange(60)[None]).x.flatten()
    assert times.diff().max() / times.diff().min() < 1.001
    with pytest.raises(DataError, match=r"float64 can tell apart.*subtract an offset"):
        column(start + 3 * np.arange(60))
    # In a column of fifty years, the first task is a minute.
    times = np.where(np.arange(60) < 30, np.arange(60) * 2, np.arange(60) * 3e7)
    stream = Stream.from_table({"t": 1e8 + times, "y": KIND, "p": np.arange(60) // 30}, target="y",
        task="p")  # fmt: skip
    first = batch(fitted(stream), torch.arange(30)[None]).x
    assert len(first.unique()) == 30
    # A deviation far below the mean is no constant; numbers that differ by rounding alone are.
    for values, deviation in ((1.7e9 + KIND, 0.5), (np.where(KIND == 0, 0.1 + 0.2, 0.3), 1)):
        assert fitted(column(values)).scale.x_deviation.item() == pytest.approx(deviation)


def test_numbers_of_few_digits_stay_float32():
    for values in (NEAR, np.round(293.15 + NEAR, 2), KIND * 1e9, 0.1 + 0 * NEAR, np.arange(60)):
        assert column(values).x.dtype == torch.float32
    # Numbers that differ by rounding alone are taken for constant.
    x = np.c_[NEAR, np.where(KIND == 0, 0.1 + 0.2, 0.3)]
    check_digits(Stream.from_arrays(x, KIND, **ONE), torch.float32)
    # Different in float32, but moved by a third of the gap between them.
    assert column(1e6 + 0.1 * np.arange(60)).x.dtype == torch.float64


@pytest.mark.parametrize(
    "make",
    [
        lambda: Stream.from_arrays(FAR[:, None], KIND, **ONE),
        lambda: Stream.from_arrays(NEAR[:, None] * 1e39, KIND, **ONE),
        lambda: Stream.from_arrays(NEAR[:, None] * 0 + 1e39, KIND, **ONE),
        lambda: Stream.from_arrays(NEAR[:, None], FAR.astype(int), kind="regression", **ONE),
        lambda: Stream.from_table({"t": FAR, "k": KIND}, target="k", scale=False, **ONE),
        lambda: Stream.from_dataset([(t[None], k) for t, k in zip(FAR, KIND, strict=True)], **ONE),
    ],
    ids=["floats", "beyond float32", "a constant", "whole targets", "table", "items"],
)
def test_what_float32_cannot_tell_apart_is_refused_unless_it_is_scaled(make):
    stream = make()
    with pytest.raises(DataError, match=r"float32 cannot (tell apart|hold).*'float64'"):
        check_digits(stream, torch.float32)
    check_digits(stream, torch.float64)
    with pytest.raises(DataError, match="float32 cannot"):
        dpmcl.run(stream, methods=["er"], replicas=1)


def test_a_gap_filled_with_0_does_not_hide_that_digits_are_lost(log_lines):
    """Times of today are moved by up to a minute, and the 0 widens their range to 54 years."""
    filled = np.where(np.arange(len(FAR)) == 7, 0.0, FAR)
    for values, warned in ((filled, True), (filled - FAR[0], False), (NEAR * (NEAR > 1), False)):
        log_lines.clear()
        check_digits(Stream.from_arrays(values[:, None], KIND, **ONE), torch.float32)
        assert ["float32 cannot tell apart" in line for line in log_lines] == [True] * warned
