"""The memory is bounded, holds what its policy says, and never points outside."""

import pytest
import torch

from dpmcl.core import keys, memory
from dpmcl.core.keys import Purpose
from dpmcl.core.memory import Memory

POLICIES = ["reservoir", "resample"]


def key_of(task: int, seed: int = 0) -> torch.Tensor:
    return keys.derive(seed, Purpose.MEMORY, task)


def offer(held: Memory, start: int, count: int, width: int, task: int, policy: str, seed=0):
    start, count = torch.tensor(start), torch.tensor(count)
    return memory.add(held, start, count, width, key_of(task, seed), policy)


def held_rows(held: Memory) -> list[int]:
    return held.position[: int(held.filled)].tolist()


def after_blocks(capacity: int, counts: list[int], width: int, policy: str, seed: int = 0):
    held, start = memory.empty(capacity), 0
    for task, count in enumerate(counts):
        held = offer(held, start, count, width, task, policy, seed)
        start += count
    return held


def many_after_blocks(replicas: int, capacity: int, counts: list[int], policy: str) -> Memory:
    """The memories of many seeds, under vmap."""
    seeds = torch.arange(replicas)
    held = Memory(*(leaf.expand(replicas, *leaf.shape) for leaf in memory.empty(capacity)))
    start = 0
    for task, count in enumerate(counts):

        def add(one, key, start=start, count=count):
            args = torch.tensor(start), torch.tensor(count), max(counts), key, policy
            return memory.add(one, *args)

        held = torch.func.vmap(add)(held, keys.derive(seeds, Purpose.MEMORY, task))
        start += count
    return held


def inclusion_chi_square(held: Memory, rows: torch.Tensor) -> tuple[float, int]:
    """Of how often each of some rows is held, against all equally often; degrees of freedom."""
    counts = torch.stack([(held.position == row).sum() for row in rows]).double()
    replicas, n = len(held.position), len(rows)
    p = counts.sum() / (replicas * n)
    statistic = ((counts - replicas * p) ** 2).sum() / (replicas * p * (1 - p)) * (n - 1) / n
    return float(statistic), n - 1


def sequential_reservoir(capacity: int, counts: list[int], width: int, seed: int) -> list[int]:
    """Vitter's algorithm R in plain Python: one row after another, with the same words."""
    held: list[int] = []
    row = 0
    for task, count in enumerate(counts):
        words = keys.bits(key_of(task, seed), width).tolist()
        for word in words[:count]:
            if row < capacity:
                held.append(row)
            else:
                slot = word * (row + 1) >> 32
                if slot < capacity:
                    held[slot] = row
            row += 1
    return held


@pytest.mark.parametrize(
    ("capacity", "counts", "width"),
    [
        (5, [20], 20),
        (5, [7, 9, 11], 11),
        (5, [7, 9, 11], 16),
        (10, [3, 3, 3, 3, 3], 3),
        (1, [4, 4, 4], 4),
        (50, [10, 10], 10),
        (10, [10, 1, 0, 25], 25),
    ],
)
def test_reservoir_is_algorithm_r_row_by_row(capacity, counts, width):
    for seed in range(10):
        held = after_blocks(capacity, counts, width, "reservoir", seed)
        assert held_rows(held) == sequential_reservoir(capacity, counts, width, seed)


@pytest.mark.parametrize("capacity", [1, 5])
def test_reservoir_holds_every_row_equally_often(capacity):
    counts = [8, 12, 4, 6]
    held = many_after_blocks(4000, capacity, counts, "reservoir")
    statistic, freedom = inclusion_chi_square(held, torch.arange(sum(counts)))
    assert statistic < freedom + 4 * (2 * freedom) ** 0.5
    assert int(held.filled.min()) == capacity


def test_resample_keeps_all_while_there_is_room():
    held = after_blocks(12, [4, 3, 5], 6, "resample")
    assert held_rows(held) == list(range(12))


@pytest.mark.parametrize("seed", range(5))
def test_resample_keeps_some_of_the_old_and_the_new_once_full(seed):
    before = after_blocks(10, [8], 8, "resample", seed)
    after = offer(before, 8, 6, 8, 1, "resample", seed)
    rows = held_rows(after)
    assert len(rows) == len(set(rows)) == 10
    assert set(rows) <= set(range(14))
    again = held_rows(offer(after, 14, 8, 8, 2, "resample", seed))
    assert len(again) == len(set(again)) == 10
    assert set(again) <= set(rows) | set(range(14, 22))


