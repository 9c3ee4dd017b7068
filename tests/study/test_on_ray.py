"""Jobs on Ray give the bytes of any other way to run them, whoever dies."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("ray")

WORDS = "run digits --method er --method naive --replicas 2 --tasks 3 --set network.hidden=8"
WORDS += " --set training.updates=150 --set training.batch=8 --set workers=2 --engine looped"


def command(out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "dpmcl", *WORDS.split(), "--out", str(out), *more]


def results(folder: Path) -> dict[str, bytes]:
    names = ("errors.parquet", "work.json", "parameters/*/*.safetensors")
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for name in names
        for path in sorted(folder.glob(name))
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, bytes]:
    """A run without Ray."""
    folder = tmp_path_factory.mktemp("whole")
    subprocess.run(command(folder), check=True, capture_output=True)
    return results(folder)


def children_named(process: subprocess.Popen, name: str) -> list[psutil.Process]:
    """Descendants of a process whose titles begin with a name."""
    inner = psutil.Process(process.pid).children(recursive=True)
    return [one for one in inner if one.is_running() and name in " ".join(one.cmdline()[:1])]


def wait(until, seconds: float = 120) -> None:
    for _ in range(int(seconds / 0.05)):
        if until():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")


def test_workers_and_the_driver_may_die(whole, tmp_path):
    """A worker is killed over a job, then the driver; the next call completes the same bytes."""
    words = command(tmp_path, "--on", "ray", "--checkpoint", "0")
    first = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    saved = lambda: list(tmp_path.glob("checkpoints/*/*/*.safetensors"))  # noqa: E731
    wait(lambda: saved() or first.poll() is not None)
    assert first.poll() is None, first.stderr.read()
    workers = children_named(first, "ray::")
    assert workers
    workers[0].send_signal(signal.SIGKILL)
    before = {path: path.stat().st_mtime_ns for path in saved()}
    wait(lambda: any(path not in before for path in saved()) or first.poll() is not None)
    inner = psutil.Process(first.pid).children(recursive=True) if first.poll() is None else []
    first.kill()
    first.wait()
    psutil.wait_procs(inner, timeout=20)  # Ray ends with its driver
    for process in inner:
        if process.is_running():
            os.kill(process.pid, signal.SIGKILL)
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert results(tmp_path) == whole
    assert not (tmp_path / "checkpoints").exists()
