"""Augmentation: each change by hand, the same alone or among many, and test rows untouched."""

import numpy as np
import pytest
import torch

from conftest import model_of, setup_of, tiny_run, tiny_stream
from dpmcl.core import keys
from dpmcl.core.tree import at, leaves
from dpmcl.data.augmentation import augmented, build
from dpmcl.data.stream import Stream
from dpmcl.engine import Batched
from dpmcl.exceptions import SpecError
from dpmcl.methods.dpmcl import DPMCL
from dpmcl.methods.replay import Replay
from dpmcl.networks.mlp import MLP
from dpmcl.training.loop import check

KEY = torch.tensor([5, 6])
X = torch.arange(1, 1 + 6 * 2 * 4 * 5, dtype=torch.float64).view(6, 2, 4, 5)


def test_a_shift_is_a_crop_of_a_padded_image():
    shifted = build({"name": "shift", "pixels": 2}).apply(X, KEY)
    padded = np.pad(X.numpy(), ((0, 0), (0, 0), (2, 2), (2, 2)))
    by = keys.integers(KEY, (2, 6), 5).numpy()
    for row in range(6):
        i, j = by[:, row]
        assert np.array_equal(shifted[row], padded[row, :, i : i + 4, j : j + 5])
    assert len(set(map(tuple, by.T))) > 1


def test_a_flip_turns_some_rows_and_cutout_clears_a_square():
    flipped = build("flip").apply(X, KEY)
    turned = [torch.equal(flipped[row], X[row].flip(-1)) for row in range(6)]
    same = [torch.equal(flipped[row], X[row]) for row in range(6)]
    assert [a != b for a, b in zip(turned, same, strict=True)] == [True] * 6
    assert any(turned)
    assert any(same)
    assert torch.equal(build({"name": "flip", "chance": 0.0}).apply(X, KEY), X)

    cut = build({"name": "cutout", "size": 2}).apply(X, KEY)
    for row in range(6):
        gone = (cut[row] == 0).numpy()
        assert (gone == gone[:1]).all()  # the same in each channel
        rows, columns = gone[0].any(1).nonzero()[0], gone[0].any(0).nonzero()[0]
        assert gone[0].sum() == len(rows) * len(columns) <= 4
        assert 0 < np.ptp(rows) + np.ptp(columns) + 1 <= 3
    assert torch.equal(cut[cut > 0], X[cut > 0])


def test_draws_differ_and_a_block_is_its_batches():
    both = (build("shift"), build("flip"))
    plain = augmented(X, both, KEY, draw=0)
    assert not torch.equal(plain, augmented(X, both, KEY, draw=1))
    block = augmented(X.view(2, 3, 2, 4, 5), both, KEY, draw=0)
    assert torch.equal(block.flatten(0, 1), plain)


def run(engine=None, seeds=(0, 1), **options):
    rng = np.random.default_rng(0)
    y = np.arange(60) % 4
    x = rng.random((60, 1, 5, 5)) + y[:, None, None, None]
    stream = Stream.from_arrays(x, y, classes_per_task=2)
    model = model_of(stream, lambda: MLP(hidden=6).build((1, 5, 5), 4))
    settings = {"batch": 4, "updates": 6, "memory": 20, "optimiser": "sgd", "lr": 0.05, **options}
    return tiny_run(Replay(**settings), seeds, engine, stream=stream, model=model)


AUGMENT = ["shift", "flip", {"name": "cutout", "size": 2}]


def test_runs_are_the_same_alone_among_many_mapped_and_in_fixed_buffers():
    among = run(augment=AUGMENT)
    assert not torch.equal(*(leaves(each.theta)[0] for each in (among, run())))
    alone = run(seeds=(1,), augment=AUGMENT)
    torch.testing.assert_close(at(among.theta, 1), at(alone.theta, 0), rtol=0, atol=0)
    for engine in (Batched(), Batched(static=True)):
        mapped = run(engine, augment=AUGMENT)
        torch.testing.assert_close(among.theta, mapped.theta, rtol=1e-9, atol=1e-12)


def test_test_rows_are_never_touched():
    still = {"lr": 1e-30}
    plain, changed = (run(augment=augment, **still).errors["test"] for augment in ((), AUGMENT))
    assert np.array_equal(plain.values, changed.values, equal_nan=True)


def test_what_is_not_understood_is_refused():
    with pytest.raises(SpecError, match=r"No augmentation 'shfit'. Did you mean 'shift'"):
        Replay(augment=["shfit"])
    with pytest.raises(SpecError, match="augment 'shift': pixels must be"):
        DPMCL(augment=[{"name": "shift", "pixels": 0}])
    with pytest.raises(SpecError, match=r"augment changes images.* have the shape \(2,\)"):
        check(setup_of(Replay(augment=["flip"]), tiny_stream()))
