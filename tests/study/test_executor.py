"""Jobs give the same bytes in any process, and survive the death of a worker."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dpmcl
from conftest import TINY_SPEC, contents, run_study
from dpmcl.exceptions import DeviceError, Stopped
from dpmcl.results import store
from dpmcl.study import executor, runs
from dpmcl.study.result import Result
from dpmcl.training.job import Job, Trainer, read_stream
from dpmcl.training.keeper import Keeping
from dpmcl.training.spec import Spec

TABLE: dict[str, Any] = {
    **TINY_SPEC,
    "replicas": 3,
    "training": {"updates": 20, "batch": 8, "memory": 40},
    "methods": {"er": {}, "naive": {}},
}
RESULTS = ("errors.parquet", "work.json", "parameters/*/*.safetensors")


@pytest.fixture(autouse=True)
def start_workers_at_once(monkeypatch):
    """Start workers with the first job."""
    monkeypatch.setattr(executor, "WORTH_SECONDS", 0.0)


def run(folder: Path, keeping: Keeping | None = None, **changes: Any) -> Result:
    return run_study(Spec.parse({**TABLE, **changes}), folder, keeping=keeping)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A study run by one process in one call."""
    folder = tmp_path_factory.mktemp("whole")
    run(folder, workers=1)
    return folder


def test_bytes_depend_neither_on_processes_nor_on_pieces_nor_on_a_death(
    whole, tmp_path, monkeypatch
):
    """The first call runs one method; during the second, a worker dies in its first job.

    The calling process runs the jobs that were waiting. A third call runs the lost one.
    """
    run_job = executor._Worker._run_job
    jobs: list[Job] = []

    def kill(self: Any, assignment: executor.Assignment) -> None:
        jobs.append(assignment.job)
        os.kill(self._process.pid, signal.SIGKILL)
        run_job(self, assignment)

    monkeypatch.setattr(executor._Worker, "_run_job", kill)
    run(tmp_path, workers=1, methods={"naive": {}})
    with pytest.raises(DeviceError, match="while it trained er, most likely"):
        run(tmp_path, workers=2)
    assert len(jobs) == 1
    (lost,) = jobs[0].seeds
    assert set(store.load(tmp_path).records["er"].test.seeds) == {0, 1, 2} - {lost}
    run(tmp_path, workers=1)
    expected = contents(whole, *RESULTS)
    assert len(expected) == 2 + 6
    assert contents(tmp_path, *RESULTS) == expected


@pytest.mark.parametrize(
    ("engine", "replicas", "sizes"),
    [("looped", 3, [1, 1, 1]), ("batched", 10, [10]), ("batched", 20, [10, 10]),
     ("batched", 50, [13, 13, 13, 11])],
)  # fmt: skip
def test_the_size_of_groups(engine, replicas, sizes):
    spec = Spec.parse({**TABLE, "engine": engine, "replicas": replicas, "methods": {"er": {}}})
    jobs = Trainer(spec, read_stream(spec, spec.seeds[:1])).jobs()
    assert [len(job.seeds) for job in jobs] == sizes
    assert [seed for job in jobs for seed in job.seeds] == list(spec.seeds)


def test_all_stop_when_told_and_keep_checkpoints(tmp_path):
    started: set[str] = set()

    def progress(method: str, done: int, total: int) -> None:
        started.update({method} - {runs.ALL})
        if len(started) == 1:  # leave the processor to the worker that is starting
            time.sleep(0.1)

    training = {**TABLE["training"], "updates": 100_000}
    spec = Spec.parse({**TABLE, "replicas": 1, "workers": 2, "training": training})
    keeping = Keeping(1e9, stop=lambda: len(started) > 1)  # both processes are at work
    with pytest.raises(Stopped):
        run_study(spec, tmp_path, progress=progress, keeping=keeping)
    methods = {path.parts[-3] for path in tmp_path.glob("checkpoints/*/*/*.safetensors")}
    assert methods == {"er", "naive"}


def test_a_worker_ends_when_its_parent_has_ended():
    command = [sys.executable, "-c", executor._COMMAND.format(path=sys.path)]
    assert subprocess.run(command, stdin=subprocess.DEVNULL, timeout=120).returncode == 0


DIVERGES = {"optimiser": "sgd", "lr": 1e200}


def test_an_error_in_a_worker_ends_the_run_with_its_line(tmp_path):
    methods = {"er": {}, "naive": DIVERGES}
    with pytest.raises(dpmcl.DpmclError, match=r"naive.* is not finite after update"):
        run(tmp_path, workers=2, replicas=1, on_divergence="stop", methods=methods)
    assert list(store.load(tmp_path).records) == ["er"]  # the job of this process


def test_a_stream_made_in_python_goes_to_workers_and_their_lines_come_back(log_lines):
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    stream = dpmcl.Stream.from_arrays(x, (x[:, 0] > 0).long())
    settings = {"training.updates": 20, "training.batch": 4, "engine": "looped"}
    methods = {"naive": DIVERGES, "er": {}}  # the first seed here, the second in a worker
    with_worker, without = (
        dpmcl.run(stream, methods=methods, replicas=2, settings={**settings, "workers": workers})
        for workers in (2, 1)
    )
    for name in methods:
        np.testing.assert_array_equal(with_worker.errors[name].values, without.errors[name].values)
    assert sorted(log_lines[:2]) == log_lines[2:]
    assert [
        ("naive" in line, f"seed {seed}" in line) for seed, line in enumerate(log_lines[2:])
    ] == [
        (True, True),
        (True, True),
    ]


def test_replicas_that_do_not_fit_are_trained_in_halves(monkeypatch):
    spec = Spec.parse({**TABLE, "engine": "batched", "methods": {"er": {}}})
    trainer = Trainer(spec, read_stream(spec, spec.seeds[:1]))
    (job,) = trainer.jobs()
    whole = trainer.run(job, Keeping())
    make_setup, tried = Trainer.setup, []

    def setup(self: Trainer, job: Job) -> Any:
        tried.append(job.seeds)
        if len(job.seeds) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return make_setup(self, job)

    monkeypatch.setattr(Trainer, "setup", setup)
    parts = trainer.run(job, Keeping())
    assert tried == [(0, 1, 2), (0, 1), (0,), (1,), (2,)]
    torch.testing.assert_close(
        parts.state.theta["prediction"], whole.state.theta["prediction"], rtol=1e-3, atol=1e-4
    )
    monkeypatch.setattr(Trainer, "setup", lambda *_: setup(trainer, job))
    with pytest.raises(DeviceError):
        trainer.run(Job("er", (0,)), Keeping())
