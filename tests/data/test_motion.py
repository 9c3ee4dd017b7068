"""Where rows go when the next task comes: from means, from dynamics, and into batches."""

from dataclasses import replace

import pytest
import torch

from conftest import moving_stream, own_rows_stream, tiny_model, tiny_stream
from dpmcl.core import memory
from dpmcl.core.memory import Memory
from dpmcl.core.tree import leaves
from dpmcl.data.motion import ROWS, motion_of
from dpmcl.data.sampling import Draw, chunk
from dpmcl.data.scaling import fitted
from dpmcl.data.splits import split
from dpmcl.engine import Batched, Looped
from dpmcl.methods.dpmcl import DPMCL
from dpmcl.training.loop import train

SEEDS = (4, 5)
SHARES = (0.6, 0.2, 0.2)
ENGINES = {"looped": Looped, "batched": Batched, "static": lambda: Batched(static=True)}


def scaled_stream():
    """The moving stream, the first of its two inputs and its targets in units of the first task."""
    stream = replace(moving_stream(), scaled=torch.tensor([True, False]))
    return fitted(stream, split(stream, SEEDS, SHARES))


STREAMS = {"plain": moving_stream, "scaled": scaled_stream}
each_stream = pytest.mark.parametrize("name", STREAMS)


def trained_on(stream, splits, replica, task):
    """x and y of a task's training rows, as the stream delivers them."""
    offset = splits.train.offset[replica]
    row = splits.train.row[replica, offset[task] : offset[task + 1]]
    batch = stream.batch(row, row >= 0, row * 0 + task, torch.float64, replica=replica)
    return batch.x, batch.y


# The stream of these tests


def test_the_moving_stream_goes_where_it_says():
    stream = moving_stream(tasks=3, trajectories=15, samples=2, replicas=2)
    rows = stream.x.view(2, 4, 15, 2, 2)
    assert len(stream.x) == len(stream.y) == len(stream.following) == 2 * 4 * 30
    first = stream.row.view(2, 3, 30)
    assert torch.equal(stream.x[stream.following[first]].view(2, 3, 15, 2, 2), rows[:, 1:])
    assert torch.equal(stream.trajectory[stream.following], stream.trajectory)
    last = torch.arange(240).view(2, 4, 30)[:, -1]
    assert torch.equal(stream.following[last], last)  # the window after the last task stays
    assert not set(last.flatten().tolist()) & set(stream.row.flatten().tolist())
    assert not torch.equal(stream.x[stream.row[0]], stream.x[stream.row[1]])
    # Along a trajectory a point turns by 0.4 about a centre that moves by 0.3.
    centre = torch.tensor([0.3, 0.0]) * torch.arange(4).view(1, 4, 1, 1, 1)
    turn = torch.tensor([[0.4], [0.0]], dtype=torch.float64)
    c, s = turn[0].cos(), turn[0].sin()
    spin = torch.stack([torch.cat([c, -s]), torch.cat([s, c])])
    around = rows - centre
    torch.testing.assert_close(around[:, 1:], around[:, :-1] @ spin.T, rtol=1e-6, atol=1e-6)


def test_a_trajectory_is_in_one_split_whatever_the_task():
    stream = moving_stream()
    splits = split(stream, SEEDS, SHARES)
    for replica in range(2):
        found = [set(stream.trajectory[part.row[replica]].tolist()) for part in splits]
        assert [len(numbers) for numbers in found] == [9, 3, 3]


# Means


@each_stream
def test_means_move_by_the_difference_of_two_tasks_means(name):
    stream = STREAMS[name]()
    splits = split(stream, SEEDS, SHARES)
    for task in range(3):
        found = motion_of(stream, splits, task, torch.float64)
        assert found.x.shape == (2, 2)
        assert found.y.shape == (2, 1)
        for replica in range(2):
            x, y = trained_on(stream, splits, replica, task)
            before_x, before_y = trained_on(stream, splits, replica, max(task - 1, 0))
            torch.testing.assert_close(found.x[replica], x.mean(0) - before_x.mean(0))
            torch.testing.assert_close(found.y[replica], y.mean(0) - before_y.mean(0))
        assert bool(found.x.any()) == bool(found.y.any()) == (task > 0)
        assert found.following is stream.following


