"""A recording has the operations of a function, its constants, and where results lie."""

import pytest
import torch
from torch import fx

from dpmcl.engine.recording import record


def again(recording, *inputs):
    return fx.GraphModule(recording.constants, recording.graph)(*inputs)


def test_it_computes_the_same_from_other_inputs():
    weight = torch.rand(3)

    def function(x):
        top, place = (x * weight).max(dim=0)
        return [top, place, torch.tensor([1.0, 2.0]) + x.sum()]

    recording = record(function, [torch.rand(4, 3)])
    assert len(recording.constants) == 2
    x = torch.rand(4, 3)
    assert all(map(torch.equal, again(recording, x), function(x)))


def test_what_is_written_in_place_is_read_afterwards_and_made_anew():
    def function(x):
        total = torch.zeros(2)
        total.add_(x)
        torch._foreach_mul_([total], 2.0)
        return [total, total + 1, torch.tensor([1.0, 2.0]).add_(x)]

    recording = record(function, [torch.rand(2)])
    x = torch.rand(2)
    for _ in range(2):
        assert all(map(torch.equal, again(recording, x), function(x)))


def test_views_share_memory_and_results_do_not():
    def function(x):
        return [x[1:], x.t(), x + 1, *x.split(1)]

    recording = record(function, [torch.rand(2, 2)])
    (given,) = (n for n in recording.graph.nodes if n.op == "placeholder")
    (output,) = (n for n in recording.graph.nodes if n.op == "output")
    memory = recording.layouts[given].memory
    same = [recording.layouts[node].memory == memory for node in output.args[0]]
    assert same == [True, True, False, True, True]
    assert [recording.layouts[node].offset for node in output.args[0]] == [2, 0, 0, 0, 2]


@pytest.mark.parametrize(
    "asks", [lambda x: x.sum().item(), lambda x: x > 0, lambda x: torch.equal(x, x)]
)
def test_a_function_that_asks_for_a_value_is_refused(asks):
    def function(x):
        return [x if asks(x) else -x]

    with pytest.raises(ValueError, match="depends on values of tensors"):
        record(function, [torch.ones(())])
