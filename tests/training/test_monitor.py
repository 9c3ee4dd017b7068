"""Watching: it moves nothing, resumes, is stored beside the errors, and may end a replica."""

import itertools
import json

import numpy as np
import pytest

import dpmcl
from conftest import run_study, same_bits, tiny_run
from dpmcl import plugins
from dpmcl.engine import Batched, Looped
from dpmcl.exceptions import DivergenceError, FolderError, Stopped
from dpmcl.methods._method import Phase
from dpmcl.training.keeper import Keeping
from dpmcl.training.monitor import MonitorSettings, readings_due
from dpmcl.training.spec import Spec

SEEDS, UPDATES, TASKS = (0, 1), 12, 2
BOTH = ("terms", "stability")
PAPER = ("naive", "er", "dpmcl", "oml", "cml", "anml", "joint")
"""Methods of which the batched engine is tried without a monitor too."""
SPEC = {
    "replicas": 2,
    "stream": {"name": "digits", "tasks": TASKS},
    "network": {"name": "mlp", "hidden": 8},
    "training": {"updates": UPDATES, "batch": 8, "lr": 0.05},
    "methods": {"er": {}, "dpmcl": {"zeta": 2}},
    "device": "cpu",
}


def settings_of(**changes):
    return MonitorSettings(**{"watch": BOTH, "interval": 5, "rows": 8, **changes})


def trained(name="er", monitor=None, engine=None, **settings):
    method = plugins.find("method", name)(
        **{"batch": 8, "updates": UPDATES, "memory": 30, "lr": 0.05, **settings}
    )
    monitor = monitor or MonitorSettings()
    return tiny_run(method, SEEDS, engine, tasks=TASKS, dropout=0.2, monitor=monitor)


@pytest.mark.parametrize("name", plugins.names("method"))
def test_watching_moves_nothing_and_reads_the_same_in_both_engines(name):
    few = {} if name in PAPER else {"updates": 4}
    both = [trained(name, settings_of(), engine(), **few) for engine in (Looped, Batched)]
    for engine, watched in zip((Looped, Batched)[: 1 + (name in PAPER)], both, strict=False):
        plain = trained(name, engine=engine(), **few)
        assert same_bits(plain.theta, watched.theta)
        values = [out.errors["test"].values for out in (plain, watched)]
        assert np.array_equal(*values, equal_nan=True)
        assert plain.work == watched.work
        assert plain.readings is None
    readings, batched = (watched.readings for watched in both)
    assert np.isfinite(readings.values).all()
    assert np.allclose(readings.values, batched.values, rtol=1e-6, atol=1e-9)
    assert np.allclose(readings["J"], readings["J_N"] + readings["J_P"])
    assert (readings["J_P"][:, [p[0] == 0 for p in readings.positions]] == 0).all()
    assert (readings["J_P"][:, [p[0] == 1 for p in readings.positions]] > 0).all()
    assert (np.abs(readings["decrease"]) <= readings["J_theta"] * readings["dtheta"] * 1.001).all()
    assert (np.abs(readings["increase"]) <= readings["reach"] * 1.001 + 1e-12).all()


def test_readings_come_first_last_and_at_the_interval():
    phase = Phase("p", 12, {}, lambda *_: None)
    assert readings_due(0, phase, 5) == [0, 5, 10, 11]
    assert readings_due(1, phase, 5) == [5, 10, 11]
    assert readings_due(0, phase, 100) == [0, 11]
    assert readings_due(1, phase, 100) == [11]
    assert readings_due(0, phase, 1) == list(range(12))
    assert readings_due(0, Phase("p", 0, {}, lambda *_: None), 5) == []
    places = trained(monitor=settings_of()).readings.positions
    assert places == tuple((t, 0, u) for t in range(TASKS) for u in (0, 5, 10, 11))


def test_a_reading_is_of_the_update_that_comes_next():
    readings = trained(monitor=settings_of(interval=1), optimiser="sgd").readings
    # The norm of theta before update u + 1 lies within the step of the one before update u.
    theta, step = readings["theta"], readings["dtheta"]
    assert (np.abs(np.diff(theta, axis=1)) <= step[:, :-1] + 1e-12).all()
    assert (np.abs(np.diff(theta, axis=1)).max(1) > 0).all()


def test_what_is_not_asked_for_is_not_computed():
    readings = trained(monitor=settings_of(watch=("stability",))).readings
    for name in ("J_PN_ahead", "third_difference", "fourth_difference"):
        assert np.isnan(readings[name]).all()
    assert np.isfinite(readings["dV_dt"]).all()


def test_conditions_are_said_once_and_only_with_stability(log_lines):
    trained(monitor=settings_of(watch=("terms",), beta=1e-3))
    assert not log_lines
    trained(monitor=settings_of(beta=1e-3))
    assert sum(line.startswith("cost: ") for line in log_lines) == 1
    assert any(line.startswith("discount: ") for line in log_lines)
    log_lines.clear()
    trained(monitor=settings_of(beta=1e3))  # the first of the conditions holds
    named = {line.partition(":")[0] for line in log_lines}
    assert "cost" not in named
    assert "inputs" in named
    assert all("\n" not in line for line in log_lines)


