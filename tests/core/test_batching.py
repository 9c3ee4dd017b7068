"""What PyTorch says when an update cannot be batched is explained in one sentence."""

import pytest
import torch
from torch.nn import functional

from dpmcl.core.batching import explained

SHARED = torch.zeros(2)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda x: x if x.sum() > 0 else -x, "a branch on a tensor's value"),
        (lambda x: x * x.sum().item(), "as a Python number"),
        (lambda x: functional.one_hot(x.long()), "one_hot without a number of classes"),
        (lambda x: functional.dropout(x), "a draw from PyTorch's generators"),
        (lambda x: SHARED.copy_(x), "a change in place of a tensor that replicas share"),
        (lambda x: x[x > 0], "a result whose shape depends on values"),
        (lambda x: x.numpy(), ".numpy()"),
        (lambda x: {}["key"], "one_hot without a number of classes, a draw"),
    ],
)
def test_the_sentence_names_what_was_done(function, says):
    with pytest.raises((RuntimeError, KeyError)) as caught:
        torch.func.vmap(function)(torch.ones(3, 2))
    line = explained(caught.value)
    assert says in line
    assert line.endswith("use engine = 'looped' (--engine looped).")
    assert "\n" not in line
