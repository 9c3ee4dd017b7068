"""Views: permutations that lose nothing, and turns that agree with SciPy's and with rot90."""

import math

import numpy as np
import pytest
import torch
from scipy import ndimage

from dpmcl.data.view import permuted, rotated
from dpmcl.exceptions import DataError


def images(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def seen(view, x: torch.Tensor, task: int) -> torch.Tensor:
    """Rows of x as a task sees them."""
    return view.apply(x, torch.full((len(x),), task))


# permutations


@pytest.mark.parametrize("shape", [(5,), (3, 4), (1, 4, 4), (3, 2, 5)])
def test_every_task_has_a_permutation_and_the_first_none(shape):
    n = math.prod(shape)
    view = permuted(shape, 4, 0)
    assert view.source.shape == view.weight.shape == (4, n, 1)
    assert view.source.dtype == torch.int64
    assert (view.weight == 1).all()
    assert torch.equal(view.source[0, :, 0], torch.arange(n))
    for task in range(4):
        assert sorted(view.source[task].flatten().tolist()) == list(range(n))


def test_tasks_have_permutations_of_their_own():
    view = permuted((50,), 6, 0)
    assert len({tuple(order) for order in view.source[..., 0].tolist()}) == 6


def test_a_permutation_is_the_seeds_own():
    assert torch.equal(permuted((8, 8), 5, 3).source, permuted((8, 8), 5, 3).source)
    first, other = permuted((8, 8), 5, 3).source, permuted((8, 8), 5, 4).source
    assert torch.equal(first[0], other[0])
    assert all((first[task] != other[task]).any() for task in range(1, 5))


def test_more_tasks_leave_the_first_ones_as_they_are():
    assert torch.equal(permuted((6, 6), 7, 1).source[:3], permuted((6, 6), 3, 1).source)


def test_one_task_sees_what_is_stored():
    x = images(3, 2, 4)
    assert torch.equal(seen(permuted((2, 4), 1, 0), x, 0), x)


def test_permutations_do_not_touch_the_global_generator():
    before = torch.random.get_rng_state()
    permuted((8, 8), 5, 3)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_permuted_image_has_the_same_values_in_other_places(dtype):
    x = images(4, 3, 5, 5, dtype=dtype)
    view = permuted((3, 5, 5), 3, 0)
    assert torch.equal(seen(view, x, 0), x)
    for task in (1, 2):
        found = seen(view, x, task)
        assert found.dtype == dtype
        assert not torch.equal(found, x)
        assert torch.equal(found.flatten(1).sort(1).values, x.flatten(1).sort(1).values)


def test_all_rows_of_a_task_are_permuted_alike():
    x = torch.arange(10.0).repeat(4, 1) + torch.arange(4.0)[:, None] * 100
    found = seen(permuted((10,), 2, 0), x, 1)
    assert torch.equal(found % 100, found[:1].repeat(4, 1) % 100)


def test_values_move_across_channels():
    x = torch.arange(3.0)[:, None, None].expand(3, 6, 6)[None]
    found = seen(permuted((3, 6, 6), 2, 0), x, 1)
    assert all(len(channel.unique()) > 1 for channel in found[0])


# rotations

SQUARES = [(5, 5), (6, 6), (1, 5, 5), (1, 6, 6), (3, 7, 7), (1, 28, 28), (3, 32, 32)]


@pytest.mark.parametrize("shape", SQUARES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quarter_turns_are_exact_and_counter_clockwise(shape, dtype):
    x = images(2, *shape, dtype=dtype)
    view = rotated(shape, [0, 90, 180, 270, 360])
    for turns in range(5):
        assert torch.equal(seen(view, x, turns), torch.rot90(x, turns, (-2, -1)))


def test_the_top_right_goes_to_the_top_left():
    x = torch.zeros(1, 4, 4)
    x[0, 0, 3] = 1
    found = seen(rotated((4, 4), [90]), x, 0)
    assert found[0].nonzero().tolist() == [[0, 0]]


ANGLES = (0, 10, 30, 45, 77.5, 90, 123, 180, 222.2, 270, 301, 359)


def turned(x: np.ndarray, angle: float, mode: str) -> np.ndarray:
    """SciPy's rotation of the last two dimensions: counter-clockwise as images are shown."""
    axes = (x.ndim - 1, x.ndim - 2)
    return ndimage.rotate(x, angle, axes=axes, reshape=False, order=1, mode=mode, cval=0)


def away_from_the_border(height: int, width: int, angle: float) -> np.ndarray:
    """Pixels that come from strictly inside, or from a pixel and more outside."""
    turn = math.radians(angle)
    down = np.arange(height)[:, None] - (height - 1) / 2
    right = np.arange(width)[None] - (width - 1) / 2
    row = down * math.cos(turn) + right * math.sin(turn) + (height - 1) / 2
    column = right * math.cos(turn) - down * math.sin(turn) + (width - 1) / 2
    within = [(row, height), (column, width)]
    inside = np.logical_and.reduce([(v > 0) & (v < size - 1) for v, size in within])
    outside = np.logical_or.reduce([(v < -1) | (v > size) for v, size in within])
    return inside | outside


@pytest.mark.parametrize("angle", ANGLES)
@pytest.mark.parametrize("shape", [(9, 9), (10, 10), (8, 13), (13, 8), (3, 9, 12), (1, 28, 28)])
def test_any_turn_is_scipys_away_from_the_border(shape, angle):
    x = images(2, *shape)
    found = seen(rotated(shape, [angle]), x, 0).numpy()
    expected = turned(x.numpy(), angle, "constant")
    where = np.broadcast_to(away_from_the_border(*shape[-2:], angle), found.shape)
    assert where.mean() > 0.4
    np.testing.assert_allclose(found[where], expected[where], atol=1e-5)


@pytest.mark.parametrize("angle", ANGLES)
@pytest.mark.parametrize("shape", [(9, 9), (8, 13), (3, 9, 12)])
def test_at_the_border_what_is_outside_counts_as_0(shape, angle):
    x = images(2, *shape)
    found = seen(rotated(shape, [angle]), x, 0).numpy()
    np.testing.assert_allclose(found, turned(x.numpy(), angle, "grid-constant"), atol=2e-5)


def test_no_turn_leaves_every_value():
    x = images(3, 5, 8)
    assert torch.equal(seen(rotated((5, 8), [0.0]), x, 0), x)


@pytest.mark.parametrize("angle", [33.0, 200.0])
def test_there_and_back_comes_close_in_the_middle(angle):
    ramp = torch.linspace(0, 1, 15, dtype=torch.float64)
    x = (ramp[:, None] * 2 + ramp[None])[None]
    there = seen(rotated((15, 15), [angle]), x, 0)
    back = seen(rotated((15, 15), [-angle]), there, 0)
    torch.testing.assert_close(back[:, 5:10, 5:10], x[:, 5:10, 5:10], atol=1e-5, rtol=0)


def test_channels_turn_alike_and_do_not_mix():
    x = images(2, 3, 9, 11)
    found = seen(rotated((3, 9, 11), [25.0]), x, 0)
    alone = rotated((9, 11), [25.0])
    for channel in range(3):
        assert torch.equal(found[:, channel], seen(alone, x[:, channel], 0))


def test_weights_are_shares():
    weight = rotated((2, 9, 12), ANGLES).weight
    assert weight.shape == (len(ANGLES), 2 * 9 * 12, 4)
    assert weight.min() >= 0
    assert weight.sum(-1).max() <= 1 + 1e-5
    torch.testing.assert_close(weight.sum(-1)[0], torch.ones(2 * 9 * 12))


@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (6, 1), (1, 1, 1)])
def test_thin_images_turn_within_their_bounds(shape):
    view = rotated(shape, ANGLES)
    n = math.prod(shape)
    assert 0 <= int(view.source.min()) <= int(view.source.max()) < n
    assert torch.isfinite(view.weight).all()