def test_resample_takes_old_and_new_equally_often_in_one_draw():
    held = many_after_blocks(4000, 6, [6, 9], "resample")
    statistic, freedom = inclusion_chi_square(held, torch.arange(15))
    assert statistic < freedom + 4 * (2 * freedom) ** 0.5


def test_resample_favours_the_new_rows_and_reservoir_does_not():
    counts = [10] * 6
    shares = {}
    for policy in POLICIES:
        held = many_after_blocks(1000, 10, counts, policy)
        shares[policy] = float((held.position >= 50).double().mean())
    assert abs(shares["resample"] - 1 / 2) < 0.02
    assert abs(shares["reservoir"] - 1 / 6) < 0.02


@pytest.mark.parametrize("policy", POLICIES)
def test_a_memory_of_one_row(policy):
    held = memory.empty(1)
    seen = set()
    for task in range(20):
        held = offer(held, 3 * task, 3, 3, task, policy)
        assert int(held.filled) == 1
        (row,) = held_rows(held)
        assert 0 <= row < 3 * task + 3
        seen.add(row)
    assert len(seen) > 1


@pytest.mark.parametrize("policy", POLICIES)
def test_rows_beyond_the_count_are_not_offered(policy):
    held = after_blocks(20, [2, 3, 1], 10, policy)
    assert held_rows(held) == [0, 1, 2, 3, 4, 5]
    full = after_blocks(4, [2, 3, 1, 2], 10, policy)
    assert set(held_rows(full)) <= set(range(8))


@pytest.mark.parametrize("policy", POLICIES)
def test_offering_nothing_changes_nothing(policy):
    held = after_blocks(4, [3, 3], 5, policy)
    after = offer(held, 6, 0, 5, 2, policy)
    assert sorted(held_rows(after)) == sorted(held_rows(held))
    assert int(after.seen) == 6


@pytest.mark.parametrize("policy", POLICIES)
def test_the_counters_count_and_the_memory_stays_bounded(policy):
    held, start = memory.empty(7), 0
    for task, count in enumerate([3, 2, 6, 1, 9]):
        held = offer(held, start, count, 9, task, policy)
        start += count
        assert int(held.seen) == start
        assert int(held.filled) == min(start, 7)
        assert held.position.shape == (7,)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_memory_is_a_function_of_its_key(policy):
    same, again = (after_blocks(5, [9, 9], 9, policy, seed=3) for _ in range(2))
    other = after_blocks(5, [9, 9], 9, policy, seed=4)
    assert held_rows(same) == held_rows(again)
    assert held_rows(same) != held_rows(other)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_memory_is_the_same_alone_and_among_many(policy):
    counts = [9, 4, 12]
    many = many_after_blocks(6, 5, counts, policy)
    for seed in range(6):
        alone = after_blocks(5, counts, max(counts), policy, seed)
        for a, b in zip(many, alone, strict=True):
            assert torch.equal(a[seed], b)


@pytest.mark.parametrize("policy", POLICIES)
def test_adding_leaves_the_old_memory_alone(policy):
    held = after_blocks(4, [4], 4, policy)
    before = [leaf.clone() for leaf in held]
    offer(held, 4, 4, 4, 1, policy)
    for old, new in zip(before, held, strict=True):
        assert torch.equal(old, new)


def test_draws_from_an_empty_memory_are_absent_and_inside():
    position, present = memory.draw(memory.empty(5), key_of(0), 30)
    assert not present.any()
    assert position.shape == present.shape == (30,)
    assert position.tolist() == [0] * 30


@pytest.mark.parametrize("policy", POLICIES)
def test_draws_come_only_from_the_part_that_is_filled(policy):
    held = offer(memory.empty(10), 40, 3, 8, 0, policy)
    position, present = memory.draw(held, key_of(1), 200)
    assert present.all()
    assert set(position.tolist()) == {40, 41, 42}


def test_draws_take_every_held_row_equally_often():
    held = Memory(torch.arange(100, 110), torch.tensor(8), torch.tensor(8))
    position, _ = memory.draw(held, key_of(0), 8000)
    counts = torch.bincount(position - 100, minlength=10)
    assert counts[8:].tolist() == [0, 0]
    assert float(((counts[:8] - 1000.0) ** 2 / 1000).sum()) < 7 + 4 * 14**0.5


def test_draws_of_different_lanes_differ():
    held = Memory(torch.arange(50), torch.tensor(50), torch.tensor(50))
    first, second = (memory.draw(held, key_of(0), 20, lane)[0] for lane in (0, 1))
    assert not torch.equal(first, second)
