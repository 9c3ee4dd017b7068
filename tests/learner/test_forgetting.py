"""What a learner says of its past: errors on rows held out, a limit, and the way back."""

import math
import sys

import numpy as np
import pytest
from test_learner import CLOUDS, NAMES, make_learner, parameters

from conftest import refused
from dpmcl import DpmclError, Learner, SpecError
from dpmcl.theory import terms


def test_the_report_has_the_errors_on_rows_held_out(tmp_path, monkeypatch):
    learner = make_learner(method="naive", holdout=0.2, updates=60)
    for rows in np.split(np.arange(60), 3):
        learner.learn(CLOUDS[rows], NAMES[rows])
    report = learner.report()
    assert learner._known.rows == 48
    assert [(line.first, line.last, line.rows) for line in report.lines] == [
        (k, k, 4) for k in range(3)
    ]
    assert [line.then for line in report.lines] == [0, 0, 0]
    assert [line.now for line in report.lines] == [1, 1, 0]  # naive forgets all but the last class
    assert (report.nte, report.forgetting) == (0, 1)
    assert report.cme == pytest.approx(2 / 3)
    assert repr(report).endswith("CME 0.667, NTE 0, forgetting 1")
    assert report.to_pandas().now.tolist() == [1, 1, 0]
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "pandas", None)
        refused(report.to_pandas, "pip install 'pandas'", error=DpmclError)
    learner.save(tmp_path)
    assert Learner.load(tmp_path).report() == report
    learner.save(tmp_path, memory=False)
    refused(Learner.load(tmp_path).report, "holdout=0.1", error=SpecError)


def test_the_share_held_out_is_that_of_every_chunk():
    learner = make_learner(holdout=0.1, updates=1, memory=5)
    for row in range(50):  # of one row each, none of which can be held out
        learner.learn(CLOUDS[row : row + 1], NAMES[row : row + 1])
    learner.learn(CLOUDS[:40], NAMES[:40])
    assert learner._known.held_out == 4
    learner = make_learner(
        method="oml", n_meta=1, n_grad=1, memory=5, validation=0.5, holdout=0.1
    )  # fmt: skip
    for chunk in range(1, 4):
        learner.learn(CLOUDS[:40], NAMES[:40])
        assert learner._known.held_out == 4 * chunk


def test_groups_are_merged_and_their_rows_bounded():
    learner, rng = make_learner(holdout=0.5, updates=1, memory=5), np.random.default_rng(0)
    for _ in range(45):
        learner.learn(rng.normal(size=(30, 3)), rng.integers(0, 2, 30))
    lines = learner.report().lines
    assert len(lines) == 20
    assert [line.first for line in lines] == [0, *(line.last + 1 for line in lines[:-1])]
    assert lines[-1].last == 44
    assert max(line.rows for line in lines) <= 50
    assert learner._known.held_out == 45 * 15


def test_then_and_now_of_merged_groups_are_errors_on_the_same_rows(tmp_path):
    learner, rng = make_learner(holdout=0.5, updates=1, lr=1e-12), np.random.default_rng(0)
    for k in range(30):  # short chunks and long ones, whose errors differ, and nothing is forgotten
        rows = slice(0, 6) if k % 2 else slice(None)
        learner.learn(CLOUDS[rows], rng.permuted(NAMES[rows]) if k % 2 else NAMES[rows])
    report = learner.report()
    assert any(line.last > line.first for line in report.lines)
    assert len({line.then for line in report.lines}) > 1
    assert [line.then for line in report.lines] == [line.now for line in report.lines]
    assert report.forgetting == 0
    learner.save(tmp_path)
    assert Learner.load(tmp_path).report() == report


def test_a_chunk_that_costs_too_much_is_told_and_taken_back(log_lines):
    learner = make_learner(method="naive", holdout=0.2, forgetting_limit=0.1, updates=60)
    learner.learn(CLOUDS[:40], NAMES[:40])
    before, shares = parameters(learner), learner.predict_proba(CLOUDS)
    learner.learn(CLOUDS[40:], NAMES[40:])
    assert [
        line
        for line in log_lines
        if line.startswith("Chunk 1 raised the error on earlier chunks by 1;")
    ] == log_lines
    assert len(log_lines) == 1
    learner.undo()
    assert (learner.predict_proba(CLOUDS) == shares).all()
    assert all((a == b).all() for a, b in zip(before, parameters(learner), strict=True))
    refused(learner.undo, "once", error=SpecError)
    assert (
        repr(make_learner().learn(CLOUDS, NAMES).undo()) == "Learner(replay, mlp, nothing learned)"
    )


