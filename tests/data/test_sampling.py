"""Draws come from where they say, and are functions of seed, task, phase and step alone."""

from itertools import pairwise

import pytest
import torch

from conftest import memory_of, tiny_stream
from dpmcl.core import keys
from dpmcl.core.tree import leaves
from dpmcl.data.motion import Motion
from dpmcl.data.sampling import Chunk, Draw, chunk, probe
from dpmcl.data.splits import split

SEEDS = tuple(range(10))
DRAWS = {
    "new": Draw("new", 4),
    "all": Draw("all", 16),
    "past": Draw("memory", 5),
    "inner": Draw("new", 4, block=3),
    "past block": Draw("memory", 2, block=6),
    "valid": Draw("new", 8, split="validation"),
    "valid all": Draw("all", 8, split="validation"),
    "valid past": Draw("memory", 8, split="validation"),
}


@pytest.fixture(scope="module")
def stream():
    return tiny_stream()


def drawn(stream, seeds=SEEDS, task=1, phase=0, steps=range(12), draws=DRAWS, update_keys=2):
    splits = split(stream, seeds, (0.6, 0.2, 0.2))
    held = memory_of(splits, seeds, task, capacity=20)
    both = {"train": held, "validation": memory_of(splits, seeds, task, 6, "validation")}
    made = chunk(draws, splits, both, torch.tensor(seeds), (task, phase), steps, update_keys)
    return made, splits, both


def rows_of(part, replica, tasks):
    first, last = part.offset[replica, tasks.start], part.offset[replica, tasks.stop]
    return set(part.row[replica, first:last].tolist())


@pytest.mark.parametrize("task", [0, 1, 2])
def test_new_rows_are_the_new_tasks_training_rows(stream, task):
    made, splits, _ = drawn(stream, task=task, steps=range(40))
    for replica in range(len(SEEDS)):
        expected = rows_of(splits.train, replica, range(task, task + 1))
        assert set(made.row["inner"][replica].flatten().tolist()) == expected
        assert set(made.row["new"][replica].flatten().tolist()) <= expected
    assert made.present["new"].all()
    assert (made.task["new"] == task).all()


@pytest.mark.parametrize("task", [0, 1, 2])
def test_all_rows_are_those_of_the_tasks_seen(stream, task):
    made, splits, _ = drawn(stream, task=task, steps=range(60))
    for replica in range(len(SEEDS)):
        expected = rows_of(splits.train, replica, range(task + 1))
        assert set(made.row["all"][replica].flatten().tolist()) == expected
    assert made.task["all"].unique().tolist() == list(range(task + 1))


def test_memory_rows_are_those_that_were_stored(stream):
    made, splits, held = drawn(stream, task=2, steps=range(60))
    for replica in range(len(SEEDS)):
        for name, which in (("past", "train"), ("valid past", "validation")):
            position = held[which].position[replica]
            stored = splits.named(which).row[replica, position].tolist()
            assert set(made.row[name][replica].flatten().tolist()) == set(stored)
    for name in ("past", "valid past"):
        assert made.present[name].all()
        assert (made.task[name] < 2).all()


def test_an_empty_memory_gives_absent_rows_that_exist(stream):
    made, _, _ = drawn(stream, task=0)
    for name in ("past", "past block", "valid past"):
        assert not made.present[name].any()
        assert int(made.row[name].min()) >= 0
        assert int(made.row[name].max()) < len(stream.x)
    assert (made.batches(stream, torch.float64, 0, 0)["past"].w == 0).all()


def test_validation_rows_are_validation_rows(stream):
    made, splits, _ = drawn(stream, task=1, steps=range(60))
    for replica in range(len(SEEDS)):
        new = rows_of(splits.validation, replica, range(1, 2))
        seen = rows_of(splits.validation, replica, range(2))
        assert set(made.row["valid"][replica].flatten().tolist()) == new
        assert set(made.row["valid all"][replica].flatten().tolist()) == seen
        assert not seen & rows_of(splits.train, replica, range(3))