def test_replicas_with_unlike_numbers_of_rows_have_their_own_means():
    stream = own_rows_stream([[30, 20, 25], [15, 40, 20]])
    splits = split(stream, SEEDS, SHARES)
    found = motion_of(stream, splits, 2, torch.float64)
    assert found.following is None
    for replica in range(2):
        now, before = (trained_on(stream, splits, replica, k)[0].mean(0) for k in (2, 1))
        torch.testing.assert_close(found.x[replica], now - before)


def test_means_are_of_the_first_rows_of_a_task_so_many_at_most():
    stream = own_rows_stream([[1000, 900], [1000, 900]])
    splits = split(stream, SEEDS, SHARES)
    found = motion_of(stream, splits, 1, torch.float64)
    for replica in range(2):
        pairs = [trained_on(stream, splits, replica, k) for k in (1, 0)]
        assert min(len(x) for x, _ in pairs) > ROWS
        for place, moved in ((0, found.x), (1, found.y)):
            now, before = (pair[place][:ROWS].mean(0) for pair in pairs)
            torch.testing.assert_close(moved[replica], now - before)


def test_classes_do_not_move_and_their_inputs_do():
    stream = tiny_stream()
    splits = split(stream, SEEDS, SHARES)
    found = motion_of(stream, splits, 1, torch.float64)
    assert not found.y.any()
    for replica in range(2):
        now, before = (trained_on(stream, splits, replica, k)[0].mean(0) for k in (1, 0))
        torch.testing.assert_close(found.x[replica], now - before)


# Draws


def drawn(stream, moved, task=1, batch=6, block=None, source="new", steps=range(4)):
    splits = split(stream, SEEDS, SHARES)
    one = memory.empty(20)
    start = splits.train.offset[:, :1] + torch.arange(20)
    held = Memory(start, torch.tensor([20, 20]), torch.tensor([20, 20]))
    assert held.position.shape[1:] == one.position.shape
    draws = {
        "other": Draw("new", 3),
        "rows": Draw(source, batch, block=block),
        "next": Draw(source, batch, block=block, like="rows", moved=moved),
    }
    made = chunk(
        draws,
        splits,
        {"train": held},
        torch.tensor(SEEDS),
        (task, 0),
        steps,
        1,
        motion=motion_of(stream, splits, task, torch.float64),
    )
    return made, splits


def delivered(made, stream, step):
    """The batches of a step three ways, each with replicas first."""
    many = made.batches(stream, torch.float64, step, slice(None))
    one = [made.batches(stream, torch.float64, step, replica) for replica in range(2)]
    apart = {name: type(b)(*map(torch.stack, zip(*(o[name] for o in one), strict=True)))
             for name, b in many.items()}  # fmt: skip
    return [many, apart]


@each_stream
@pytest.mark.parametrize("block", [None, 3])
@pytest.mark.parametrize("source", ["new", "memory", "all"])
def test_estimated_rows_are_the_same_rows_moved_by_what_means_moved(name, block, source):
    stream = STREAMS[name]()
    made, splits = drawn(stream, "estimated", task=2, block=block, source=source)
    for step in range(made.steps):
        for batches in delivered(made, stream, step):
            rows, then = batches["rows"], batches["next"]
            assert torch.equal(rows.task, then.task)
            assert torch.equal(rows.w, then.w)
            for replica in range(2):
                x, y = trained_on(stream, splits, replica, 2)
                before_x, before_y = trained_on(stream, splits, replica, 1)
                dx, dy = x.mean(0) - before_x.mean(0), y.mean(0) - before_y.mean(0)
                torch.testing.assert_close(then.x[replica], rows.x[replica] + dx)
                torch.testing.assert_close(then.y[replica], rows.y[replica] + dy)
                assert float(dx.abs().min()) > 1e-3
    assert torch.equal(made.row["rows"], made.row["next"])


