"""Where rows go when the next task comes: from means, from dynamics, and into batches."""

from dataclasses import replace

import pytest
import torch

from conftest import SHARES, moving_stream, own_rows_stream, rows_of, tiny_run, tiny_stream
from dpmcl.core.memory import Memory
from dpmcl.core.tree import leaves, stack
from dpmcl.data.motion import ROWS, motion_of
from dpmcl.data.sampling import Draw, Supply, draw_rows
from dpmcl.data.scaling import fit_scale
from dpmcl.data.splits import split
from dpmcl.engine import Batched, Looped
from dpmcl.methods.dpmcl import DPMCL

SEEDS = (4, 5)


def scaled_stream():
    """The moving stream, the first of its two inputs and its targets in units of the first task."""
    stream = replace(moving_stream(), scaled=torch.tensor([True, False]))
    return fit_scale(stream, split(stream, SEEDS, SHARES))


STREAMS = {
    "plain": moving_stream,
    "scaled": scaled_stream,
    "classes": tiny_stream,
    "unlike": lambda: own_rows_stream([[30, 20, 25], [15, 40, 20]]),
    "long": lambda: own_rows_stream([[1000, 900], [1000, 900]]),
}


def means(stream, splits, replica, task):
    """Return the means of x and y over the first training rows of a task, as delivered."""
    row = torch.tensor(rows_of(splits.train, replica, task)[:ROWS])
    batch = stream.batch(row, row >= 0, row * 0 + task, torch.float64, replica=replica)
    return batch.x.mean(0), batch.y.to(torch.float64).mean(0)


@pytest.mark.parametrize("name", STREAMS)
def test_means_move_by_the_difference_of_two_tasks_means(name):
    stream = STREAMS[name]()
    splits = split(stream, SEEDS, SHARES)
    for task in range(len(stream.tasks)):
        motion = motion_of(stream, splits, task, torch.float64)
        assert motion.following is stream.following
        assert bool(motion.x.any()) == (task > 0)
        assert bool(motion.y.any()) == (task > 0 and stream.kind == "regression")
        for replica in range(2):
            now, before = (means(stream, splits, replica, k) for k in (task, max(task - 1, 0)))
            torch.testing.assert_close(motion.x[replica], now[0] - before[0])
            if stream.kind == "regression":
                torch.testing.assert_close(motion.y[replica], now[1] - before[1])


def drawn(stream, moved, *, task, block=None, source="new"):
    """Return four steps of draws, "next" the rows of "rows" once moved; the splits."""
    splits = split(stream, SEEDS, SHARES)
    start = splits.train.offset[:, :1] + torch.arange(20)
    memory = Memory(start, torch.tensor([20, 20]), torch.tensor([20, 20]))
    draws = {
        "other": Draw("new", 3),
        "rows": Draw(source, 6, block=block),
        "next": Draw(source, 6, block=block, like="rows", moved=moved),
    }
    plain = {name: draw for name, draw in draws.items() if name != "next"}
    motion = motion_of(stream, splits, task, torch.float64)
    supply = Supply(splits, {"train": memory}, torch.tensor(SEEDS), motion)
    made, without = (
        draw_rows(draw_set, supply, (task, 0), range(4)) for draw_set in (draws, plain)
    )
    for name in plain:  # a draw that moves leaves the others as they were
        assert torch.equal(made.row[name], without.row[name])
    assert torch.equal(made.key, without.key)
    return made, splits


def delivered(made, stream, step):
    """Yield the batches of a step, replicas first: of all at once, of each, of a cut segment."""
    yield made.batches(stream, torch.float64, step, slice(None))
    by_replica = [made.batches(stream, torch.float64, step, replica) for replica in range(2)]
    yield {name: stack([batches[name] for batches in by_replica]) for name in by_replica[0]}
    yield made.only(step).batches(stream, torch.float64, 0, slice(None))


@pytest.mark.parametrize("name", ["plain", "scaled", "classes"])
@pytest.mark.parametrize("block", [None, 3])
@pytest.mark.parametrize("source", ["new", "memory", "all"])
def test_estimated_rows_are_the_same_rows_moved_by_as_much_as_means(name, block, source):
    stream = STREAMS[name]()
    made, splits = drawn(stream, "estimated", task=2, block=block, source=source)
    assert torch.equal(made.row["rows"], made.row["next"])
    for step in range(made.steps):
        for batches in delivered(made, stream, step):
            rows, then = batches["rows"], batches["next"]
            assert torch.equal(rows.task, then.task)
            assert torch.equal(rows.w, then.w)
            for replica in range(2):
                now, before = (means(stream, splits, replica, k) for k in (2, 1))
                dx, dy = now[0] - before[0], now[1] - before[1]
                dy = dy if stream.kind == "regression" else 0
                assert float(dx.abs().min()) > 1e-3
                torch.testing.assert_close(then.x[replica], rows.x[replica] + dx)
                torch.testing.assert_close(then.y[replica], rows.y[replica] + dy)


@pytest.mark.parametrize("name", ["plain", "scaled"])
@pytest.mark.parametrize("block", [None, 3])
@pytest.mark.parametrize("task", [0, 2])
def test_exact_rows_are_those_that_follow(name, block, task):
    stream = STREAMS[name]()
    made, _ = drawn(stream, "exact", task=task, block=block)
    follows = stream.following[made.row["rows"]]
    assert torch.equal(made.row["next"], follows)
    assert made.shift == {}
    for batches in delivered(made, stream, 1):
        rows, then = batches["rows"], batches["next"]
        expected = stream.batch(follows[:, 1], rows.w > 0, rows.task, torch.float64)
        assert all(torch.equal(a, b) for a, b in zip(then[:5], expected[:5], strict=True))
        assert not torch.allclose(then.x, rows.x)
    # Beyond the last task, the pool has one window more.
    if task == 2:
        assert not set(made.row["next"].flatten().tolist()) & set(stream.row.flatten().tolist())


def trained(stream, engine, **settings):
    """Return DPMCL's parameters after a short run."""
    method = DPMCL(updates=4, batch=5, memory=20, zeta=1, lr=0.05, **settings)
    return leaves(tiny_run(method, SEEDS, engine, stream=stream).theta)


def test_engines_agree_on_the_fourth_term_and_weight_0_is_off():
    stream = scaled_stream()
    off, thetas = trained(stream, Looped()), {}
    for fourth_term in ("exact", "estimated"):
        thetas[fourth_term] = looped = trained(stream, Looped(), fourth_term=fourth_term)
        for engine in (Batched(), Batched(static=True)):
            other = trained(stream, engine, fourth_term=fourth_term)
            torch.testing.assert_close(other, looped, rtol=1e-10, atol=1e-10)
        none = trained(stream, Looped(), fourth_term=fourth_term, fourth_weight=0.0)
        assert all(torch.equal(a, b) for a, b in zip(none, off, strict=True))
    for a, b in ((off, "exact"), (off, "estimated"), (thetas["exact"], "estimated")):
        assert any(not torch.allclose(x, y) for x, y in zip(a, thetas[b], strict=True))
