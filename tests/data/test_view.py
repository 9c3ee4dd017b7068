"""Views: permutations that lose nothing, and turns that agree with SciPy's and with rot90."""

import math

import numpy as np
import pytest
import torch
from scipy import ndimage

from conftest import refused
from dpmcl.data.view import permuted, rotated

ANGLES = (0, 10, 30, 45, 77.5, 90, 123, 180, 222.2, 270, 301, 359)
VIEWS = {
    "permuted": permuted((2, 4, 5), 3, 0),
    "rotated": rotated((2, 4, 5), [0, 40, 90]),
}


def images(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def seen(view, x: torch.Tensor, task: int) -> torch.Tensor:
    """Rows of x as a task sees them."""
    return view.apply(x, torch.full((len(x),), task))


# permutations


@pytest.mark.parametrize(("shape", "dtype"), [((5,), torch.float32), ((3, 2, 5), torch.float64)])
def test_every_task_has_a_permutation_and_the_first_none(shape, dtype):
    before = torch.random.get_rng_state()
    x = images(4, *shape, dtype=dtype)
    view = permuted(shape, 4, 0)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(seen(view, x, 0), x)
    for task in range(1, 4):
        assert sorted(view.source[task].flatten().tolist()) == list(range(math.prod(shape)))
        y = seen(view, x, task)
        assert y.dtype == dtype
        assert torch.equal(y, x.flatten(1)[:, view.source[task, :, 0]].view(x.shape))
    assert torch.equal(seen(permuted(shape, 1, 0), x, 0), x)


def test_permutations_are_the_seeds_own_and_those_of_the_first_tasks_stay():
    view = permuted((8, 8), 6, 3)
    assert len({tuple(order) for order in view.source[..., 0].tolist()}) == 6
    assert torch.equal(view.source[:3], permuted((8, 8), 3, 3).source)
    other_seed = permuted((8, 8), 6, 4).source
    assert all((view.source[task] != other_seed[task]).any() for task in range(1, 6))


# rotations


@pytest.mark.parametrize(("shape", "dtype"), [((6, 6), torch.float64), ((3, 7, 7), torch.float32)])
def test_quarter_turns_are_exact_and_counter_clockwise(shape, dtype):
    x = images(2, *shape, dtype=dtype)
    view = rotated(shape, [0, 90, 180, 270, 360])
    for turns in range(5):
        assert torch.equal(seen(view, x, turns), torch.rot90(x, turns, (-2, -1)))


@pytest.mark.parametrize("angle", ANGLES)
@pytest.mark.parametrize("shape", [(9, 9), (8, 13), (3, 9, 12), (1, 28, 28)])
def test_any_turn_is_scipys(shape, angle):
    """SciPy's turns counter-clockwise as images are shown; what is outside counts as 0."""
    x = images(2, *shape)
    axes = (len(shape), len(shape) - 1)
    options = {"axes": axes, "reshape": False, "order": 1, "mode": "grid-constant", "cval": 0}
    expected = ndimage.rotate(x.numpy(), angle, **options)
    np.testing.assert_allclose(seen(rotated(shape, [angle]), x, 0).numpy(), expected, atol=2e-5)


def test_what_is_no_image_is_refused():
    parts = ("Only images can be rotated", "(2, 3, 4, 4)", "domain = 'permuted'")
    refused(lambda: rotated((2, 3, 4, 4), [0, 90]), *parts)


# apply


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("dims", [(6,), (2, 3), (3, 1, 2), ()])
def test_rows_of_any_arrangement_are_seen_one_by_one(name, dims):
    view = VIEWS[name]
    x = images(*dims, 5, 4, 2, dtype=torch.float32).transpose(-1, -3)
    before = x.clone()
    task = (torch.arange(math.prod(dims)) % 3).view(dims)
    y = view.apply(x, task)
    assert (y.shape, y.dtype) == (x.shape, torch.float32)
    rows = zip(x.reshape(-1, 2, 4, 5), task.flatten(), strict=True)
    expected = [(row.flatten()[view.source[k]] * view.weight[k]).sum(-1) for row, k in rows]
    torch.testing.assert_close(y.reshape(len(expected), -1), torch.stack(expected))
    assert torch.equal(x, before)
    if dims == (2, 3):
        assert torch.equal(torch.func.vmap(view.apply)(x, task), y)
        mapped = torch.func.vmap(view.apply, in_dims=(0, None))(x, task[0])
        assert torch.equal(mapped[1], view.apply(x[1], task[0]))
