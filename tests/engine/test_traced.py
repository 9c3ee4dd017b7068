"""A traced function does the same with less: no idle views, and results where inputs lay."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dpmcl.engine.traced import trace


class Operations(TorchDispatchMode):
    """Notes the operations that run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def test_a_trace_leaves_out_what_changes_nothing_and_writes_in_place():
    def function(a, b):
        seen = a.view(2, 3).transpose(0, 1).transpose(0, 1).expand(2, 3)
        return (seen + b * 2).sqrt().reshape(6)

    a, b = torch.rand(6), torch.rand(2, 3)
    expected, b_before = function(a, b), b.clone()
    quick = trace(function, a.clone(), b)
    donated = a.clone()
    with Operations() as operations:
        out = quick(donated, b)
    assert torch.equal(out, expected)
    assert operations.names == ["view", "mul", "add_", "sqrt_", "view"]
    assert out.data_ptr() == donated.data_ptr()
    assert torch.equal(b, b_before)  # only the first tree is used up


def test_what_is_read_later_is_not_overwritten():
    a, constant = torch.rand(2, 2), torch.rand(4)

    def function(a):
        doubled, more = a * 2, a + 1
        return doubled + a.flip(0), doubled - doubled.t(), more * more, constant.sqrt()

    quick = trace(function, a.clone())
    for _ in range(2):
        assert all(map(torch.equal, quick(a.clone()), function(a)))