@pytest.mark.parametrize("shape", [(64,), (2, 3, 4, 4)])
def test_what_is_no_image_is_refused(shape):
    with pytest.raises(DataError, match="Only images can be rotated") as caught:
        rotated(shape, [0, 90])
    line = str(caught.value)
    assert str(shape) in line
    assert "domain = 'permuted'" in line
    assert "\n" not in line


# apply


VIEWS = {
    "permuted": permuted((2, 4, 5), 3, 0),
    "rotated": rotated((2, 4, 5), [0, 40, 90]),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dims", [(6,), (2, 3), (3, 1, 2), ()])
def test_rows_of_any_arrangement_are_seen_one_by_one(name, dtype, dims):
    view = VIEWS[name]
    x = images(*dims, 2, 4, 5, dtype=dtype)
    task = (torch.arange(math.prod(dims)) % 3).view(dims)
    found = view.apply(x, task)
    assert found.shape == x.shape
    assert found.dtype == dtype
    rows = zip(x.reshape(-1, 2, 4, 5), task.flatten(), strict=True)
    expected = torch.stack([view.apply(row[None], k[None])[0] for row, k in rows])
    assert torch.equal(found.reshape(-1, 2, 4, 5), expected)
    if dims:
        assert not torch.equal(found, x)


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_by_hand(name):
    view = VIEWS[name]
    x = images(3, 2, 4, 5)
    for task in range(3):
        weighed = x.flatten(1)[:, view.source[task]] * view.weight[task].double()
        torch.testing.assert_close(seen(view, x, task).flatten(1), weighed.sum(-1))


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("dims", [(3,), (2, 3)])
def test_a_view_under_vmap_is_the_same(name, dims):
    view = VIEWS[name]
    x = images(4, *dims, 2, 4, 5)
    task = (torch.arange(4 * math.prod(dims)) % 3).view(4, *dims)
    assert torch.equal(torch.func.vmap(view.apply)(x, task), view.apply(x, task))
    one = torch.func.vmap(view.apply, in_dims=(0, None))(x, task[0])
    assert torch.equal(one[2], view.apply(x[2], task[0]))


@pytest.mark.parametrize("name", VIEWS)
def test_rows_that_lie_apart_in_memory_are_seen_too(name):
    view = VIEWS[name]
    x = images(4, 5, 4, 2).transpose(1, 3)
    task = torch.tensor([0, 1, 2, 1])
    assert not x.is_contiguous()
    assert torch.equal(view.apply(x, task), view.apply(x.contiguous(), task))


def test_a_view_changes_nothing_that_it_is_given():
    x, task = images(3, 2, 4, 5), torch.tensor([0, 1, 2])
    before = x.clone()
    for view in VIEWS.values():
        view.apply(x, task)
    assert torch.equal(x, before)
