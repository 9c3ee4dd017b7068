"""Jobs give the same bytes in any process, and survive what happens to a worker."""

import json
import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import dpmcl
from dpmcl.exceptions import DeviceError, Stopped
from dpmcl.results import store
from dpmcl.study import executor, study
from dpmcl.training.job import Job, Trainer, read
from dpmcl.training.keeper import Keeping
from dpmcl.training.spec import Spec

TABLE: dict[str, Any] = {
    "seed": 0,
    "replicas": 3,
    "stream": {"name": "digits", "tasks": 2},
    "network": {"name": "mlp", "hidden": 8},
    "training": {"updates": 60, "batch": 8, "memory": 40},
    "methods": {"er": {}, "naive": {}},
    "engine": "looped",
}
RESULTS = ("errors.parquet", "work.json", "parameters/*/*.safetensors")


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Workers are started with the first job."""
    monkeypatch.setattr(executor, "WORTH_SECONDS", 0.0)


def results(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for pattern in RESULTS
        for path in sorted(folder.glob(pattern))
    }


def run(folder: Path, keeping: Keeping | None = None, **changes: Any) -> study.Result:
    return study.run(Spec.parse({**TABLE, **changes}), folder, keeping=keeping)


def test_bytes_do_not_depend_on_the_number_of_workers(tmp_path):
    for workers in (1, 2, 4):
        run(tmp_path / str(workers), workers=workers)
    one = results(tmp_path / "1")
    assert len(one) == 2 + 6
    assert results(tmp_path / "2") == one
    assert results(tmp_path / "4") == one


def test_jobs_are_cut_from_the_seeds_asked_for(tmp_path):
    """A folder completed in pieces holds the bytes of one run."""
    run(tmp_path / "whole", workers=1)
    run(tmp_path / "pieces", workers=1, methods={"naive": {}})
    run(tmp_path / "pieces", workers=2)
    assert results(tmp_path / "pieces") == results(tmp_path / "whole")


@pytest.mark.parametrize(
    ("engine", "replicas", "sizes"),
    [("looped", 3, [1, 1, 1]), ("batched", 10, [10]), ("batched", 20, [10, 10]),
     ("batched", 50, [13, 13, 13, 11])],
)  # fmt: skip
def test_the_size_of_groups(engine, replicas, sizes):
    spec = Spec.parse({**TABLE, "engine": engine, "replicas": replicas, "methods": {"er": {}}})
    jobs = Trainer(spec, read(spec, spec.seeds[:1])).jobs()
    assert [len(job.seeds) for job in jobs] == sizes
    assert [seed for job in jobs for seed in job.seeds] == list(spec.seeds)


def test_a_worker_that_dies_loses_its_job_and_no_other(tmp_path, monkeypatch):
    """The first job of a worker is; the next call trains it."""
    real = executor._Worker._pass_on
    killed: list[Job] = []

    def kill(self: Any, job: Job) -> None:
        if not killed:
            killed.append(job)
            os.kill(self._process.pid, signal.SIGKILL)
        real(self, job)

    monkeypatch.setattr(executor._Worker, "_pass_on", kill)
    with pytest.raises(DeviceError, match=r"while it trained (er|naive), most likely"):
        run(tmp_path / "run", workers=2)
    records = store.load(tmp_path / "run").records
    (lost,) = killed
    done = {(name, seed) for name, record in records.items() for seed in record.test.seeds}
    assert done == {(n, s) for n in TABLE["methods"] for s in range(3)} - {
        (lost.method, *lost.seeds)
    }
    run(tmp_path / "run", workers=1)
    run(tmp_path / "whole", workers=1)
    assert results(tmp_path / "run") == results(tmp_path / "whole")


def test_all_stop_when_told_and_go_on(tmp_path):
    started: list[str] = []

    def watch(method: str, done: int, total: int) -> None:
        started.append(method)

    spec = Spec.parse({**TABLE, "workers": 2, "training": {**TABLE["training"], "updates": 3000}})
    keeping = Keeping(1e9, stop=lambda: len(set(started)) > 1)  # both processes are at work
    with pytest.raises(Stopped):
        study.run(spec, tmp_path / "run", watch, keeping=keeping)
    kept = {path.parts[-3] for path in (tmp_path / "run").glob("checkpoints/*/*/*.safetensors")}
    assert kept == {"er", "naive"}


def test_an_error_in_a_worker_ends_the_run_with_its_line(tmp_path):
    changes = {"training": {"updates": 60, "batch": 8, "optimiser": "sgd", "lr": 1e200}}
    with pytest.raises(dpmcl.DpmclError, match="is not finite after update"):
        run(tmp_path / "run", workers=2, on_divergence="stop", **changes)


def test_lines_of_workers_are_logged(tmp_path, caplog):
    changes = {"training": {"updates": 20, "batch": 8, "optimiser": "sgd", "lr": 1e200}}
    with caplog.at_level(logging.WARNING, "dpmcl"):
        run(tmp_path / "run", workers=2, **changes)
    frozen = {line.split(":")[0] + line.split("seed ")[1][0] for line in caplog.messages}
    assert frozen == {f"{name}{seed}" for name in TABLE["methods"] for seed in range(3)}


def test_a_stream_made_in_python_goes_to_workers(tmp_path):
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    stream = dpmcl.Stream.from_arrays(x, (x[:, 0] > 0).long())
    settings = {"training.updates": 20, "training.batch": 4, "engine": "looped"}
    found = [
        dpmcl.run(stream, methods=["er", "naive"], replicas=2, settings={**settings, "workers": n})
        for n in (1, 2)
    ]
    for name in ("er", "naive"):
        assert (found[0].errors[name].values == found[1].errors[name].values)[:, 1:, 0].all()


def test_a_replica_s_seeds_are_one_entry_of_the_environment(tmp_path):
    run(tmp_path, workers=1)
    entries = json.loads((tmp_path / "environment.json").read_text())
    assert [(e["method"], e["seeds"]) for e in entries] == [("er", [0, 1, 2]), ("naive", [0, 1, 2])]


def test_replicas_that_do_not_fit_are_trained_in_halves(monkeypatch):
    spec = Spec.parse({**TABLE, "engine": "batched", "methods": {"er": {}}})
    trainer = Trainer(spec, read(spec, spec.seeds[:1]))
    (job,) = trainer.jobs()
    whole = trainer.run(job, Keeping())
    real, tried = Trainer.setup, []

    def setup(self: Trainer, job: Job) -> Any:
        tried.append(job.seeds)
        if len(job.seeds) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return real(self, job)

    monkeypatch.setattr(Trainer, "setup", setup)
    parts = trainer.run(job, Keeping())
    assert tried == [(0, 1, 2), (0, 1), (0,), (1,), (2,)]
    torch.testing.assert_close(
        parts.theta["prediction"], whole.theta["prediction"], rtol=1e-3, atol=1e-4
    )
    monkeypatch.setattr(Trainer, "setup", lambda *_: setup(trainer, job))
    with pytest.raises(DeviceError):
        trainer.run(Job("er", (0,)), Keeping())
