"""Gradients are autograd's, and what they cost is counted where it is asked for."""

from dataclasses import dataclass

import pytest
import torch

import dpmcl
from conftest import tiny_model, tiny_stream
from dpmcl.core.batch import Batch
from dpmcl.core.gradients import Work, count_rows, counting, gradient
from dpmcl.core.model import initial
from dpmcl.core.tree import at, leaves, tree_map
from dpmcl.data.sampling import Draw
from dpmcl.methods._method import Phase
from dpmcl.methods.naive import Naive


@pytest.fixture
def problem():
    stream = tiny_stream()
    model = tiny_model(stream)
    theta = at(initial(model, [0]), 0)
    row = torch.arange(0, 60, 5)
    w = torch.ones(len(row), dtype=torch.float64)
    return model, theta, Batch(stream.x[row], stream.y[row], w, stream.y[row] // 2)


def test_the_gradient_is_autograds(problem):
    model, theta, batch = problem
    grads, value = gradient(model.cost)(theta, batch)
    own = tree_map(lambda leaf: leaf.clone().requires_grad_(), theta)
    cost = model.cost(own, batch)
    cost.backward()
    torch.testing.assert_close(value, cost.detach(), rtol=1e-14, atol=0)
    for found, leaf in zip(leaves(grads), leaves(own), strict=True):
        torch.testing.assert_close(found, leaf.grad, rtol=1e-12, atol=1e-14)
        assert leaf.grad.abs().sum() > 0


def test_the_gradient_at_another_argument():
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 5.0])
    grads, value = gradient(lambda a, b: (a**2 * b).sum(), argnums=1)(a, b)
    assert grads.tolist() == [1.0, 4.0]
    assert value == 23.0


def test_the_gradient_at_two_arguments():
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 5.0])
    grads, _ = gradient(lambda a, b: (a**2 * b).sum(), argnums=(0, 1))(a, b)
    assert grads[0].tolist() == [6.0, 20.0]
    assert grads[1].tolist() == [1.0, 4.0]


def test_a_gradient_of_a_gradient():
    def slope(a):
        return gradient(lambda b: (b**3).sum())(a)[0].sum()

    grads, value = gradient(slope)(torch.tensor([2.0]))
    assert grads.tolist() == [12.0]
    assert value == 12.0


def test_counting_counts_gradients_and_their_rows(problem):
    model, theta, batch = problem
    with counting() as work:
        for _ in range(3):
            gradient(model.cost)(theta, batch)
    assert work == Work(gradient_evaluations=3, rows_backpropagated=3 * 12)


def test_rows_without_a_gradient_are_not_counted(problem):
    model, theta, batch = problem
    with counting() as work:
        model.cost(theta, batch)
    assert work == Work(0, 0)


def test_counting_counts_nested_gradients_too(problem):
    model, theta, batch = problem

    def after_a_step(theta):
        grads, _ = gradient(model.cost)(theta, batch)
        stepped = tree_map(lambda p, g: p - 0.1 * g, theta, grads)
        return model.cost(stepped, batch)

    with counting() as work:
        gradient(after_a_step)(theta)
    assert work == Work(gradient_evaluations=2, rows_backpropagated=2 * 12)


def test_rows_after_a_nested_gradient_still_count():
    def cost(a):
        gradient(lambda b: (b**2).sum())(a)
        count_rows(5)
        return (a**2).sum()

    with counting() as work:
        gradient(cost)(torch.ones(2))
    assert work == Work(2, 5)


def test_nothing_is_counted_outside(problem):
    model, theta, batch = problem
    with counting() as work:
        pass
    gradient(model.cost)(theta, batch)
    assert work == Work(0, 0)


def test_an_inner_count_does_not_reach_the_outer_one():
    step = gradient(lambda a: (a**2).sum())
    with counting() as outer:
        step(torch.ones(1))
        with counting() as inner:
            step(torch.ones(1))
            step(torch.ones(1))
        step(torch.ones(1))
    assert (outer.gradient_evaluations, inner.gradient_evaluations) == (2, 2)


def test_a_failed_gradient_leaves_no_trace():
    def fail(a):
        raise ValueError("no cost")

    with counting() as work:
        with pytest.raises(ValueError, match="no cost"):
            gradient(fail)(torch.ones(1))
        count_rows(9)
    assert work.rows_backpropagated == 0


def test_rows_that_are_mapped_count_each(problem):
    model, _, batch = problem
    theta = initial(model, [0, 1, 2])
    with counting() as work:
        grads, value = torch.func.vmap(gradient(model.cost), in_dims=(0, None))(theta, batch)
    assert work == Work(1, 3 * 12)
    assert value.shape == (3,)
    alone, _ = gradient(model.cost)(at(theta, 2), batch)
    for many, one in zip(leaves(grads), leaves(alone), strict=True):
        torch.testing.assert_close(many[2], one, rtol=1e-11, atol=1e-13)


@dataclass(frozen=True, kw_only=True)
class Mapped(Naive):
    """Naive, with the gradient of each row taken by itself."""

    how: str = "vmap"

    def phases(self, model, task):
        def update(state, batches, key):
            def of_one(row):
                alone = tree_map(lambda leaf: leaf[None], row)
                return gradient(model.cost)(state.theta, alone, key[0])[0]

            def of_weights(w):
                return gradient(model.cost)(state.theta, batch._replace(w=w), key[0])[0]

            batch = batches["new"]
            if self.how == "vmap":
                grads = torch.func.vmap(of_one)(batch)
            elif self.how == "nested":
                halves = tree_map(lambda leaf: leaf.unflatten(0, (2, -1)), batch)
                grads = torch.func.vmap(torch.func.vmap(of_one))(halves)
                grads = tree_map(lambda leaf: leaf.flatten(0, 1), grads)
            elif self.how == "chunks":
                grads = torch.func.vmap(of_one, chunk_size=3)(batch)
            elif self.how == "loop":
                each = [of_one(at(batch, row)) for row in range(self.batch)]
                grads = tree_map(lambda *leaf: torch.stack(leaf), *each)
            else:  # a row at a time by its weight: each of 32 gradients sees all 32 rows
                grads = torch.func.vmap(of_weights)(torch.eye(self.batch))
            return self.descend(state, tree_map(lambda leaf: leaf.mean(0), grads))

        return [Phase("train", self.updates, {"new": Draw("new", self.batch)}, update)]


@pytest.mark.parametrize("engine", ["looped", "batched"])
@pytest.mark.parametrize("how", ["vmap", "nested", "chunks", "loop", "weights"])
def test_gradients_of_rows_count_every_row(how, engine):
    updates, batch = (5, 32)
    settings = {
        "training.updates": updates,
        "training.batch": batch,
        "network.hidden": 4,
        "workers": 1,
        "methods": {f"{__name__}:Mapped": {"how": how}},
    }
    stream = dpmcl.Stream.from_arrays(torch.rand(40, 3), [0, 1] * 20, classes_per_task=2)
    result = dpmcl.run(stream, methods=[Mapped], replicas=3, engine=engine, settings=settings)
    (record,) = result.records.values()
    rows = updates * batch * (batch if how == "weights" else 1)
    assert [work.rows_backpropagated for work in record.work.values()] == [rows] * 3
