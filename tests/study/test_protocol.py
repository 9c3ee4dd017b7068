"""Methods that break a rule of a fair comparison are caught."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

import dpmcl
from conftest import TINY_SPEC, invoke
from dpmcl.core import memory
from dpmcl.core.errors import Errors
from dpmcl.core.gradients import Work
from dpmcl.exceptions import SpecError
from dpmcl.methods.er import ER
from dpmcl.methods.naive import Naive
from dpmcl.results import store
from dpmcl.results.record import Divergence, Record
from dpmcl.study.budget import Budget
from dpmcl.study.protocol import check


class Reads(Naive):
    """Trains on other rows."""

    def phases(self, model, task):
        (phase,) = super().phases(model, task)
        draw = dpmcl.Draw(self.rows[0], self.batch, split=self.rows[1])
        return [replace(phase, draws=dict.fromkeys(phase.draws, draw))]


class ReadsTestRows(Reads):
    rows = "all", "test"


class ReadsValidationRows(Reads):
    """Does not declare it."""

    rows = "new", "validation"


@dataclass(frozen=True, kw_only=True)
class ReadsTheFuture(ER):
    """Keeps rows that were not offered: the last ones of the stream."""

    def policy(self, memory_, offer, key):
        updated = memory.add(memory_, offer, key, "reservoir")
        return updated._replace(position=updated.position + 180)


@dataclass(frozen=True, kw_only=True)
class WorksLonger(Naive):
    """Makes more updates after the first task."""

    def phases(self, model, task):
        (phase,) = super().phases(model, task)
        return [replace(phase, updates=phase.updates * (1 + 3 * task.number))]


@dataclass(frozen=True, kw_only=True)
class TrainsToBeEvaluated(Naive):
    """Makes most of its updates on the copy that is evaluated."""

    def evaluation_phases(self, model, task):
        (phase,) = self.phases(model, task)
        return [replace(phase, updates=3 * phase.updates)]


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (ReadsTestRows, "no method may learn from test rows"),
        (ReadsTheFuture, "has rows of tasks that are still to come"),
        (ReadsValidationRows, "set trains_on_validation = True"),
    ],
)
@pytest.mark.parametrize("engine", ["batched", "looped"])
def test_rows_that_training_may_not_see_are_refused(method, message, engine):
    with pytest.raises(SpecError, match=message):
        dpmcl.run({**TINY_SPEC, "replicas": 2}, methods=[method], engine=engine)


@pytest.mark.parametrize(("method", "rows"), [("WorksLonger", 320), ("TrainsToBeEvaluated", 256)])
def test_a_budget_covers_later_tasks_and_evaluations(method, rows, tmp_path):
    words = f"run digits --method {__name__}:{method} --method er --tasks 2 --replicas 1"
    words += f" --sweep training.lr=0.1,0.2 --budget rows=320 --out {tmp_path}"
    invoke(*words.split())
    protocols = json.loads((tmp_path / "protocol.json").read_text())
    *_, last = protocols["lr=0.1"]["rules"]
    assert last == {"rule": "No method took more than rows=320", "violations": []}
    assert protocols["lr=0.1"]["budget"] == "rows=320" and protocols["lr=0.2"]["passed"]
    record = store.load(tmp_path / "lr=0.1").records[f"{__name__}:{method}"]
    assert record.work[0].rows_backpropagated == 2 * rows


def test_a_budget_that_is_overspent_is_told():
    errors = Errors((7,), np.full((1, 3, 2), 0.5), np.array([[5, 6]]))
    spent = Work(rows_backpropagated=700, copies_bytes=9)
    record = Record({"test": errors}, {7: spent})
    for text, amount in (("rows=320", "350 rows a task, and 320"), ("bytes=8", "9 bytes, and 8")):
        rule = check({"er": record}, 2, Budget.parse(text)).rules[-1]
        assert rule.violations == [f"er: it took {amount} were allowed."]
        assert check({"er": record}, 2, Budget.parse("flops=1")).to_table()["passed"]


def test_a_run_has_a_protocol_too_and_remembers_its_budget(tmp_path):
    words = f"run digits --method er --method naive --tasks 2 --replicas 1 --out {tmp_path}"
    invoke(*words.split(), "--budget", "rows=64")
    first = store.load(tmp_path).protocol
    assert first is not None and first.budget == "rows=64" and first.to_table()["passed"]
    dpmcl.run(tmp_path, replicas=2)
    assert store.load(tmp_path).protocol == first


def test_other_test_rows_and_other_times_are_told():
    def record(rows: Sequence[int], values: Mapping[tuple[int, int], float] = {}) -> Record:
        errors = np.full((1, 3, 2), 0.5)
        errors[0, 1, 1] = np.nan
        for place, value in values.items():
            errors[(0, *place)] = value
        return Record({"test": Errors((7,), errors, np.array([rows]))})

    fair = {"a": record((5, 6)), "b": record((5, 6))}

    def violations(**more: Record) -> list[str]:
        rules = check({**fair, **more}, 2).rules
        return [line for rule in rules for line in rule.violations]

    assert violations() == []
    (line,) = violations(c=record((5, 7)))
    assert line == "c and a, seed 7: they were tested on other rows."
    (line,) = violations(d=record((5, 6), {(1, 1): 0.1}))
    assert line == "d and a, seed 7: they were tested at other times."
    gone = record((5, 6), {(2, 0): np.nan, (2, 1): np.nan})
    gone = replace(gone, diverged={7: Divergence(1, 0, 1)})
    assert violations(z=gone) == []  # missing errors of a diverged replica break no rule


@dataclass(frozen=True, kw_only=True)
class LooksAhead(Naive):
    """Trains on the rows of the next task that follow those of the new one."""

    def phases(self, model, task):
        (phase,) = super().phases(model, task)
        ahead = dpmcl.Draw("new", self.batch, like="new", moved="exact")

        def update(state, batches, key):
            return phase.update(state, {"new": batches["ahead"]}, key)

        return [replace(phase, draws={**phase.draws, "ahead": ahead}, update=update)]


def test_methods_that_learn_from_the_next_task_are_named(tmp_path):
    table = {
        "stream": {"name": "oscillator", "tasks": 2, "trajectories": 5, "samples": 1},
        "network": {"hidden": 4},
        "replicas": 1,
        "training": {"updates": 1, "batch": 2},
        "methods": {"er": {}, "dpmcl": {"fourth_term": "exact", "zeta": 0}},
    }
    dpmcl.run(table, methods=["er", "dpmcl", LooksAhead], out=tmp_path)
    first, *others = store.load(tmp_path).protocol.rules
    assert first.violations == [
        f"{name}: it learned from rows of the next task (moved = 'exact')."
        for name in ("dpmcl", f"{__name__}:LooksAhead")
    ]
    assert not any(rule.violations for rule in others)
