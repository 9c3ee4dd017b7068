"""Draws come from where they say, and are functions of seed, task, phase and step alone."""

from itertools import pairwise

import pytest
import torch

from conftest import own_rows_stream, rows_of, supply_of, tiny_stream
from dpmcl.core import keys
from dpmcl.core.tree import leaves
from dpmcl.data.sampling import Draw, Weighing, draw_rows

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
    "pass": Draw("new", 5, replace=False),
    "past pass": Draw("memory", 3, block=1, replace=False),
}


@pytest.fixture(scope="module")
def stream():
    return tiny_stream()


def drawn(stream, seeds=SEEDS, task=1, phase=0, steps=range(12), draws=DRAWS, weighing=None):
    supply = supply_of(stream, seeds, task, train=20, validation=6)._replace(weighing=weighing)
    return draw_rows(draws, supply, (task, phase), steps, update_keys=2), supply


@pytest.mark.parametrize("task", [0, 1, 2])
def test_rows_come_from_where_the_draw_says(stream, task):
    made, supply = drawn(stream, task=task, steps=range(60))
    for replica in range(len(SEEDS)):
        expected = {}
        for kind, names in (
            ("train", ("inner", "all", "past block")),
            ("validation", ("valid", "valid all", "valid past")),
        ):
            part, held = supply.splits.named(kind), supply.held[kind]
            stored = part.row[replica, held.position[replica]].tolist() if task else []
            seen = [{*rows_of(part, replica, k)} for k in range(task + 1)]
            sets = (seen[-1], set.union(*seen), set(stored))
            expected |= dict(zip(names, sets, strict=True))
        for name, rows in expected.items():
            present = made.present[name][replica]
            assert set(made.row[name][replica][present].tolist()) == rows, name
            assert bool(present.all()) == bool(present.any()) == bool(rows)
    for name, row in made.row.items():  # those of an empty memory exist too
        assert torch.equal(made.task[name], stream.y[row] // 2), name
        assert int(row.min()) >= 0
    assert not made.notes
    assert not made.position


WITH_REPLACEMENT = {name: draw for name, draw in DRAWS.items() if draw.replace}
GAMMA = torch.tensor([0.2, 0.5, 1.0], dtype=torch.float64)
each_weighing = pytest.mark.parametrize(
    "options",
    [
        {},
        {"weighing": Weighing(GAMMA, "weights")},
        {"weighing": Weighing(GAMMA, "sampling"), "draws": WITH_REPLACEMENT},
    ],
    ids=["plain", "weights", "sampling"],
)


@each_weighing
def test_segments_together_are_the_whole_phase(stream, options):
    whole, _ = drawn(stream, **options)
    for name, row in whole.row.items():
        draw = DRAWS[name]
        blocks = () if draw.block is None else (draw.block,)
        assert row.shape == (10, 12, *blocks, draw.batch)
    cuts = pairwise([0, 1, 2, 11, 12])
    parts = [drawn(stream, steps=range(a, b), **options)[0] for a, b in cuts]
    for value, *cut in zip(*(leaves(tuple(made)) for made in (whole, *parts)), strict=True):
        assert torch.equal(torch.cat(cut, 1), value)


@each_weighing
def test_a_seed_draws_the_same_alone_and_among_others(stream, options):
    among, _ = drawn(stream, **options)
    for seed in (0, 7):
        alone, _ = drawn(stream, seeds=(seed,), **options)
        for many, one in zip(leaves(tuple(among)), leaves(tuple(alone)), strict=True):
            assert torch.equal(many[seed], one[0])


def test_the_length_of_a_pass_does_not_depend_on_the_replicas_beside_it():
    unlike = own_rows_stream([[15, 30], [30, 15]])
    draws = {
        "pass": Draw("new", 4, replace=False),
        "once": Draw("new", 4, replace=False, once=True),
    }
    both, _ = drawn(unlike, seeds=(0, 1), task=0, draws=draws, steps=range(20))
    count = [both.row["pass"][r][both.present["pass"][r]].unique().numel() for r in (0, 1)]
    assert count == [9, 18]
    assert both.present["pass"][0, :3].sum() == both.present["pass"][0, 3:6].sum() == 9
    assert both.present["once"].sum((1, 2)).tolist() == [9, 18]
    once = [both.row["once"][r][both.present["once"][r]].unique().numel() for r in (0, 1)]
    assert once == [9, 18]


def test_seeds_tasks_phases_steps_and_draws_draw_apart(stream):
    base, _ = drawn(stream)
    other_phase, _ = drawn(stream, phase=1)
    other_task, _ = drawn(stream, task=2)
    for name in ("new", "pass"):
        row = base.row[name]
        assert not torch.equal(row[0], row[1])
        assert not torch.equal(row[:, 0], row[:, 1])
        assert not torch.equal(row, other_phase.row[name])
        twice, _ = drawn(stream, draws={"first": DRAWS[name], "second": DRAWS[name]})
        assert not torch.equal(twice.row["first"], twice.row["second"])
    all_keys = torch.cat([made.key.flatten(0, -2) for made in (base, other_phase, other_task)])
    assert len(all_keys.unique(dim=0)) == len(all_keys) == 3 * 10 * 12 * 2


def test_without_replacement_each_pass_takes_every_row_once_in_another_order(stream):
    """36 rows in batches of 5: eight updates a pass, four rows of the last are absent."""
    made, supply = drawn(stream, steps=range(16), task=2)
    for replica in range(len(SEEDS)):
        passes = []
        for first in (0, 8):
            row = made.row["pass"][replica, first : first + 8].flatten()
            present = made.present["pass"][replica, first : first + 8].flatten()
            assert present.tolist() == [True] * 36 + [False] * 4
            passes.append(row[present].tolist())
        assert sorted(passes[0]) == sorted(passes[1]) != passes[0] != passes[1]
        assert set(passes[0]) == {*rows_of(supply.splits.train, replica, 2)}
        held = supply.splits.train.row[replica, supply.held["train"].position[replica]]
        row, present = made.row["past pass"][replica, :7], made.present["past pass"][replica, :7]
        assert sorted(row[present].tolist()) == sorted(held.tolist())  # of 20 rows, by threes
    empty, _ = drawn(stream, task=0)
    assert not empty.present["past pass"].any()


@pytest.mark.parametrize("replica", [3, slice(None)])
def test_batches_hold_the_rows_drawn_and_their_notes(stream, replica):
    supply = supply_of(stream, SEEDS, 2, train=20, validation=6)
    train = supply.held["train"]
    noted = train._replace(notes={"twice": 2 * train.position[..., None].expand(-1, -1, 3)})
    supply = supply._replace(held={**supply.held, "train": noted})
    made = draw_rows(DRAWS, supply, (2, 0), range(12), remember="new")
    batches = made.batches(stream, torch.float32, 4, replica)
    assert list(batches) == list(DRAWS)
    pool = supply.splits.train.row
    for name, batch in batches.items():
        row = made.row[name][replica, 4]
        assert batch.x.dtype == batch.w.dtype == torch.float32
        assert torch.equal(batch.x, stream.x[row].float())
        assert torch.equal(batch.y, stream.y[row])
        assert torch.equal(batch.task, stream.y[row] // 2)
        assert torch.equal(batch.row, row)
        assert torch.equal(batch.w, made.present[name][replica, 4].float())
        has_notes = DRAWS[name].source == "memory" and DRAWS[name].split == "train"
        assert set(batch.notes) == ({"twice"} if has_notes else set())
        if has_notes and isinstance(replica, int):
            present = batch.w > 0
            position = batch.notes["twice"][..., 0] // 2
            assert torch.equal(pool[replica, position][present], row[present])
    assert list(made.position) == ["new"]
    index = made.position["new"].flatten(1)
    assert torch.equal(pool.gather(1, index).view_as(made.row["new"]), made.row["new"])


def test_an_update_that_is_watched_has_keys_of_its_own(stream):
    made, supply = drawn(stream)
    probed = draw_rows(DRAWS, supply, (1, 0), range(7, 8), purpose=keys.Purpose.PROBE)
    rows = keys.derive(supply.seed[:, None], keys.Purpose.PROBE, 1, 0, step=torch.tensor([7]))
    all_keys = torch.cat([probed.key[:, :, 0], rows, made.key[:, 7]], 1)
    assert len(all_keys.flatten(0, 1).unique(dim=0)) == len(SEEDS) * 4
