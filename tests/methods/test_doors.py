"""What a method may do beside its updates, each shown by a method of the package that does it.

Methods with what changes their state from outside (passes, schedules, options) run looped, batched
and interrupted too: the engines agree, and a run that goes on ends with the same bytes.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dpmcl
from conftest import interrupt, same_bits, tiny_stream
from dpmcl import Draw, Phase, State
from dpmcl.core.tree import leaves
from dpmcl.data.splits import split
from dpmcl.exceptions import SpecError
from dpmcl.methods.cls_er import CLSER
from dpmcl.methods.der import DER
from dpmcl.methods.derpp import DERpp
from dpmcl.methods.ewc import EWC
from dpmcl.methods.gdumb import GDumb
from dpmcl.methods.naive import Naive
from dpmcl.methods.replay import Replay

SEEN: list[Any] = []
"""What a method tells its test, in this process and with the looped engine."""

ROWS = 36  # training rows of a task
SETTINGS = {
    "dtype": "float64",
    "workers": 1,
    "network.hidden": 8,
    "training.batch": 5,
    "training.updates": 6,
    "training.lr": 0.05,
}


def options(method, engine="looped", network=None, **training):
    settings = {**SETTINGS, **{f"training.{key}": value for key, value in training.items()}}
    if network is not None:
        del settings["network.hidden"]
    return {
        "methods": [method], "replicas": 2, "settings": settings, "engine": engine,
        "network": network,
    }  # fmt: skip


def run(method, engine="looped", out=None, **training):
    """A method on the tiny stream, two replicas: its record and its final parameters."""
    SEEN.clear()
    result = dpmcl.run(tiny_stream(), out=out, **options(method, engine, **training))
    (record,), (theta,) = result.records.values(), result.theta.values()
    return record, theta


def spent(record):
    """The gradients evaluated for each replica."""
    first, second = record.work.values()
    assert first == second
    return first.gradient_evaluations


def assert_close(first, second):
    np.testing.assert_allclose(first[0].test.values, second[0].test.values, atol=1e-12)
    torch.testing.assert_close(first[1], second[1], rtol=1e-9, atol=1e-11)


@dataclass(frozen=True, kw_only=True)
class Exact(EWC):
    """The exact Fisher information, taken in one pass over a task's rows without a step."""

    fisher: str = "empirical"
    fisher_rows: int | None = None

    def end_of_task(self, state, model, task):
        ended = super().end_of_task(state, model, task)
        SEEN.append((model, state.theta, ended.extra["F"], task))
        return ended


@dataclass(frozen=True, kw_only=True)
class Noted(DER):
    """DER, which tells the notes that it takes and those that it gets back."""

    def notes(self, model, state, batch):
        notes = super().notes(model, state, batch)
        pairs = zip(batch.row.tolist(), notes["outputs"], strict=True)
        SEEN.extend(("noted", *pair) for pair in pairs)
        return notes

    def phases(self, model, task):
        (phase,) = super().phases(model, task)

        def update(state, batches, key):
            past = batches["past"]
            kept = zip(past.row.tolist(), past.notes["outputs"], past.w > 0, strict=True)
            SEEN.extend(("drawn", *row) for row in kept)
            return phase.update(state, batches, key)

        return [replace(phase, update=update)]


@dataclass(frozen=True, kw_only=True)
class Lagging(CLSER):
    """Steps as replay does; evaluated is a slow average of its parameters."""

    strength: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Prompt(Lagging):
    """With no inertia, the average is the model itself."""

    stable_decay: float = 0.0
    stable_chance: float = 1.0


class BeforeEvaluation(GDumb):
    """Only stores; before each evaluation a network is trained on the whole memory."""

    stores = "after"

    def phases(self, model, task):
        return []

    def evaluation_phases(self, model, task):
        (phase,) = super().phases(model, task)

        def update(state, batches, key):
            SEEN.append((task.number, batches["held"]))
            return phase.update(state, batches, key)

        draws = {"held": Draw("memory", self.memory, replace=False)}
        return [replace(phase, update=update, draws=draws)]


