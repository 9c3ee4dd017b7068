"""A run goes on as if it had never stopped: killed at any moment, or stopped at any segment."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dpmcl
from benchmarks import resume_check
from benchmarks.resume_check import Case
from conftest import TWO_LOOPS, interrupt, tiny_run
from dpmcl import plugins
from dpmcl.engine import Batched, Looped
from dpmcl.exceptions import Stopped
from dpmcl.results.record import Divergence
from dpmcl.training.checkpoints import Checkpoints, Origin
from dpmcl.training.keeper import Keeper, Keeping

SEEDS = (0, 1)
SEGMENTS = {"derpp": 5, "cls_er": 3, "ewc": 4}
"""Of a task, for methods with notes of rows that enter on the way, copies and a second phase."""
ANYWHERE = ("er", "oml", "anml", "dpmcl", *SEGMENTS)
"""Methods that are stopped at each segment; cml has the phases of oml, and naive no memory."""
ENGINES = {"batched": Batched, "looped": Looped}


def test_killed_at_twenty_moments_the_results_are_the_same_bytes(tmp_path):
    """Two streams, each on one engine, with dropout and a memory that drops rows.

    The tests below stop every method.
    """
    methods = ("er", "oml")
    cases = [Case("digits", "batched", methods), Case("sine", "looped", methods)]
    kills, wrong, _ = resume_check.check(20, cases, 0, tmp_path)
    assert len(kills) == 20
    assert [sum(kill.case == case for kill in kills) for case in cases] == [10, 10]
    assert wrong
    assert not any(wrong.values()), wrong
    assert any(kill.resumed for kill in kills), kills


class Stop:
    """Asks for a stop at the `at`-th question, counted from 1; 0 never does."""

    def __init__(self, at: int = 0) -> None:
        self.at, self.calls = at, 0

    def __call__(self) -> bool:
        self.calls += 1
        return self.calls == self.at


def method_of(name: str, **changes: Any) -> Any:
    """Phases of three segments of two, or two; a memory of a fifth of a task's rows."""
    settings = {"batch": 4, "updates": 5, "memory": 7, "optimiser": "adam", **changes}
    if name in TWO_LOOPS:
        settings = {**settings, "n_meta": 5, "n_grad": 3}
    return plugins.find("method", name)(**settings, **({"zeta": 1} if name == "dpmcl" else {}))


def trained(
    method: Any,
    root: Path,
    stop: Callable[[], bool],
    engine: str = "batched",
) -> Any:
    """Two tasks, two replicas, kept in `root`."""
    root.mkdir(exist_ok=True)
    (root / "spec.toml").touch()
    origin = Origin("m", SEEDS, "", engine, "cpu")
    keeper = Keeper(Keeping(1e9, stop), Checkpoints(root, origin))
    return tiny_run(method, SEEDS, ENGINES[engine](), tasks=2, dropout=0.3, keeper=keeper)


def assert_same(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual.theta, expected.theta, rtol=0, atol=0)
    for name, errors in expected.errors.items():
        np.testing.assert_array_equal(actual.errors[name].values, errors.values)
    assert (actual.work, actual.diverged) == (expected.work, expected.diverged)


def assert_stops_anywhere(method: Any, tmp_path: Path, engine: str, *, late: bool = False) -> int:
    """Stops at each question, or each after the first task, and compares; how many there were."""
    never = Stop()
    whole = trained(method, tmp_path / "whole", never, engine)
    for at in range(never.calls // 2 if late else 1, 1 + never.calls):
        with pytest.raises(Stopped):
            trained(method, tmp_path / str(at), Stop(at), engine)
        again = Stop()
        assert_same(trained(method, tmp_path / str(at), again, engine), whole)
        assert again.calls == never.calls - at  # it went on, and did not begin anew
    return never.calls


@pytest.mark.parametrize("name", ANYWHERE)
def test_stopped_between_any_two_segments_nothing_changes(name, tmp_path, monkeypatch):
    monkeypatch.setattr("dpmcl.training.loop.UPDATES_AT_ONCE", 2)
    settings = {"fisher_rows": 8} if name == "ewc" else {}
    method = method_of(name, **settings)
    calls = assert_stops_anywhere(method, tmp_path, "batched", late=name != "er")
    segments = SEGMENTS.get(name, 5 if name in TWO_LOOPS else 3)
    assert calls == 2 * (segments + 1)  # between segments, and after each of two tasks


@pytest.mark.parametrize("name", sorted({*plugins.names("method")} - {*ANYWHERE}))
def test_every_other_method_goes_on_too(name, tmp_path, monkeypatch):
    """Stopped in the second task, with what it keeps beside the network and the rows."""
    monkeypatch.setattr("dpmcl.training.loop.UPDATES_AT_ONCE", 2)
    never, method = Stop(), method_of(name)
    whole = trained(method, tmp_path / "whole", never, "looped")
    with pytest.raises(Stopped):
        trained(method, tmp_path / "run", Stop(never.calls - 1), "looped")
    again = Stop()
    assert_same(trained(method, tmp_path / "run", again, "looped"), whole)
    assert again.calls == 1


@pytest.mark.parametrize(("policy", "reset"), [("reservoir", True), ("resample", False)])
def test_a_memory_and_an_optimiser_come_back(policy, reset, tmp_path, monkeypatch):
    monkeypatch.setattr("dpmcl.training.loop.UPDATES_AT_ONCE", 2)
    method = method_of("er", memory_policy=policy, reset_at_task=reset, optimiser="adagrad")
    assert_stops_anywhere(method, tmp_path, "looped", late=True)


def test_a_frozen_replica_stays_frozen(tmp_path, monkeypatch):
    """Both diverge in the first task; their errors and where it was are kept."""
    monkeypatch.setattr("dpmcl.training.loop.UPDATES_AT_ONCE", 2)
    method = method_of("naive", optimiser="sgd", lr=1e200)
    whole = trained(method, tmp_path / "first", Stop())
    assert set(whole.diverged) == set(SEEDS)
    assert all(isinstance(where, Divergence) for where in whole.diverged.values())
    assert_stops_anywhere(method, tmp_path, "batched")


def test_more_replicas_after_an_interruption(tmp_path, log_lines):
    """Jobs are cut from the seeds asked for: an old job's checkpoint is named, and not used."""
    table = resume_check.spec("sine", "batched", ["er"])
    often = {"out": tmp_path / "run", "checkpoint_seconds": 0.0}
    interrupt(table, lambda _, done, total: done == total / 2, **often)  # after a task
    more = {**table, "replicas": 3}
    dpmcl.run(more, out=tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints" / "er" / "0-1"
    assert log_lines == [
        f"{folder} holds checkpoints of an earlier version, or of seeds that train in other groups "
        "now; they are not used."
    ]
    dpmcl.run(more, out=tmp_path / "whole")
    assert resume_check.results(tmp_path / "run") == resume_check.results(tmp_path / "whole")
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_an_end_between_the_results_and_the_removal_of_checkpoints(tmp_path, monkeypatch):
    """The next call trains nothing, and tidies up."""
    table = resume_check.spec("sine", "batched", ["er"])

    def leave(_: Checkpoints) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Checkpoints, "clear", leave)
        dpmcl.run(table, out=tmp_path / "run", checkpoint_seconds=0.0)
    before = resume_check.results(tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints").exists()
    calls: list[Any] = []
    dpmcl.run(table, out=tmp_path / "run", progress=lambda *c: calls.append(c))
    assert calls == []
    assert resume_check.results(tmp_path / "run") == before
    assert not (tmp_path / "run" / "checkpoints").exists()
