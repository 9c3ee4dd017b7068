"""Streams: what a batch is, and tasks in the order of the classes."""

import numpy as np
import pytest
import torch

from conftest import own_rows_stream, tiny_stream
from dpmcl.data.stream import Stream
from dpmcl.exceptions import SpecError
from dpmcl.streams.digits import Digits


@pytest.fixture(scope="module")
def digits() -> Stream:
    return Digits().build([0])


def test_a_byte_pool_is_scaled_in_a_batch_and_absent_rows_weigh_nothing():
    x = torch.tensor([[0, 51], [102, 255], [1, 2]], dtype=torch.uint8)
    stream = Stream.from_arrays(x, ["a", "b", "a"])
    row = torch.tensor([[1, 0], [0, 1]])
    present = torch.tensor([[True, False], [True, True]])
    batch = stream.batch(row, present, torch.tensor([[1, 0], [0, 1]]), torch.float64)
    expected = torch.tensor([[0.4, 1.0], [0.0, 0.2]], dtype=torch.float64)
    torch.testing.assert_close(batch.x[0], expected)
    assert batch.x.dtype == batch.w.dtype == torch.float64
    assert batch.y.tolist() == [[1, 0], [0, 1]]
    assert batch.w.tolist() == [[1.0, 0.0], [1.0, 1.0]]
    assert stream.x.dtype == torch.uint8


def test_a_float_pool_is_not_scaled():
    x = torch.tensor([[200.0], [-3.0]])
    stream = Stream.from_arrays(x, ["a", "b"])
    row = torch.tensor([0, 1])
    batch = stream.batch(row, row >= 0, row, torch.float64)
    assert batch.x.tolist() == [[200.0], [-3.0]]


def test_regression_targets_come_in_the_runs_type():
    stream = own_rows_stream([[10, 20]])
    row = torch.arange(4)
    batch = stream.batch(row, row >= 0, row * 0, torch.float32)
    assert batch.y.dtype == torch.float32
    assert batch.y.shape == (4, 1)


def test_an_example_is_distinct_rows_from_all_over_the_stream(digits):
    example = digits.example(torch.float64)
    assert example.shape == (6, 1, 8, 8)
    assert example.dtype == torch.float64
    x = torch.zeros(1000, 3)
    x[300:400], x[800:] = 1, 2
    few = Stream.from_arrays(x, list("ab") * 500).example(torch.float32)
    assert sorted(few.sum(1).tolist()) == [0, 3, 6]
    one = Stream.from_arrays(torch.ones(4, 3), list("abab")).example(torch.float32)
    assert one.tolist() == [[1, 1, 1]]


def test_classes_become_tasks_in_the_order_of_their_numbers():
    stream = Stream.from_arrays(torch.arange(5.0)[:, None], list("cabac"))
    assert stream.row.tolist() == [[1, 3, 2, 0, 4]]
    assert stream.task.tolist() == [[0, 0, 1, 2, 2]]
    assert stream.tasks == stream.classes == ("a", "b", "c")


def test_fewer_tasks_keep_a_place_for_every_class():
    stream = Stream.from_arrays(torch.zeros(5, 1), list("cabac"), tasks=2)
    assert stream.row.tolist() == [[1, 3, 2]]
    assert stream.tasks == ("a", "b")
    assert stream.outputs == len(stream.classes) == 3


def test_more_tasks_than_classes_are_refused():
    with pytest.raises(SpecError) as caught:
        Digits(tasks=11).build([0])
    assert str(caught.value) == "tasks must be at most 10 for stream 'digits', got 11."


@pytest.mark.parametrize("shares", [(0.6, 0.2, 0.1), (0.8, 0.2, 0.0), (1.2, -0.1, -0.1)])
def test_shares_that_are_no_split_are_refused(shares):
    with pytest.raises(SpecError, match="split must be three shares above 0 that add up to 1"):
        Digits(split=shares)


def test_digits_are_the_real_ones(digits):
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    assert digits.x.shape == (1797, 1, 8, 8)
    np.testing.assert_array_equal(digits.x.flatten(1).numpy() * 16, pixels)
    np.testing.assert_array_equal(digits.y.numpy(), labels)
    assert (float(digits.x.min()), float(digits.x.max())) == (0.0, 1.0)


def test_digits_come_as_ten_tasks_in_order(digits):
    assert digits.tasks == digits.classes == tuple("0123456789")
    assert digits.row.shape == digits.task.shape == (1, 1797)
    assert torch.equal(digits.y[digits.row], digits.task)
    assert (digits.task.diff() >= 0).all()
    assert sorted(digits.row[0].tolist()) == list(range(1797))


def test_a_stream_moves_whole():
    moved = tiny_stream().to(torch.device("meta"))
    for tensor in (moved.x, moved.y, moved.row, moved.task):
        assert tensor.device.type == "meta"