class AtEachTask(BeforeEvaluation):
    """The same network, trained at the task itself."""

    stores = "before"

    def phases(self, model, task):
        return super().evaluation_phases(model, task)

    def evaluation_phases(self, model, task):
        return ()


class Anew(Naive):
    """Returns states that it makes anew, of only what a method sets."""

    def phases(self, model, task):
        (phase,) = super().phases(model, task)

        def update(state, batches, key):
            return State(*phase.update(state, batches, key)[:3])

        def look(state, batches, key):
            return State(*state[:3])

        again = replace(phase, name="look", updates=2, update=look, trains=False)
        return [replace(phase, update=update), again]

    def end_of_task(self, state, model, task):
        return State(*state[:3])


OPTIONS = ["l2_init", {"name": "shrink_perturb", "shrink": 0.5}]
DECAYING = {"name": "adam", "weight_decay": 0.1}
CASES = {
    "notes and rows met on the way": (DERpp, {"passes": 2, "memory": 20}),
    "an average, weight decay and a schedule": (
        CLSER, {"optimiser": DECAYING, "schedule": "cosine"},
    ),
    "options": (Naive, {"options": OPTIONS, "updates": 52}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_engines_agree_and_an_interrupted_run_ends_with_the_same_bytes(case, tmp_path):
    method, training = CASES[case]
    whole = run(method, "batched", **training)
    assert np.isfinite(whole[0].test.values[:, -1]).all()
    assert_close(run(method, "looped", **training), whole)
    own = options(method, "batched", **training)
    interrupt(tiny_stream(), 2, out=tmp_path, checkpoint_seconds=0, **own)
    again = run(method, "batched", out=tmp_path, **training)
    assert np.array_equal(again[0].test.values, whole[0].test.values, equal_nan=True)
    assert same_bits(again[1], whole[1])
    assert again[0].work == whole[0].work


def test_a_pass_without_a_step_sees_every_row_once():
    """The Fisher information of the first task is that of a plain loop over its rows."""
    record, _ = run(Exact)
    model, theta, fisher, task = SEEN[0]
    assert (task.number, task.tasks, task.rows, task.input_shape) == (0, 3, ROWS, (2,))
    assert task.classes == ((0, 1), (2, 3), (4, 5))
    assert spent(record) == 3 * (6 + 8)  # 8 batches have 36 rows
    stream, expected = tiny_stream(), 0.0
    rows = split(stream, (0, 1), (0.6, 0.2, 0.2)).train.row[0, :ROWS]
    for row in rows.tolist():
        x, y = stream.x[[row]], stream.y[[row]]
        grads = torch.func.grad(lambda t, x=x, y=y: model.losses(model.predict(t, x), y)[0])(theta)
        expected += grads["prediction"]["2.weight"].square() / ROWS
    torch.testing.assert_close(fisher["prediction"]["2.weight"], expected)


def test_notes_come_back_with_the_rows_they_were_taken_of():
    run(Noted, passes=1, memory=1000)
    noted, drawn, tasks = {}, [], tiny_stream().task[0]
    for what, row, outputs, *present in SEEN:
        if what == "noted":
            noted.setdefault(row, []).append(outputs)
        elif present[0]:
            assert any(torch.equal(outputs, one) for one in noted[row])
            drawn.append((row, max(int(tasks[one]) for one in noted)))
    assert len(noted) > 3 * ROWS
    assert any(tasks[row] == newest == 0 for row, newest in drawn)  # before their task was over


def test_what_is_evaluated_is_the_method_s_to_say():
    plain, prompt, lagging = (run(method) for method in (Replay, Prompt, Lagging))
    assert same_bits(plain[1], prompt[1]) and same_bits(plain[1], lagging[1])
    assert np.array_equal(prompt[0].test.values, plain[0].test.values, equal_nan=True)
    assert not np.array_equal(lagging[0].test.values, plain[0].test.values, equal_nan=True)


def test_phases_before_an_evaluation_leave_no_trace_but_the_evaluation():
    record, theta = run(BeforeEvaluation, memory=12, updates=100)
    for task, batch in SEEN:
        count = torch.bincount(batch.y[batch.w > 0], minlength=6).tolist()
        classes = 2 * (task + 1)
        assert count == [12 // classes] * classes + [0] * (6 - classes)
    assert {task for task, _ in SEEN} == {0, 1, 2}
    assert record.test.after[:, -1].max() < 0.2  # all tasks, from twelve rows
    assert record.test.after[:, 0, 0].max() < 0.2  # and the first one before others come
    assert spent(record) == 3 * 100
    assert same_bits(theta, run(BeforeEvaluation, memory=12, updates=1)[1])


@pytest.mark.parametrize("engine", ["looped", "batched"])
def test_a_method_may_return_a_state_of_only_what_it_sets(engine):
    def modules(shape, outputs):
        return nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6)), nn.Linear(6, outputs)

    training = {"options": OPTIONS, "schedule": {"name": "step", "every": 4, "over": "run"}}
    plain, anew = (run(m, engine, network=modules, **training) for m in (Naive, Anew))
    assert same_bits(plain[1], anew[1])
    assert np.array_equal(plain[0].test.after, anew[0].test.after, equal_nan=True)


@pytest.mark.parametrize("schedule", ["cosine", {"name": "step", "every": 2, "over": "run"}])
def test_phases_before_an_evaluation_have_a_schedule_of_their_own(schedule):
    anew = {**schedule, "over": "task"} if isinstance(schedule, dict) else schedule
    evaluated, trained = run(BeforeEvaluation, schedule=schedule), run(AtEachTask, schedule=anew)
    assert np.array_equal(evaluated[0].test.after, trained[0].test.after, equal_nan=True)
    assert not same_bits(evaluated[1], trained[1])


def test_an_option_begins_each_task():
    still = {"optimiser": "sgd", "lr": 1e-30}
    _, start = run(Naive, **still)
    shrinking = {"name": "shrink_perturb", "shrink": 0.5}
    _, shrunk = run(Naive, options=[{**shrinking, "noise": 0}], **still)
    for a, b in zip(leaves(start), leaves(shrunk), strict=True):
        torch.testing.assert_close(0.5**3 * a, b, rtol=1e-12, atol=0)
    _, noisy = run(Naive, options=[shrinking], **still)
    assert not any(torch.equal(*pair) for pair in zip(leaves(shrunk), leaves(noisy), strict=True))


def test_what_is_not_understood_is_refused_by_name():
    with pytest.raises(SpecError, match="remember must name a draw of the new task's training"):
        Phase("train", 1, {"past": Draw("memory", 5)}, lambda *_: None, remember="past")
    for draw, message in (
        (("old", 5), "No source 'old'"),
        (("new", 0), "at least one row, got batch = 0"),
    ):
        with pytest.raises(SpecError, match=message):
            Draw(*draw)
    with pytest.raises(SpecError, match="No kind of moved 'estimate'"):
        Draw("new", 5, moved="estimate")
    for wrong, message in (
        ({"updates": 2.5}, "a whole number of updates, got 2.5"),
        (
            {"updates": 1, "steps_on": ["neu"]},
            "steps_on must name draws of phase 'train', got 'neu",
        ),
    ):
        with pytest.raises(SpecError, match=message):
            Phase("train", **wrong, draws={"new": Draw("new", 5)}, update=lambda *_: None)
    with pytest.raises(SpecError, match="No time to store rows, stores = 'during'"):
        type("Mine", (Naive,), {"stores": "during"})()
    with pytest.raises(SpecError, match="once = True ends after one pass"):
        Draw("new", 5, once=True)
    with pytest.raises(SpecError, match="draws rows by chance; a pass without replacement"):
        run(BeforeEvaluation, discount="exponential", discount_on="sampling")
    with pytest.raises(SpecError, match="option needs a name"):
        Naive(options=[{"strength": 1}])