def test_a_chunk_is_scored_before_it_is_learned():
    learner = make_learner(updates=60)
    assert math.isnan(learner.score_then_learn(CLOUDS[:40], NAMES[:40]))
    assert learner.score_then_learn(CLOUDS[40:], NAMES[40:]) == 1  # a class that is new
    assert learner.score_then_learn(CLOUDS, NAMES) < 0.1


@pytest.mark.parametrize("method", ["er", "naive", "derpp", "dpmcl"])
def test_watching_moves_no_bit(method):
    settings = {"method": method, "holdout": 0.2, "updates": 20, "optimiser": "sgd", "lr": 0.05}
    plain, watched = make_learner(**settings), make_learner(**settings, monitor="stability")
    for rows in np.split(np.arange(60), 3):
        for learner in (plain, watched):
            learner.learn(CLOUDS[rows], NAMES[rows])
    assert all((a == b).all() for a, b in zip(*map(parameters, (plain, watched)), strict=True))
    assert [line.broken for line in plain.report().lines] == [None] * 3
    assert "theory" not in repr(plain.report())
    assert watched.report().lines[1].broken == ()
    assert repr(watched.report()).count("  holds") >= 1


def test_the_report_has_what_the_monitor_found(tmp_path):
    """A step that promises more than twice the cost is told, also by the learner's folder."""
    large = make_learner(holdout=0.2, updates=1, optimiser="sgd", lr=30.0, monitor="stability")
    large.learn(CLOUDS, NAMES)
    assert "step" in large.report().lines[0].broken
    assert repr(large.report()).split("\n")[1].endswith("step broke")
    large.save(tmp_path)
    again = Learner.load(tmp_path)
    assert again.report() == large.report()
    again.learn(CLOUDS, NAMES)
    assert again.report().lines[1].broken is not None


def test_j_past_is_of_rows_that_the_memory_holds(monkeypatch):
    """Of one row, in a memory with room for more: none of the empty slots is read as a row."""
    seen = []

    def spying(sensitivity):
        def spy(model, theta, b_N, b_P, **more):
            seen.append((b_P.x.clone(), b_P.w.clone()))
            return sensitivity(model, theta, b_N, b_P, **more)

        return spy

    monkeypatch.setattr(terms, "sensitivity", spying(terms.sensitivity))
    learner = make_learner(holdout=0.2, updates=2, monitor="stability", memory=500, engine="looped")
    learner.learn(CLOUDS[:20], NAMES[:20])
    assert all((w == 0).all() for _, w in seen)
    before = {tuple(x) for x in learner._known.held.x.tolist()}
    seen.clear()
    learner.learn(CLOUDS[20:40], NAMES[20:40])
    rows = [tuple(x) for batch, _ in seen for x in batch.double().tolist()]
    rounded = {tuple(np.float32(x).tolist()) for x in before}
    assert {*rows} <= rounded
    assert len({*rows}) > 5
    assert all((w == 1).all() for _, w in seen)


def test_without_rows_held_out_both_are_refused():
    refused(make_learner().learn(CLOUDS, NAMES).report, "holdout=0.1", error=SpecError)
    refused(lambda: make_learner(forgetting_limit=0.1), "holdout=0.1", error=SpecError)
    refused(lambda: make_learner(monitor="stability"), "holdout=0.1", error=SpecError)
    refused(lambda: make_learner(monitor="terms", holdout=0.1), "'stability'", error=SpecError)
    refused(lambda: make_learner(holdout=1.0), "less than 1", error=SpecError)
    refused(lambda: make_learner(holdout="x"), "must be a valid number", error=SpecError)
    refused(lambda: make_learner(holdout=0.5).learn(CLOUDS[:0], NAMES[:0]), "no rows")
