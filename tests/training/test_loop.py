"""The loop over tasks, phases and segments goes on from anywhere; observers look on in order."""

from dataclasses import replace

import pytest
import torch

from conftest import own_rows_stream, refused, setup_of, tiny_model, tiny_stream
from dpmcl.core.tree import leaves
from dpmcl.exceptions import SpecError
from dpmcl.methods.naive import Naive
from dpmcl.methods.oml import OML
from dpmcl.training import loop
from dpmcl.training.checks import check
from dpmcl.training.observer import Observer
from dpmcl.training.setup import Setup
from dpmcl.training.state import Position


@pytest.fixture
def setup(monkeypatch) -> Setup:
    """Two tasks, each of 4 and 5 updates, in segments of three."""
    monkeypatch.setattr(loop, "UPDATES_AT_ONCE", 3)
    stream = tiny_stream(2)
    method = OML(batch=4, n_meta=5, n_grad=4, memory=7, optimiser="adam", lr=0.05)
    return setup_of(method, stream, (3, 1), model=tiny_model(stream, dropout=0.2))


class Recorder(Observer):
    """Notes each call, and keeps the states that a checkpoint may hold."""

    def __init__(self, name, calls):
        self.name, self.calls, self.runs = name, calls, []

    def _note(self, call, run):
        self.calls.append((self.name, call, tuple(run.position)))
        self.runs += [run] if call != "before" else []
        return run

    def stop(self, setup, position, last):
        return min(last, 2) if self.name == "two" and position.update < 2 else last

    begin = lambda self, setup, run: self._note("begin", run)  # noqa: E731
    before_segment = lambda self, setup, run: self._note("before", run)  # noqa: E731
    after_segment = lambda self, setup, run, segment: self._note("after", run)  # noqa: E731
    after_task = lambda self, setup, run: self._note("task", run)  # noqa: E731


def test_learn_task_goes_on_from_any_position_to_the_same_bytes(setup):
    observer = Recorder("one", [])
    whole = loop.train(setup, [observer])
    assert len({run.position for run in observer.runs}) == 11
    for run in observer.runs:
        while run.position.task < 2:
            task = run.position.task
            run = loop.learn_task(setup, run)
            assert run.position == Position(task + 1)
        assert run.work == whole.work
        trees = (leaves((tuple(r.replicas), r.memories)) for r in (run, whole))
        assert all(torch.equal(a, b) for a, b in zip(*trees, strict=True))


@pytest.mark.parametrize(("over", "updates"), [("task", 9), ("run", 18)])
def test_a_schedule_is_as_long_as_a_task_or_the_run(setup, over, updates):
    lengths = []

    class Noting(OML):
        def begin_task(self, state, start, length, keys):
            lengths.append(length)
            return super().begin_task(state, start, length, keys)

    schedule = {"name": "cosine", "over": over}
    method = Noting(batch=4, n_meta=5, n_grad=4, memory=7, schedule=schedule)
    loop.train(replace(setup, method=method), [])
    assert lengths == [updates] * 4  # two tasks of two replicas


def test_observers_are_called_in_order_and_may_end_a_segment_early(setup):
    calls: list = []
    loop.train(setup, [Recorder("one", calls), Recorder("two", calls)])
    assert [name for name, *_ in calls] == ["one", "two"] * (len(calls) // 2)
    expected = [("begin", (0, 0, 0))]
    for task in range(2):
        for phase, updates in ((0, 4), (1, 5)):
            for first, last in ((0, 2), (2, 3), (3, updates)):
                expected += [("before", (task, phase, first)), ("after", (task, phase, last))]
        expected.append(("task", (task + 1, 0, 0)))
    assert [(call, where) for name, call, where in calls if name == "two"] == expected
    assert [setup.updates_before(Position(*p)) for p in ((0, 1, 2), (1,), (2,))] == [6, 9, 18]


def test_a_pass_has_the_same_updates_in_all_replicas():
    """Else a replica beside one with more rows would begin a second pass."""
    stream = own_rows_stream([[15, 30], [30, 15]])
    made = setup_of(Naive(passes=1, batch=4), stream)
    refused(lambda: check(made), "task 0 ('task 0') has 9 to 18", "updates", error=SpecError)
    check(replace(made, method=Naive(batch=4)))


def test_a_discount_that_ignores_the_newest_task_is_told(setup, log_lines):
    window = {"name": "window", "width": 1, "by": "time"}
    for method in (
        OML(updates=2, discount=window),
        OML(updates=2, discount=window | {"by": "age"}),
    ):
        loop.train(replace(setup, method=method, name="oml"))
    loop.train(replace(setup, method=OML(updates=2, discount=window, discount_on="sampling")))
    (line,) = log_lines
    assert line.startswith("oml: the discount gives task 1 ('") and "weight 0" in line
