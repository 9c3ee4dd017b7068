"""Fewer replicas at a time once memory has run out: the same results, to rounding."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from conftest import own_rows_stream, tiny_model, tiny_run, tiny_stream
from dpmcl import plugins
from dpmcl.core.model import initial
from dpmcl.core.tree import leaves
from dpmcl.data.scaling import fitted
from dpmcl.data.splits import split
from dpmcl.engine import Batched, Grouped
from dpmcl.exceptions import DeviceError
from dpmcl.training.evaluation import Evaluation
from dpmcl.training.loop import train

SEEDS = (0, 1, 2, 3, 4)


class Small(Batched):
    """Memory for `most` replicas at a time; keeps count of how many came."""

    def __init__(self, most: int, error=None, **options):
        super().__init__(**options)
        self.most, self.error = most, error or torch.OutOfMemoryError("CUDA out of memory.")
        self.asked: list[int] = []

    def _take(self, replicas: int) -> None:
        self.asked.append(replicas)
        if replicas > self.most:
            raise self.error

    def advance(self, update, state, chunk, stream, dtype):
        self._take(chunk.key.shape[0])
        return super().advance(update, state, chunk, stream, dtype)

    def map(self, function, *trees):
        self._take(leaves(trees)[0].shape[0])
        return super().map(function, *trees)


class Strict(Small):
    """Runs out in updates alone."""

    def map(self, function, *trees):
        return Batched.map(self, function, *trees)


def method(name: str, **own):
    return plugins.find("method", name)(batch=4, updates=12, memory=20, **own)


def assert_same(first, second) -> None:
    for a, b in zip(leaves(first.theta), leaves(second.theta), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    for name in first.errors:
        np.testing.assert_allclose(
            first.errors[name].values, second.errors[name].values, rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize("kind", [Small, Strict])
@pytest.mark.parametrize(("most", "size"), [(4, 3), (3, 3), (2, 2), (1, 1)])
def test_halves_until_it_fits(kind, most, size):
    inner = kind(most)
    engine = Grouped(inner)
    found = tiny_run(method("er"), SEEDS, engine, tasks=2, dropout=0.2)
    assert_same(found, tiny_run(method("er"), SEEDS, Batched(), tasks=2, dropout=0.2))
    assert engine.at_once(5) == size
    assert engine.at_once(1) == 1
    tries = [n for n in inner.asked if n > most]
    assert tries == [5, 3, 2][: len(tries)]  # each size is tried once, then remembered
    rest = inner.asked[len(tries) :] if kind is Small else inner.asked[inner.asked.index(size) :]
    assert set(rest) <= {size, 5 % size or size}


@pytest.mark.parametrize("name", plugins.names("method"))
@pytest.mark.parametrize("static", [False, True])
def test_every_method_in_groups(name, static):
    rule = method(name, optimiser="adam")
    found = tiny_run(rule, SEEDS, Grouped(Small(2, static=static)), tasks=2)
    assert_same(found, tiny_run(rule, SEEDS, Batched(), tasks=2))


@pytest.mark.parametrize("static", [False, True])
def test_each_replica_keeps_its_own_scale(static):
    plain = tiny_stream(2)
    stream = replace(plain, scaled=torch.tensor([True, True]))
    splits = split(stream, SEEDS, (0.6, 0.2, 0.2))
    stream = fitted(stream, splits)
    assert not torch.equal(stream.scale.x_mean[0], stream.scale.x_mean[4])
    model = tiny_model(stream)
    everything = Evaluation(train=True, future=True)
    runs = [
        train(method("er"), model, stream, splits, SEEDS, engine, everything)
        for engine in (Grouped(Small(2, static=static)), Batched())
    ]
    assert_same(*runs)


def test_replicas_with_rows_and_targets_of_their_own():
    stream = own_rows_stream([[20, 24], [24, 20], [22, 22], [30, 14], [14, 30]])
    stream = replace(stream, scaled=torch.tensor([True, False]))
    splits = split(stream, SEEDS, (0.6, 0.2, 0.2))
    stream = fitted(stream, splits)
    model = tiny_model(stream)
    runs = [
        train(method("dpmcl", kappa=2, zeta=1), model, stream, splits, SEEDS, engine)
        for engine in (Grouped(Small(2)), Batched())
    ]
    assert_same(*runs)


def test_map_alone():
    trees = {"a": torch.randn(5, 3, dtype=torch.float64)}, torch.arange(5.0, dtype=torch.float64)

    def function(tree, scale):
        return {"sum": tree["a"].sum() * scale, "pair": (tree["a"] * scale, scale)}

    inner = Small(2)
    found, expected = Grouped(inner).map(function, *trees), Batched().map(function, *trees)
    for a, b in zip(leaves(found), leaves(expected), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    assert inner.asked == [5, 3, 2, 2, 1]


def test_it_remembers_the_smaller_size():
    inner = Small(2)
    engine = Grouped(inner)
    x = torch.zeros(5)
    engine.map(lambda v: v + 1, x)
    inner.asked.clear()
    engine.map(lambda v: v + 1, x)
    assert inner.asked == [2, 2, 1]
    inner.asked.clear()
    engine.map(lambda v: v + 1, x[:2])
    assert inner.asked == [2]


def test_memory_that_shrinks_later():
    inner = Small(4)
    engine = Grouped(inner)
    x = torch.arange(5.0)
    engine.map(lambda v: v + 1, x)
    inner.most = 1
    assert torch.equal(engine.map(lambda v: v + 1, x), x + 1)
    assert engine.at_once(9) == 1


def test_not_even_one_replica():
    engine = Grouped(Small(0))
    with pytest.raises(DeviceError, match=r"even one replica.*device = 'cpu'") as caught:
        tiny_run(method("naive"), SEEDS, engine)
    assert "\n" not in str(caught.value)
    with pytest.raises(DeviceError):
        Grouped(Small(0)).map(lambda v: v, torch.zeros(1))


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), ValueError("no")])
def test_other_errors_pass(error):
    inner = Small(2, error)
    engine = Grouped(inner)
    with pytest.raises(type(error), match=str(error)):
        engine.map(lambda v: v, torch.zeros(5))
    assert inner.asked == [5]
    assert engine.at_once(5) == 5


def test_an_error_of_the_update_itself_passes():
    with pytest.raises(RuntimeError, match="must match the size"):
        Grouped().map(lambda v: v + torch.zeros(3), torch.zeros(5, 2))


def test_a_cpu_out_of_memory_counts():
    """PyTorch's own error, of an allocation that no machine grants."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert not isinstance(caught.value, torch.OutOfMemoryError)
    inner = Small(2, caught.value)
    x = torch.arange(5.0)
    assert torch.equal(Grouped(inner).map(lambda v: v + 1, x), x + 1)
    assert inner.asked == [5, 3, 2, 2, 1]


@pytest.mark.parametrize(
    "text",
    [
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.",
        "DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes.",
        "[Errno 12] Cannot allocate memory",
    ],
)
def test_its_texts(text):
    assert Grouped(Small(2, RuntimeError(text))).map(lambda v: v, torch.ones(5)).sum() == 5


def test_a_divergence_in_groups():
    """A replica that diverges is found in its group, and is the same as without groups."""
    rule = method("naive", optimiser="sgd", lr=1e200)
    first, second = (tiny_run(rule, SEEDS, e) for e in (Grouped(Small(2)), Batched()))
    assert first.diverged
    assert first.diverged == second.diverged
    assert_same(first, second)


def test_initial_weights_are_not_changed():
    model = tiny_model(tiny_stream())
    theta = initial(model, SEEDS)
    before = [leaf.clone() for leaf in leaves(theta)]
    Grouped(Small(2)).map(lambda t: t, theta)
    assert all(torch.equal(a, b) for a, b in zip(leaves(theta), before, strict=True))
