"""What a method is told of a task."""

import torch

from conftest import SHARES, own_rows_stream, tiny_stream
from dpmcl.data.splits import split
from dpmcl.data.stream import Stream
from dpmcl.data.task_info import task_infos


def test_classes_and_masks_are_those_of_the_rows_that_arrive():
    infos = task_infos(tiny_stream(), split(tiny_stream(), (0, 1), SHARES))
    for number, info in enumerate(infos):
        assert (info.number, info.tasks, info.input_shape, info.outputs) == (number, 3, (2,), 6)
        assert (info.rows, info.rows_seen) == (36, 36 * (number + 1))
        assert info.classes == ((0, 1), (2, 3), (4, 5))
        assert info.new.tolist() == [c // 2 == number for c in range(6)]
        assert info.seen.tolist() == [c // 2 <= number for c in range(6)]


def test_a_seed_s_blurred_tasks_have_the_same_classes_alone_and_beside_others():
    """Which rows a boundary moves is a seed's; which classes may come is the stream's."""
    x = torch.arange(40.0)[:, None]
    blurred = Stream.from_arrays(x, torch.arange(40) % 8, classes_per_task=2, blur=0.1)
    for seeds in ((0,), (1,), (0, 1, 2)):
        infos = task_infos(blurred, split(blurred, seeds, SHARES))
        assert infos[1].classes == (
            (0, 1, 2, 3), (0, 1, 2, 3, 4, 5), (2, 3, 4, 5, 6, 7), (4, 5, 6, 7),
        )  # fmt: skip
        assert infos[1].seen.tolist() == [True] * 6 + [False] * 2
        assert infos[1].new.tolist() == [False] * 4 + [True] * 2 + [False] * 2


def test_regression_has_no_classes_and_rows_are_the_most_of_any_replica():
    stream = own_rows_stream([[10, 20], [20, 10]])
    first, second = task_infos(stream, split(stream, (0, 1), SHARES))
    assert (first.kind, first.classes, first.seen.tolist()) == ("regression", ((), ()), [True])
    assert (first.rows, second.rows, second.rows_seen) == (12, 12, 18)
    assert (first.new.tolist(), second.new.tolist()) == ([True], [False])
