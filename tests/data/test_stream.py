"""Streams: what a batch is, and tasks in the order of the classes."""

from dataclasses import replace

import numpy as np
import torch

from conftest import complaint, moving_stream, own_rows_stream, tiny_stream
from dpmcl.data.stream import Stream
from dpmcl.exceptions import SpecError
from dpmcl.streams.digits import Digits


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
    stream = Stream.from_arrays(torch.tensor([[200.0], [-3.0]]), ["a", "b"])  # floats stay
    row = torch.tensor([0, 1])
    assert stream.batch(row, row >= 0, row, torch.float64).x.tolist() == [[200.0], [-3.0]]


def test_an_example_is_distinct_rows_from_all_over_the_stream(digits):
    example = digits.example(torch.float64)
    assert example.shape == (6, 1, 8, 8)
    assert example.dtype == torch.float64
    x = torch.zeros(1000, 3)
    x[300:400], x[800:] = 1, 2
    few = Stream.from_arrays(x, list("ab") * 500).example(torch.float32)
    assert sorted(few.sum(1).tolist()) == [0, 3, 6]
    constant = Stream.from_arrays(torch.ones(4, 3), list("abab")).example(torch.float32)
    assert constant.tolist() == [[1, 1, 1]]


def test_digits_are_the_real_ones_in_ten_tasks(digits):
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    assert digits.x.shape == (1797, 1, 8, 8)
    np.testing.assert_array_equal(digits.x.flatten(1).numpy() * 16, pixels)
    np.testing.assert_array_equal(digits.y.numpy(), labels)
    assert digits.tasks == digits.classes == tuple("0123456789")
    assert torch.equal(digits.y[digits.row], digits.task)
    assert (digits.task.diff() >= 0).all()
    assert sorted(digits.row[0].tolist()) == list(range(1797))
    line = complaint(Digits(tasks=11).build, [0], error=SpecError)
    assert line == "tasks must be at most 10 for stream 'digits', got 11."


def test_the_first_tasks_of_a_stream():
    stream = tiny_stream(tasks=3, rows=4).first(2)
    assert stream.tasks == ("task 0", "task 1")
    assert stream.task.tolist() == [[0] * 8 + [1] * 8]
    assert (stream.row.shape, stream.outputs) == ((1, 16), 6)
    assert "as many rows" in complaint(own_rows_stream([[5, 10], [10, 5]]).first, 1)
    assert "needs neighbours" in complaint(replace(stream, blur=0.3).first, 1, error=SpecError)


def test_a_stream_moves_whole():
    moved = moving_stream().to(torch.device("meta"))
    for name in ("x", "y", "row", "task", "following", "trajectory"):
        assert getattr(moved, name).device.type == "meta"


def test_the_digest_tells_streams_apart():
    def digest(x=torch.zeros(4, 9), y="abab", **scenario):  # noqa: B008
        return Stream.from_arrays(x, list(y), **scenario).digest()

    domains = {"scenario": "domain-incremental", "tasks": 2}
    digests = [
        digest(torch.ones(4, 9)),
        digest(torch.zeros(4, 9, dtype=torch.float64)),
        digest(y="abba"),
        digest(y="acac"),
        digest(order=["b", "a"]),
        digest(classes_per_task=2),
        digest(blur=0.3),
        digest(**domains),
        digest(**domains, order_seed=1),
        digest(scenario="task-incremental", classes_per_task=2),
    ]
    assert len({digest(), *digests}) == 1 + len(digests)
    assert digest(name="other") == digest()
