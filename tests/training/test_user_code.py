"""An error in a user's method names the user's line; batched, it says what batching forbids."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from conftest import complaint, tiny_run
from dpmcl import Draw, Phase, gradient
from dpmcl.core.tree import tree_map
from dpmcl.engine import Batched, Looped
from dpmcl.exceptions import ModelError, SpecError
from dpmcl.methods.er import ER
from dpmcl.methods.naive import Naive
from dpmcl.testing import check_method
from dpmcl.training.user_code import batching_advice


class Branches(Naive):
    """Looks at a value, which only one replica at a time allows, and fails in any case."""

    def phases(self, model, task):
        def update(state, batches, key):
            if batches["new"].x.sum() > -1e9 and task.number:
                raise KeyError("soft")
            return state

        return [replace(phase, update=update) for phase in super().phases(model, task)]


@pytest.mark.parametrize(
    ("engine", "line", "way_out"),
    [
        (Looped, 'raise KeyError("soft")', "KeyError: 'soft'. Mend it there."),
        (Batched, 'if batches["new"]', "a branch on a tensor's value (use torch.where)"),
    ],
)
def test_the_users_line_is_named_with_the_way_out(engine, line, way_out):
    run = partial(tiny_run, Branches(updates=2, batch=4), engine=engine(), tasks=2)
    where, text = (
        f"The update of 'Branches' fails at {__file__}, line ",
        complaint(run, error=ModelError),
    )
    assert text.startswith(where)
    number = int(text.removeprefix(where).split(":")[0])
    assert line in Path(__file__).read_text("utf-8").splitlines()[number - 1]
    assert way_out in text


RETURNING = ("start", "notes", "policy", "end_of_task", "evaluated", "prepare")
DOORS = ("start", "phases", "evaluation_phases", "notes", "policy", "end_of_task", "evaluated",
         "remark")  # fmt: skip


@pytest.mark.parametrize("engine", [Looped, Batched])
@pytest.mark.parametrize("door", DOORS)
def test_so_is_that_of_whatever_else_a_method_does(door, engine):
    def fail(*arguments):
        raise KeyError(door)

    method = type("Fails", (ER,), {door: fail})
    with pytest.raises(ModelError) as caught:
        tiny_run(method(updates=2, batch=4), engine=engine(), tasks=2)
    text = str(caught.value)
    assert text.startswith(f"`{door}` of 'Fails' fails at {__file__}, line ")
    assert text.endswith(f"KeyError: '{door}'. Mend it there.")


@pytest.mark.parametrize("engine", [Looped, Batched])
@pytest.mark.parametrize("door", RETURNING)
def test_what_returns_nothing_is_named(door, engine):
    method = type("Fails", (ER,), {door: lambda *_: None})
    with pytest.raises(ModelError, match=rf"^`{door}` of 'Fails' must return a \w+, got None"):
        tiny_run(method(updates=2, batch=4), engine=engine(), tasks=2)


@pytest.mark.parametrize("engine", [Looped, Batched])
def test_an_update_without_a_return_is_named(engine):
    def phases(self, model, task):
        return [replace(*ER.phases(self, model, task), update=lambda *_: None)]

    method = type("Fails", (ER,), {"phases": phases})
    with pytest.raises(ModelError, match=r"^The update of 'Fails' must return a State, got None"):
        tiny_run(method(updates=2, batch=4), engine=engine(), tasks=2)


@pytest.mark.parametrize("result", [None, Phase("train", 1, {}, lambda state, *_: state)])
def test_phases_are_a_list(result):
    method = type("Fails", (ER,), {"phases": lambda *_: result})
    with pytest.raises(SpecError, match=r"must be a list of dpmcl\.Phase, got"):
        tiny_run(method(updates=2, batch=4), tasks=2)


class Draws(Naive):
    """Multiplies by a number of NumPy's, which a batched engine draws once for all."""

    def phases(self, model, task):
        def update(state, batches, key):
            factor = np.random.uniform(0.9, 1.1)  # noqa: NPY002
            return state._replace(theta=tree_map(lambda leaf: leaf * factor, state.theta))

        return [replace(phase, update=update) for phase in super().phases(model, task)]


@pytest.mark.parametrize("engine", [Looped, Batched])
def test_draws_from_a_global_generator_are_told(engine, log_lines):
    tiny_run(Naive(updates=2, batch=4), engine=engine(), tasks=2)
    assert log_lines == []
    tiny_run(Draws(updates=2, batch=4), engine=engine(), tasks=2)
    assert ["draws from a global random generator" in line for line in log_lines] == [True]


class Uncounted(Naive):
    """Takes its gradients from PyTorch."""

    def phases(self, model, task):
        def update(state, batches, key):
            grads = torch.func.grad(model.cost)(state.theta, batches["new"], key[0])
            return self.descend(state, grads)

        return [replace(phase, update=update) for phase in super().phases(model, task)]


def test_gradients_that_are_not_counted_are_told(log_lines):
    tiny_run(Uncounted(updates=2, batch=4), tasks=2)
    assert ["through dpmcl.gradient" in line for line in log_lines] == [True]
    with pytest.raises(AssertionError, match=r"its gradients are counted"):
        check_method(Uncounted(updates=2, batch=4))


class Unweighted(Naive):
    """Takes the mean over all rows of b_P, also over those of weight 0."""

    def phases(self, model, task):
        def update(state, batches, key):
            def cost(theta):
                rows = batches["past"]
                return model.losses(model.predict(theta, rows.x, key[0], w=rows.w), rows.y).mean()

            return self.descend(state, *gradient(cost)(state.theta))

        draws = {"past": Draw("earlier", self.batch)}
        return [Phase("train", self.updates, draws, update)]


def test_rows_that_are_absent_but_used_are_told(log_lines):
    tiny_run(Unweighted(updates=2, batch=4), tasks=2)
    assert ["uses rows of weight 0" in line for line in log_lines] == [True]
    with pytest.raises(AssertionError, match=r"rows of weight 0, .*, change nothing"):
        check_method(Unweighted(updates=2, batch=4))


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
        (lambda x: x + torch.ones(3), "one_hot without a number of classes, a draw"),
    ],
)
def test_the_sentence_names_what_was_done(function, says):
    with pytest.raises(RuntimeError) as caught:
        torch.func.vmap(function)(torch.ones(3, 2))
    line = batching_advice(caught.value)
    assert says in line
    assert line.endswith("use engine = 'looped' (--engine looped).")
    assert "\n" not in line
