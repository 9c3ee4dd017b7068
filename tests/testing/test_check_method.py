"""The public check names the promise that a method breaks; test_contract.py has those that pass."""

from dataclasses import dataclass, replace

import pytest
import torch

from conftest import refused
from dpmcl import SpecError
from dpmcl.core.tree import tree_map
from dpmcl.methods.er import ER
from dpmcl.testing import check_method

SMALL = {"updates": 3, "batch": 4, "memory": 20}


def in_place(state, batches, key):
    tree_map(lambda leaf: leaf.add_(0.1), state.theta)
    return state


def at_random(state, batches, key):
    return state._replace(theta=tree_map(lambda p: p + torch.rand(p.shape), state.theta))


def growing(state, batches, key):
    return state._replace(extra={"more": torch.zeros(2)})


def by_value(state, batches, key):
    step = float(next(iter(batches.values())).w.sum())
    return state._replace(theta=tree_map(lambda p: p + 1e-3 * step, state.theta))


def to_nowhere(state, batches, key):
    return state._replace(theta=tree_map(lambda p: p / 0, state.theta))


@dataclass(frozen=True, kw_only=True)
class Broken(ER):
    """ER whose update is another."""

    kind: str = ""

    def phases(self, model, task):
        (phase,) = super().phases(model, task)
        return [replace(phase, update=globals()[self.kind])]


@pytest.mark.parametrize(
    ("kind", "promise"),
    [
        ("in_place", "changes nothing that it is given"),
        ("at_random", "same result again"),
        ("growing", "keeps the shapes"),
        ("by_value", "can be batched"),
        ("to_nowhere", "stay finite"),
    ],
)
def test_a_broken_promise_is_named(kind, promise):
    with pytest.raises(AssertionError, match=promise):
        check_method(Broken(kind=kind, **SMALL))
    refused(lambda: check_method(Broken), "an instance", error=SpecError)
