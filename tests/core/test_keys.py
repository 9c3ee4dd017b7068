"""Draws are functions of their key: the published words, on every device and in every shape."""

import pytest
import torch

from dpmcl.core import keys
from dpmcl.core.keys import Purpose

SEEDS = (0, 1, 2**32, 2**32 + 1, 2**40 + 7, 2**63 - 1)
PUBLISHED = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def key_of(seed: int = 0) -> torch.Tensor:
    return keys.derive(seed, Purpose.BATCH, task=3, phase=1, step=17)


def draws(key: torch.Tensor, lane: int = 0) -> list[torch.Tensor]:
    """One draw of each function."""
    return [
        keys.bits(key, 11, lane),
        keys.uniform(key, (3, 2), lane),
        keys.integers(key, (9,), 54_000, lane),
        keys.permutation(key, 30, lane),
    ]


def chi_square(counts: torch.Tensor) -> float:
    expected = counts.sum() / counts.numel()
    return float(((counts - expected) ** 2 / expected).sum())


def test_philox_gives_the_published_words_alone_and_together():
    counters, key, words = (torch.tensor(column) for column in zip(*PUBLISHED, strict=True))
    together = keys.philox(counters.unbind(1), key.unbind(1))
    assert torch.equal(torch.stack(together, 1), words)
    for row in range(3):
        alone = keys.philox(counters[row].unbind(), tuple(key[row].unbind()))
        assert torch.equal(torch.stack(alone), words[row])


def test_keys_differ_in_every_argument_and_are_the_same_alone_and_broadcast():
    seed = torch.tensor([*SEEDS, 6, 2**33])[:, None, None, None, None]
    purpose = [Purpose.BATCH, Purpose.DROPOUT]
    phase, step = torch.arange(2)[:, None], torch.arange(50)
    task = torch.arange(10)[:, None, None]
    grid = torch.stack([keys.derive(seed[:, 0], p, task, phase, step=step) for p in purpose])
    assert grid.shape == (2, 8, 10, 2, 50, 2)
    assert len(grid.flatten(0, -2).unique(dim=0)) == 2 * 8 * 10 * 2 * 50
    for at in [(0, 2, 4, 1, 7), (1, 5, 0, 0, 49)]:
        alone = keys.derive(SEEDS[at[1]], purpose[at[0]], task=at[2], phase=at[3], step=at[4])
        assert torch.equal(grid[at], alone)


def test_draws_are_the_same_alone_under_vmap_and_broadcast():
    many = keys.derive(torch.tensor(SEEDS), Purpose.MEMORY, task=4)
    mapped = torch.func.vmap(draws)(many)
    for together, broadcast in zip(mapped, draws(many), strict=True):
        assert torch.equal(together, broadcast)
    for together, alone in zip(
        mapped, draws(keys.derive(SEEDS[4], Purpose.MEMORY, 4)), strict=True
    ):
        assert torch.equal(together[4], alone)
    assert keys.uniform(many[:, None].expand(-1, 5, -1), (4, 3)).shape == (len(SEEDS), 5, 4, 3)
    one = draws(key_of())[2][0]
    assert torch.equal(keys.integers(key_of(), (), 54_000), one)
    assert keys.uniform(many, ()).shape == keys.normal(many, ()).shape == (len(SEEDS),)


def test_keys_and_lanes_separate_draws():
    for first, lane, key in zip(draws(key_of()), draws(key_of(), 1), draws(key_of(1)), strict=True):
        assert not torch.equal(first, lane)
        assert not torch.equal(first, key)
    lanes = torch.stack([keys.bits(key_of(), 8, lane) for lane in range(50)])
    assert len(lanes.flatten().unique()) == 50 * 8


def test_uniform_is_even_with_the_right_moments():
    numbers = keys.uniform(key_of(), (100_000,))
    assert numbers.dtype == torch.float32
    assert float(numbers.min()) >= 0
    assert float(numbers.max()) < 1
    wide = numbers.double()
    assert abs(float(wide.mean()) - 1 / 2) < 0.004
    assert abs(float(wide.var()) - 1 / 12) < 0.002
    assert abs(float((wide[1:] * wide[:-1]).mean()) - 1 / 4) < 0.005
    assert chi_square(torch.histc(numbers, 100, 0, 1)) < 99 + 5 * 198**0.5


def test_integers_reach_their_bounds_evenly():
    numbers = keys.integers(key_of(), (50_000,), 37)
    assert numbers.unique().tolist() == list(range(37))
    assert chi_square(torch.bincount(numbers, minlength=37).double()) < 36 + 5 * 72**0.5
    large = keys.integers(key_of(), (1000,), 2**31 - 1)
    assert int(large.min()) >= 0
    assert 2**30 < int(large.max()) < 2**31 - 1


def test_integers_take_a_bound_for_each_value_or_key():
    numbers = keys.integers(key_of(), (500, 4), torch.tensor([0, 1, 2, 50]))
    assert numbers.amin(0).tolist() == [0, 0, 0, 0]
    assert numbers.amax(0).tolist() == [0, 0, 1, 49]
    many = keys.derive(torch.arange(3), Purpose.BATCH)
    numbers = keys.integers(many, (200,), torch.tensor([0, 2, 9])[:, None])
    assert numbers.amax(1).tolist() == [0, 1, 8]
    assert torch.equal(numbers[2], keys.integers(many[2], (200,), 9))


def test_permutations_hold_every_number_once_and_are_equally_likely():
    for n in (0, 1, 2, 5, 1000):
        assert sorted(keys.permutation(key_of(), n).tolist()) == list(range(n))
    many = keys.derive(torch.arange(12_000), Purpose.SPLIT)
    counts = torch.bincount(keys.permutation(many, 4) @ torch.tensor([64, 16, 4, 1])).double()
    counts = counts[counts > 0]
    assert len(counts) == 24
    assert chi_square(counts) < 23 + 5 * 46**0.5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that PyTorch can use")
def test_a_gpu_draws_what_a_cpu_draws():
    cpu, cuda = (
        draws(keys.derive(torch.tensor(SEEDS, device=device), Purpose.BATCH, task=1, step=2))
        for device in ("cpu", "cuda")
    )
    for a, b in zip(cpu, cuda, strict=True):
        assert torch.equal(a, b.cpu())
