"""Draws are functions of their key: the published words, on every device and in every shape."""

import random

import numpy as np
import pytest
import torch

from dpmcl.core import keys
from dpmcl.core.keys import Purpose

SEEDS = (0, 1, 2**32, 2**32 + 1, 2**40 + 7, 2**63 - 1)
PUBLISHED = [
    (
        (0, 0, 0, 0),
        (0, 0),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def key_of(seed: int = 0) -> torch.Tensor:
    return keys.derive(seed, Purpose.BATCH, task=3, phase=1, step=17)


def chi_square(counts: torch.Tensor) -> float:
    expected = counts.sum() / counts.numel()
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize(("counter", "key", "words"), PUBLISHED)
def test_philox_gives_the_published_words(counter, key, words):
    counter, key = (tuple(torch.tensor(word) for word in part) for part in (counter, key))
    assert tuple(int(word) for word in keys.philox(counter, key)) == words


def test_philox_of_many_counters_gives_the_words_of_each():
    counters = torch.tensor([counter for counter, _, _ in PUBLISHED]).unbind(1)
    own = torch.tensor([key for _, key, _ in PUBLISHED]).unbind(1)
    words = torch.stack(keys.philox(counters, own), 1)
    assert words.tolist() == [list(published) for _, _, published in PUBLISHED]


def test_derive_differs_in_every_argument():
    base = {"seed": 5, "purpose": Purpose.BATCH, "task": 1, "phase": 2, "step": 3}
    changes = [
        {},
        {"seed": 6},
        {"seed": 5 + 2**32},
        {"seed": 5 + 2**33},
        {"purpose": Purpose.DROPOUT},
        {"task": 2},
        {"phase": 1},
        {"step": 4},
        {"task": 2, "phase": 1},
        {"phase": 3, "step": 2},
    ]
    found = {tuple(keys.derive(**{**base, **change}).tolist()) for change in changes}
    assert len(found) == len(changes)


def test_derive_gives_different_keys_on_a_grid():
    seed = torch.tensor(SEEDS)[:, None, None, None]
    task = torch.arange(10)[:, None, None]
    phase = torch.arange(2)[:, None]
    grid = keys.derive(seed, Purpose.BATCH, task, phase, step=torch.arange(50)).flatten(0, -2)
    assert len(grid.unique(dim=0)) == len(SEEDS) * 10 * 2 * 50


def test_derive_is_the_same_alone_and_broadcast_over_seeds_and_steps():
    steps = torch.arange(4)
    many = keys.derive(torch.tensor(SEEDS)[:, None], Purpose.BATCH, 2, 1, step=steps)
    assert many.shape == (len(SEEDS), 4, 2)
    for i, seed in enumerate(SEEDS):
        for step in range(4):
            alone = keys.derive(seed, Purpose.BATCH, task=2, phase=1, step=step)
            assert torch.equal(many[i, step], alone)


def test_derive_and_its_draws_are_the_same_under_vmap():
    def draw(seed):
        key = keys.derive(seed, Purpose.MEMORY, task=4)
        return (
            key,
            keys.uniform(key, (3, 2), lane=1),
            keys.integers(key, (5,), 100),
            keys.permutation(key, 6),
        )

    seeds = torch.tensor(SEEDS)
    mapped = torch.func.vmap(draw)(seeds)
    for i in range(len(SEEDS)):
        for many, alone in zip(mapped, draw(seeds[i]), strict=True):
            assert torch.equal(many[i], alone)


def test_draws_broadcast_over_the_leading_dimensions_of_a_key():
    many = keys.derive(torch.tensor(SEEDS)[:, None], Purpose.BATCH, step=torch.arange(2))
    draws = keys.uniform(many, (4, 3))
    assert draws.shape == (len(SEEDS), 2, 4, 3)
    assert torch.equal(draws[2, 1], keys.uniform(many[2, 1], (4, 3)))


def test_a_short_draw_is_the_beginning_of_a_long_one():
    assert torch.equal(keys.bits(key_of(), 3), keys.bits(key_of(), 11)[:3])


def test_words_are_32_bits_wide_and_use_the_top_bit():
    words = keys.bits(key_of(), 1000)
    assert int(words.min()) >= 0
    assert 2**31 < int(words.max()) < 2**32


def test_lanes_differ():
    lanes = torch.stack([keys.bits(key_of(), 8, lane) for lane in range(50)])
    assert len(lanes.flatten().unique()) == 50 * 8


def test_lanes_of_every_function_differ():
    key = key_of()
    assert not torch.equal(keys.uniform(key, (9,)), keys.uniform(key, (9,), lane=1))
    assert not torch.equal(keys.integers(key, (9,), 99), keys.integers(key, (9,), 99, lane=1))
    assert not torch.equal(keys.permutation(key, 9), keys.permutation(key, 9, lane=1))


def test_uniform_lies_in_its_range_with_the_right_moments():
    draws = keys.uniform(key_of(), (100_000,))
    assert draws.dtype == torch.float32
    assert float(draws.min()) >= 0
    assert float(draws.max()) < 1
    wide = draws.double()
    assert abs(float(wide.mean()) - 1 / 2) < 0.004
    assert abs(float(wide.var()) - 1 / 12) < 0.002
    assert abs(float((wide[1:] * wide[:-1]).mean()) - 1 / 4) < 0.005


def test_uniform_is_even_over_a_hundred_bins():
    draws = keys.uniform(key_of(1), (100_000,))
    assert chi_square(torch.histc(draws, 100, 0, 1)) < 99 + 5 * 198**0.5


def test_integers_reach_their_bounds_and_no_further():
    assert keys.integers(key_of(), (1000,), 7).unique().tolist() == list(range(7))


def test_integers_are_evenly_spread():
    counts = torch.bincount(keys.integers(key_of(), (50_000,), 37), minlength=37)
    assert chi_square(counts.double()) < 36 + 5 * 72**0.5


def test_integers_below_a_large_bound_are_not_negative():
    draws = keys.integers(key_of(), (1000,), 2**31 - 1)
    assert int(draws.min()) >= 0
    assert 2**30 < int(draws.max()) < 2**31 - 1


def test_integers_take_a_bound_for_each():
    high = torch.tensor([0, 1, 2, 50])
    draws = keys.integers(key_of(), (500, 4), high)
    assert draws.amin(0).tolist() == [0, 0, 0, 0]
    assert draws.amax(0).tolist() == [0, 0, 1, 49]


def test_integers_take_a_bound_for_each_key():
    many = keys.derive(torch.arange(3), Purpose.BATCH)
    draws = keys.integers(many, (200,), torch.tensor([0, 2, 9])[:, None])
    assert draws.amax(1).tolist() == [0, 1, 8]
    assert torch.equal(draws[2], keys.integers(many[2], (200,), 9))


def test_integers_below_zero_are_zero():
    assert keys.integers(key_of(), (20,), 0).tolist() == [0] * 20


@pytest.mark.parametrize("n", [0, 1, 2, 5, 1000])
def test_permutation_holds_every_number_once(n):
    assert sorted(keys.permutation(key_of(), n).tolist()) == list(range(n))


def test_permutation_differs_by_key():
    assert not torch.equal(keys.permutation(key_of(0), 20), keys.permutation(key_of(1), 20))


def test_all_permutations_are_equally_likely():
    many = keys.derive(torch.arange(12_000), Purpose.SPLIT)
    orders = keys.permutation(many, 4) @ torch.tensor([64, 16, 4, 1])
    counts = torch.bincount(orders).double()
    counts = counts[counts > 0]
    assert len(counts) == 24
    assert chi_square(counts) < 23 + 5 * 46**0.5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that PyTorch can use")
def test_a_gpu_draws_what_a_cpu_draws():
    seeds = torch.tensor(SEEDS)
    drawn = []
    for device in ("cpu", "cuda"):
        key = keys.derive(seeds.to(device), Purpose.BATCH, task=1, step=2)
        drawn.append(
            [
                key,
                keys.bits(key, 1001, lane=3),
                keys.uniform(key, (1001,)),
                keys.integers(key, (1001,), 54_000),
                keys.permutation(key, 1001),
            ]
        )
    for cpu, cuda in zip(*drawn, strict=True):
        assert torch.equal(cpu, cuda.cpu())


def test_global_generators_are_neither_read_nor_changed():
    def draw():
        key = keys.derive(3, Purpose.WEIGHTS)
        return [
            key,
            keys.uniform(key, (9,)),
            keys.integers(key, (9,), 1000),
            keys.permutation(key, 9),
        ]

    def states():
        return (
            torch.random.get_rng_state().tolist(),
            str(np.random.get_state()),  # noqa: NPY002
            random.getstate(),
        )

    before = states()
    first = draw()
    assert states() == before
    torch.rand(1), np.random.rand(), random.random()  # noqa: NPY002
    assert states() != before
    for a, b in zip(first, draw(), strict=True):
        assert torch.equal(a, b)
