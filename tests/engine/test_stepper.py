"""Updates on a CPU run as they are at first, then traced: same bytes, and nothing else changes."""

from functools import partial

import pytest
import torch

from conftest import TWO_LOOPS, tiny_run
from dpmcl import plugins
from dpmcl.core.batch import Batch
from dpmcl.core.tree import leaves
from dpmcl.engine import Batched, Looped
from dpmcl.engine.same_function import is_same
from dpmcl.engine.stepper import Stepper
from dpmcl.methods._method import State


def engine(name: str, after: int | None):
    if name == "looped":
        return Looped(Stepper(trace_after=after))
    return Batched(stepper=Stepper(torch.func.vmap, trace_after=after))


SETTINGS: dict[str, list[dict]] = {
    "er": [{"optimiser": "adam"}, {"optimiser": {"name": "sgd", "momentum": 0.9}}],
    "dpmcl": [{"third_term": term} for term in ("first", "exact", "off")],
    **{name: [{"reading": "nested", "inner": 2, "optimiser": "adam"}] for name in TWO_LOOPS},
}
"""Settings beside the default ones, which test_engine.py has for every method."""


@pytest.mark.parametrize(
    ("engine_name", "name", "options"),
    [("looped", name, options) for name, several in SETTINGS.items() for options in several]
    + [("batched", name, {}) for name in ("er", "dpmcl", "cls_er", "la_maml", *TWO_LOOPS)],
    ids=str,
)
def test_a_traced_update_gives_the_same_bytes(engine_name, name, options):
    method = plugins.find("method", name)(batch=4, updates=5, memory=20, **options)
    seeds = (0,) if engine_name == "looped" else (0, 1)
    plain, quick = (
        tiny_run(method, seeds, engine(engine_name, after), tasks=2, dropout=0.2)
        for after in (None, 2)
    )
    torch.testing.assert_close(plain.theta, quick.theta, rtol=0, atol=0)
    assert (plain.errors["test"].after[:, 1] == quick.errors["test"].after[:, 1]).all()


def run(stepper: Stepper, update, state: State, steps: int) -> State:
    return stepper.run(update, state, (({}, torch.zeros(1, 2)) for _ in range(steps)))


def a_state(*values: float, extra=()) -> State:
    return State({"p": {"w": torch.tensor(values)}}, {"p": {"w": {}}}, tuple(extra))


def test_results_that_share_memory_are_told_apart():
    """Where they are one, the next update writes into what it is still to read."""
    ones = torch.ones(2)

    def update(state, batches, key):
        other, one = state.extra
        new = (one + state.theta["p"]["w"]) * other
        return State({"p": {"w": new}}, state.optimiser, (new[:], ones))

    state = a_state(1.0, 2.0, extra=[torch.full((2,), 2.0), ones.clone()])
    after = run(Stepper(trace_after=0), update, state, 4)
    assert state.theta["p"]["w"].tolist() == [1.0, 2.0]  # the given state stays as it is
    values = [leaf.tolist() for leaf in (*leaves(after.theta), *after.extra)]
    assert values == [[176_820, 3_263_442], [176_820, 3_263_442], [1, 1]]


@pytest.mark.parametrize(
    ("moved", "trace_after", "expected", "why"),
    [
        (lambda w, x: w + 1 if w.sum() < 5 else w * 2, 1, [10.0], ""),  # a branch on a value
        (lambda w, x: w + x.tolist()[0], 2, [15.0], "its operations depend on values."),
        (lambda w, x: torch.cat([w, w]), 0, [0.0] * 64, "it changes the shapes of its state."),
    ],
)
def test_what_cannot_be_traced_is_left_as_it_is_and_told(moved, trace_after, expected, why, caplog):
    def update(state, batches, key):
        return state._replace(theta={"p": {"w": moved(state.theta["p"]["w"], batches["new"].x)}})

    numbers = [torch.tensor([float(n)]) for n in range(6)]
    steps = [({"new": Batch(x, x, x, x)}, torch.zeros(1, 2)) for x in numbers]
    with caplog.at_level("INFO", "dpmcl"):
        after = Stepper(trace_after=trace_after).run(update, a_state(0.0), steps)
    assert after.theta["p"]["w"].tolist() == expected
    (line,) = caplog.messages
    assert line.startswith(f"An update is not traced, and runs slower: {why}")


def test_one_trace_serves_updates_that_do_the_same():
    method = plugins.find("method", "oml")(batch=4, updates=12, reading="nested", inner=2)
    made = []

    class Counting(Stepper):
        def _find(self, update, shapes):
            known = super()._find(update, shapes)
            if known not in made:
                made.append(known)
            return known

    tiny_run(method, (0, 1, 2), Looped(Counting(trace_after=2)), tasks=3)
    assert len(made) == 1
    assert made[0].traced is not None
    assert made[0].runs == 3 * 3 * 6


def closure(value, scale=1.0):
    def inner(x):
        return x * scale + value

    return inner


def recursive(depth):
    def again(x):
        return x if depth == 0 else again(x - depth)

    return again


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (closure(1), closure(1), True),
        (closure(1), closure(2), False),
        (closure(1), closure(1.0), False),
        (closure(closure(1)), closure(closure(1)), True),
        (closure([1]), closure([1]), False),
        (closure(torch.ones(1)), closure(torch.ones(1)), False),
        (closure(torch.nn.Linear(1, 1)), closure(torch.nn.Linear(1, 1)), False),
        (recursive(2), recursive(2), True),
        (recursive(2), recursive(3), False),
        (partial(closure, 1), partial(closure, 1), True),
        (partial(closure, 1), partial(closure, 2), False),
        ("a".upper, "a".upper, False),
        (plugins.find("method", "er")(lr=0.1), plugins.find("method", "er")(lr=0.1), True),
        (plugins.find("method", "er")(lr=0.1), plugins.find("method", "er")(lr=0.2), False),
    ],
)
def test_sameness(a, b, expected):
    assert is_same(a, b) is expected