@each_stream
@pytest.mark.parametrize("block", [None, 3])
@pytest.mark.parametrize("task", [0, 2])
def test_exact_rows_are_those_that_follow(name, block, task):
    stream = STREAMS[name]()
    made, _ = drawn(stream, "exact", task=task, block=block)
    assert torch.equal(made.row["next"], stream.following[made.row["rows"]])
    assert not torch.equal(made.row["next"], made.row["rows"])
    assert made.shift == {}
    for batches in delivered(made, stream, 1):
        rows, then = batches["rows"], batches["next"]
        expected = stream.batch(
            stream.following[made.row["rows"][:, 1]], rows.w > 0, rows.task, torch.float64
        )
        for a, b in zip(then, expected, strict=True):
            assert torch.equal(a, b)
        assert not torch.allclose(then.x, rows.x)
    # Beyond the last task lies the window that the pool has more.
    if task == 2:
        assert not set(made.row["next"].flatten().tolist()) & set(stream.row.flatten().tolist())


def test_estimated_inputs_of_classes_move_and_classes_stay():
    stream = tiny_stream()
    made, splits = drawn(stream, "estimated", source="new")
    for batches in delivered(made, stream, 0):
        assert torch.equal(batches["next"].y, batches["rows"].y)
        motion = motion_of(stream, splits, 1, torch.float64)
        expected = batches["rows"].x + motion.x[:, None]
        torch.testing.assert_close(batches["next"].x, expected)


def test_a_moved_draw_leaves_the_others_as_they_were():
    stream = moving_stream()
    splits = split(stream, SEEDS, SHARES)
    held = {"train": Memory(*(torch.stack([leaf] * 2) for leaf in memory.empty(4)))}
    seed, motion = torch.tensor(SEEDS), motion_of(stream, splits, 1, torch.float64)
    draws = {"new": Draw("new", 5), "past": Draw("all", 5)}
    moved = {**draws, "next": Draw("new", 5, like="new", moved="exact")}
    plain = chunk(draws, splits, held, seed, (1, 0), range(5), 2)
    more = chunk(moved, splits, held, seed, (1, 0), range(5), 2, motion=motion)
    for name in draws:
        assert torch.equal(plain.row[name], more.row[name])
    assert torch.equal(plain.key, more.key)


def test_one_step_of_a_chunk_keeps_its_shift():
    stream = moving_stream()
    made, _ = drawn(stream, "estimated")
    only = made.only(2)
    for (a, b), (c, d) in zip(made.shift.values(), only.shift.values(), strict=True):
        assert torch.equal(a[:, 2:3], c)
        assert torch.equal(b[:, 2:3], d)
    for a, b in zip(delivered(made, stream, 2), delivered(only, stream, 0), strict=True):
        assert all(torch.equal(x, y) for x, y in zip(leaves(a), leaves(b), strict=True))


# In runs


def run(stream, engine, **settings):
    method = DPMCL(updates=4, batch=5, memory=20, zeta=1, lr=0.05, **settings)
    splits = split(stream, SEEDS, SHARES)
    return train(method, tiny_model(stream), stream, splits, SEEDS, engine)


@each_stream
@pytest.mark.parametrize("fourth_term", ["exact", "estimated"])
def test_engines_agree_on_the_fourth_term(name, fourth_term):
    stream = STREAMS[name]()
    found = {
        engine: run(stream, make(), fourth_term=fourth_term).theta
        for engine, make in ENGINES.items()
    }
    for other in ("batched", "static"):
        for a, b in zip(leaves(found["looped"]), leaves(found[other]), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    off = run(stream, Looped()).theta
    pairs = zip(leaves(found["looped"]), leaves(off), strict=True)
    assert any(not torch.allclose(a, b) for a, b in pairs)


def test_a_fourth_term_of_weight_0_changes_nothing():
    stream = moving_stream()
    off = run(stream, Looped()).theta
    for fourth_term in ("exact", "estimated"):
        none = run(stream, Looped(), fourth_term=fourth_term, fourth_weight=0.0).theta
        for a, b in zip(leaves(off), leaves(none), strict=True):
            assert torch.equal(a, b)


def test_exact_and_estimated_are_not_the_same():
    stream = moving_stream()
    exact, estimated = (
        leaves(run(stream, Looped(), fourth_term=how).theta) for how in ("exact", "estimated")
    )
    assert any(not torch.allclose(a, b) for a, b in zip(exact, estimated, strict=True))
