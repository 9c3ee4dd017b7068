"""Jobs on Ray give the same bytes as jobs without it, whichever process dies."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from filelock import FileLock

from conftest import contents, invoke
from dpmcl.exceptions import DivergenceError, SpecError
from dpmcl.results import store
from dpmcl.study import runs
from dpmcl.training.keeper import Keeping
from dpmcl.training.spec import Spec

ray = pytest.importorskip("ray")

TABLE = {
    "stream": {"name": "digits", "tasks": 3},
    "methods": ["er"],
    "replicas": 2,
    "network": {"hidden": 8},
    "training": {"updates": 150, "batch": 8},
    "engine": "looped",
}
STUDY = """
stream = {name = "digits", tasks = 3}
methods = ["er"]
replicas = 1
network = {hidden = 8}
training = {updates = 150, batch = 8}
engine = "looped"
[axes]
"training.lr" = [0.01, 0.1]
"""


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """Ray with two workers, for all tests that do not start their own.

    The tests run in several processes, and two clusters on two cores would starve each other. By
    default Ray's workers have the priority 15, and would also wait for all other tests.
    """
    lock = FileLock(Path(tempfile.gettempdir()) / "dpmcl-test-ray.lock")
    with lock, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        # "local" starts a new cluster; another one may run on this machine.
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield
        ray.shutdown()


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, bytes]:
    """Results of a run without Ray."""
    folder = tmp_path_factory.mktemp("whole")
    runs.run_all(planned_runs(folder))
    return results(folder)


def planned_runs(folder: Path, **changes: Any) -> list[runs.Planned]:
    return [runs.Planned(Spec.parse({**TABLE, **changes}), folder)]


def results(folder: Path) -> dict[str, bytes]:
    return contents(folder, "errors.parquet", "work.json", "*.safetensors", "tuned.toml")


def workers(process: psutil.Process) -> list[psutil.Process]:
    """Child processes that are Ray's workers and have a job."""
    children = process.children(recursive=True)
    return [p for p in children if p.is_running() and "ray::_train" in "".join(p.cmdline())]


def wait(condition, seconds: float = 300) -> None:
    for _ in range(int(seconds / 0.02)):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


def has_checkpoint(folder: Path) -> bool:
    """Return True if a job has a complete checkpoint: a second one was begun."""
    return bool(list(folder.rglob("00000002.safetensors")))


def test_a_worker_that_dies_goes_on_from_its_checkpoint(whole, tmp_path, log_lines):
    folder, killed = tmp_path / "run", []

    def kill() -> None:
        wait(lambda: has_checkpoint(folder))
        killed.extend(workers(psutil.Process()))
        for worker in killed:  # one of them wrote it
            worker.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    runs.run_all(planned_runs(folder), keeping=Keeping(0), on="ray")
    killer.join()
    assert killed
    assert results(folder) == whole
    assert any("goes on from its last checkpoint" in line for line in log_lines)
    assert any(entry["resumed"] for entry in store.environment(folder))
    assert not (folder / "checkpoints").exists()


def test_the_driver_of_a_study_may_die(tmp_path):
    file, storage = tmp_path / "mine.toml", tmp_path / "kept"
    file.write_text(STUDY)
    words = ["study", str(file), "--out", str(tmp_path / "run")]
    on_ray = ["--checkpoint", "0", "--on", "ray", "--storage", str(storage)]
    command = [sys.executable, "-m", "dpmcl", *words, *on_ray]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    wait(lambda: has_checkpoint(storage) or first.poll() is not None)
    assert first.poll() is None, first.stderr.read()
    children = psutil.Process(first.pid).children(recursive=True)
    first.kill()
    first.wait()
    for process in children:  # Ray itself would end only a while after its driver
        if process.is_running():
            os.kill(process.pid, signal.SIGKILL)
    assert list(storage.rglob("*.safetensors"))
    invoke(*words, *on_ray)
    invoke(*words[:3], tmp_path / "here")
    assert results(tmp_path / "run") == results(tmp_path / "here")
    entries = [store.environment(path.parent) for path in (tmp_path / "run").glob("*/spec.toml")]
    assert any(entry["resumed"] for run_entries in entries for entry in run_entries)
    assert not list(storage.iterdir()) and not list(tmp_path.glob("run/*/storage"))


def test_a_search_on_ray_is_that_without(tmp_path):
    words = "tune digits --method er --vary training.lr=0.000001,0.01 --tasks 2"
    words += " --set training.updates=20 --set network.hidden=8 --out"
    invoke(*words.split(), tmp_path / "here")
    invoke(*words.split(), tmp_path / "ray", "--on", "ray")
    files = results(tmp_path / "ray")
    assert files == results(tmp_path / "here")
    assert b"lr = 0.01" in files["tuned.toml"]


def test_what_a_job_raises_arrives(tmp_path):
    changed = {"methods": ["er"], "on_divergence": "stop", "training": {"lr": 1e30, "batch": 8}}
    with pytest.raises(DivergenceError):
        runs.run_all(planned_runs(tmp_path, **changed), on="ray")


def test_storage_is_for_ray_alone(tmp_path):
    with pytest.raises(SpecError, match="add --on ray"):
        runs.run_all(planned_runs(tmp_path), storage=str(tmp_path))


def test_a_folder_cannot_name_other_files_of_the_storage(tmp_path):
    few = {"training": {"updates": 2, "batch": 8}}
    runs.run_all(planned_runs(tmp_path / "run", **few, replicas=1))
    (tmp_path / "run/storage").write_text("../precious")
    precious = tmp_path / "precious/checkpoints/er"
    precious.mkdir(parents=True)
    runs.run_all(planned_runs(tmp_path / "run", **few), on="ray", storage=str(tmp_path / "kept"))
    assert precious.exists()
