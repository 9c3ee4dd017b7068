"""The memory is bounded, holds what its policy says, and never points outside."""

import pytest
import torch

from dpmcl.core import keys, memory
from dpmcl.core.keys import Purpose
from dpmcl.core.memory import Memory, Offer
from dpmcl.core.tree import at, leaves, stack, tree_map

POLICIES = ["reservoir", "resample"]
each_policy = pytest.mark.parametrize("policy", POLICIES)


def key_of(task: int, seed: int = 0) -> torch.Tensor:
    return keys.derive(seed, Purpose.MEMORY, task)


def rows_of(start: int, count: int, width: int) -> Offer:
    """Rows start .. start + count - 1 of so wide an offer; each is noted with its square."""
    position = start + torch.arange(width)
    return Offer(position, torch.arange(width) < count, {"square": position.square()})


def offer(held: Memory, start: int, count: int, width: int, task: int, policy: str, seed=0):
    return memory.add(held, rows_of(start, count, width), key_of(task, seed), policy)


def empty(capacity: int) -> Memory:
    return memory.empty(capacity, notes={"square": torch.zeros(1, dtype=torch.int64)})


def held_rows(held: Memory) -> list[int]:
    filled = int(held.filled)
    assert torch.equal(held.notes["square"][:filled], held.position[:filled].square())
    return held.position[:filled].tolist()


def after_blocks(capacity: int, counts: list[int], width: int, policy: str, seed: int = 0):
    held, start = empty(capacity), 0
    for task, count in enumerate(counts):
        held = offer(held, start, count, width, task, policy, seed)
        start += count
        assert (int(held.seen), int(held.filled)) == (start, min(start, capacity))
        assert held.position.shape == (capacity,)
        assert set(held_rows(held)) <= set(range(start))
    return held


@each_policy
def test_a_memory_whose_capacity_has_grown_fills_its_empty_slots(policy):
    """Four slots have seen nine rows; six more slots take the next six rows."""
    held = after_blocks(4, [9], 9, policy)
    before = held_rows(held)
    room = empty(10)
    held = tree_map(lambda old, new: torch.cat([old, new[4:]]) if old.dim() else old, held, room)
    held = offer(held, 9, 5, 6, task=1, policy=policy)
    assert (held_rows(held), int(held.seen)) == ([*before, *range(9, 14)], 14)
    held = offer(held, 14, 3, 3, task=2, policy=policy)
    assert (int(held.filled), int(held.seen)) == (10, 17)
    assert set(held_rows(held)) <= {*before, *range(9, 17)}


def many_after_blocks(replicas: int, capacity: int, counts: list[int], policy: str) -> Memory:
    """The memories of many seeds, under vmap."""
    seeds, held, start = torch.arange(replicas), stack([empty(capacity)] * replicas), 0
    for task, count in enumerate(counts):
        rows = rows_of(start, count, max(counts))
        held = torch.func.vmap(lambda one, key, rows=rows: memory.add(one, rows, key, policy))(
            held, keys.derive(seeds, Purpose.MEMORY, task)
        )
        start += count
    return held


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


def test_rows_that_are_absent_between_others_do_not_count():
    whole, gaps = rows_of(0, 6, 6), torch.tensor([0, 9, 1, 9, 2, 3, 4, 5])
    present = gaps < 9
    for capacity in (8, 4):
        got = memory.add(
            empty(capacity), Offer(gaps, present, {"square": gaps**2}), key_of(0), "reservoir"
        )
        assert set(held_rows(got)) <= set(range(6))
        assert (int(got.seen), int(got.filled)) == (6, min(6, capacity))
        if capacity == 8:
            assert held_rows(got) == whole.position.tolist()


def test_resample_keeps_all_while_there_is_room_and_then_some_of_old_and_new():
    assert held_rows(after_blocks(12, [4, 3, 5], 6, "resample")) == list(range(12))
    held = many_after_blocks(4000, 6, [6, 9], "resample").position
    counts = torch.stack([(held == row).sum() for row in range(15)]).double()
    p = counts.sum() / (4000 * 15)  # chi-square, against all equally often
    statistic = ((counts - 4000 * p) ** 2).sum() / (4000 * p * (1 - p)) * 14 / 15
    assert float(statistic) < 14 + 4 * 28**0.5
    for seed in range(5):
        before = after_blocks(10, [8], 8, "resample", seed)
        rows = held_rows(offer(before, 8, 6, 8, 1, "resample", seed))
        assert len(rows) == len(set(rows)) == 10
    latest = many_after_blocks(1000, 10, [10] * 6, "resample").position >= 50
    assert abs(float(latest.double().mean()) - 1 / 2) < 0.02


def test_keep_takes_the_lowest_of_an_order():
    held = after_blocks(3, [3], 3, "reservoir")
    order = torch.tensor([5.0, 1.0, 4.0, 3.0, 0.0, 2.0])
    after = memory.keep(held, rows_of(3, 2, 3), order)
    assert held_rows(after) == [4, 1, 3]  # row 5 is absent
    assert (int(after.filled), int(after.seen)) == (3, 5)


@each_policy
def test_a_memory_is_a_function_of_its_key_and_leaves_the_old_one_alone(policy):
    counts = [9, 4, 12]
    many = many_after_blocks(6, 5, counts, policy)
    alone = [after_blocks(5, counts, max(counts), policy, seed) for seed in range(6)]
    for seed in range(6):
        pairs = zip(leaves(at(many, seed)), leaves(alone[seed]), strict=True)
        assert all(torch.equal(*pair) for pair in pairs)
    assert held_rows(alone[0]) != held_rows(alone[1])
    before = tree_map(torch.clone, alone[0])
    nothing = offer(alone[0], 25, 0, 5, 3, policy)
    assert sorted(held_rows(nothing)) == sorted(held_rows(before))
    assert held_rows(alone[0]) == held_rows(before)