def test_the_shapes_are_the_draws(stream):
    made, _, _ = drawn(stream)
    shapes = {
        "new": (10, 12, 4),
        "all": (10, 12, 16),
        "past": (10, 12, 5),
        "inner": (10, 12, 3, 4),
        "past block": (10, 12, 6, 2),
        "valid": (10, 12, 8),
        "valid all": (10, 12, 8),
        "valid past": (10, 12, 8),
    }
    for field in (made.row, made.present, made.task):
        assert {name: tuple(value.shape) for name, value in field.items()} == shapes
    assert made.key.shape == (10, 12, 2, 2)
    assert made.steps == 12


def test_a_block_of_one_has_a_dimension_of_its_own(stream):
    draws = {"inner": Draw("new", 4, block=1)}
    assert drawn(stream, draws=draws)[0].row["inner"].shape == (10, 12, 1, 4)


def test_the_tasks_are_those_of_the_rows(stream):
    made, _, _ = drawn(stream, task=2)
    for name, row in made.row.items():
        assert torch.equal(made.task[name], stream.y[row] // 2), name


@pytest.mark.parametrize("cuts", [[0, 12], [0, 5, 12], [0, 1, 2, 11, 12]])
def test_chunks_together_are_the_whole_phase(stream, cuts):
    whole, _, _ = drawn(stream)
    parts = [drawn(stream, steps=range(a, b))[0] for a, b in pairwise(cuts)]
    assert torch.equal(torch.cat([part.key for part in parts], 1), whole.key)
    for field in ("row", "present", "task"):
        for name, value in getattr(whole, field).items():
            joined = torch.cat([getattr(part, field)[name] for part in parts], 1)
            assert torch.equal(joined, value)


@pytest.mark.parametrize("seed", [0, 7])
def test_a_seed_draws_the_same_alone_and_among_ten(stream, seed):
    among, _, _ = drawn(stream)
    alone, _, _ = drawn(stream, seeds=(seed,))
    for many, one in zip(leaves(tuple(among)), leaves(tuple(alone)), strict=True):
        assert torch.equal(many[seed], one[0])


def test_seeds_tasks_phases_and_steps_draw_apart(stream):
    base, _, _ = drawn(stream)
    other_phase, _, _ = drawn(stream, phase=1)
    other_task, _, _ = drawn(stream, task=2)
    assert not torch.equal(base.row["new"][0], base.row["new"][1])
    assert not torch.equal(base.row["new"][:, 0], base.row["new"][:, 1])
    assert not torch.equal(base.row["new"], other_phase.row["new"])
    found = torch.cat([made.key.flatten(0, -2) for made in (base, other_phase, other_task)])
    assert len(found.unique(dim=0)) == len(found) == 3 * 10 * 12 * 2


def test_two_draws_of_one_update_differ(stream):
    made, _, _ = drawn(stream, draws={"first": Draw("new", 16), "second": Draw("new", 16)})
    assert not torch.equal(made.row["first"], made.row["second"])


@pytest.mark.parametrize("replica", [3, slice(None)])
def test_batches_hold_the_rows_drawn(stream, replica):
    made, _, _ = drawn(stream, task=2)
    batches = made.batches(stream, torch.float32, 4, replica)
    assert list(batches) == list(DRAWS)
    for name, batch in batches.items():
        row = made.row[name][replica, 4]
        assert batch.x.dtype == batch.w.dtype == torch.float32
        assert torch.equal(batch.x, stream.x[row].float())
        assert torch.equal(batch.y, stream.y[row])
        assert torch.equal(batch.task, stream.y[row] // 2)
        assert (batch.w == 1).all()


def test_a_phase_without_draws_still_has_keys(stream):
    made, _, _ = drawn(stream, draws={})
    assert isinstance(made, Chunk)
    assert (made.steps, made.row) == (12, {})


def test_an_update_that_is_watched_has_keys_of_its_own(stream):
    splits, seed = split(stream, SEEDS, (0.6, 0.2, 0.2)), torch.tensor(SEEDS)
    looked = probe(DRAWS, splits, drawn(stream)[2], seed, (1, 0), 7, Motion(None, None, None))
    rows = keys.derive(seed[:, None], keys.Purpose.PROBE, 1, 0, step=torch.tensor([7]))
    found = torch.cat([looked.key[:, :, 0], rows, drawn(stream)[0].key[:, 7]], 1)
    assert len(found.flatten(0, 1).unique(dim=0)) == len(SEEDS) * 4