def study(folder, keeping=None, **changes):
    table = {**SPEC, "monitor": {"watch": list(BOTH), "interval": 5, "rows": 8}, **changes}
    return run_study(Spec.parse(table), folder, keeping=keeping)


def test_a_grown_run_keeps_its_readings_whatever_the_interval(tmp_path):
    live = study(tmp_path / "run").readings["er"]
    first = dpmcl.load(tmp_path / "run").readings["er"]
    assert (first.seeds, first.positions) == (SEEDS, live.positions)
    assert np.array_equal(first.values, live.values)
    monitor = {"watch": ["stability"], "interval": 3}
    grown = study(tmp_path / "run", replicas=3, monitor=monitor).readings["er"]
    old = [grown.positions.index(position) for position in first.positions]
    assert np.array_equal(grown.values[:2, old], first.values)
    new = [i for i, position in enumerate(grown.positions) if position[2] in (0, 3, 6, 9, 11)]
    assert np.isfinite(grown["J"][2, new]).all()


def test_a_run_stopped_anywhere_resumes_with_the_same_readings(tmp_path):
    change = {"methods": {"dpmcl": {"zeta": 2}}}
    whole = study(tmp_path / "whole", **change).readings["dpmcl"]
    for at in (5, 9):  # of 16 questions: within a task, after one
        calls = itertools.count(1)
        folder = tmp_path / f"stopped-{at}"
        with pytest.raises(Stopped):
            study(folder, Keeping(1e9, stop=lambda calls=calls, at=at: next(calls) == at), **change)
        resumed = study(folder, **change).readings["dpmcl"]
        assert np.array_equal(whole.values, resumed.values, equal_nan=True), at


def test_what_watching_cannot_do_is_said(tmp_path, log_lines):
    study(tmp_path / "run", monitor={})
    study(tmp_path / "run", monitor={"watch": ["terms"]})
    assert log_lines == [
        f"{name}: has run already, and was not watched; to watch it, choose another folder "
        "with --out."
        for name in ("er", "dpmcl")
    ]


def test_a_folder_is_kept_to_what_may_end_its_replicas_and_not_to_what_looks_on(tmp_path):
    frozen = {"beta": 1e6, "interval": 5, "exceeding": "freeze"}
    study(tmp_path / "run", monitor=frozen)
    study(tmp_path / "run", replicas=3, monitor={**frozen, "watch": ["terms"], "zeta": 1})
    with pytest.raises(FolderError, match=r"monitor\.beta = 1000000\.0, got 2\.0"):
        study(tmp_path / "run", replicas=4, monitor={**frozen, "beta": 2.0})
    with pytest.raises(FolderError, match=r"monitor\.exceeding = 'freeze', got 'say'"):
        study(tmp_path / "run", replicas=4)


def test_a_replica_above_beta_for_too_long_is_frozen(log_lines):
    out = trained(monitor=settings_of(watch=(), beta=1e-6, patience=3, exceeding="freeze"))
    assert set(out.diverged) == set(SEEDS)
    assert all("has J above beta for too long after update 11" in line for line in log_lines)
    assert len(log_lines) == len(SEEDS)
    assert out.diverged[0] == (0, 0, 11, "cost")  # the third reading is before update 11, from 1
    assert np.isnan(out.errors["test"].after[:, 1]).all()
    calm = trained(monitor=settings_of(watch=(), beta=1e6, exceeding="freeze"))
    assert not calm.diverged
    assert same_bits(calm.theta, trained().theta)


def test_a_short_excess_freezes_nothing():
    plain = trained(monitor=settings_of()).readings["J"]
    beta = 1.001 * float(plain.min(1).max())  # each replica has a reading that does not exceed it
    assert (plain > beta).sum() > plain.size / 2
    patience = len(plain[0])
    out = trained(monitor=settings_of(beta=beta, patience=patience, exceeding="freeze"))
    assert not out.diverged


def test_frozen_for_its_cost_is_stored_and_resumed(tmp_path):
    monitor = {"beta": 1e-6, "interval": 5, "exceeding": "freeze"}
    with pytest.raises(DivergenceError, match=r"J above beta for too long .* raise monitor\.beta"):
        study(tmp_path / "stop", monitor={**monitor, "exceeding": "stop"})
    study(tmp_path / "run", monitor=monitor)
    diverged = dpmcl.load(tmp_path / "run").records["er"].diverged
    assert {where.cause for where in diverged.values()} == {"cost"}
    stored = json.loads((tmp_path / "run" / "divergence.json").read_text("utf-8"))
    assert stored["er"]["0"]["cause"] == "cost"
    calls = itertools.count(1)
    with pytest.raises(Stopped):
        study(tmp_path / "two", Keeping(1e9, stop=lambda: next(calls) == 5), monitor=monitor)
    study(tmp_path / "two", monitor=monitor)
    assert dpmcl.load(tmp_path / "two").records["er"].diverged == diverged
