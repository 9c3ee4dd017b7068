"""Signals to the command line: it stops after a checkpoint, prints how to resume, and resumes."""

import json
import os
import shlex
import signal
import time
from pathlib import Path

import pytest
import tomli_w

import dpmcl
from conftest import TINY_SPEC
from dpmcl.exceptions import Stopped
from dpmcl.study import runs
from python_process import Ended, PythonProcess

LONG = tomli_w.dumps({**TINY_SPEC, "training": {"updates": 250, "batch": 2, "lr": 0.05}})


class Running:
    """`dpmcl run` in another process, after its first checkpoint."""

    def __init__(self, folder: Path) -> None:
        (folder / "long.toml").write_text(LONG)
        self.folder = folder
        words = ("-m", "dpmcl", "run", "long.toml", "--checkpoint", "0")
        self.process = PythonProcess(*words, folder=folder)
        end = time.monotonic() + 60
        while not list((folder / "runs").rglob("0*.safetensors")):
            assert self.process.running, self.process.end()
            assert time.monotonic() < end
            time.sleep(0.005)

    def send(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> Ended:
        return self.process.end(60)


@pytest.fixture(scope="module")
def clean(tmp_path_factory) -> bytes:
    """errors.parquet of a run that is not stopped."""
    folder = tmp_path_factory.mktemp("signals")
    (folder / "long.toml").write_text(LONG)
    dpmcl.run(folder / "long.toml", out=folder / "run")
    return (folder / "run" / "errors.parquet").read_bytes()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_goes_on_to_the_same_errors(number, status, tmp_path, clean, command):
    running = Running(tmp_path)
    running.send(number)
    code, _, err = running.end()
    assert code == status
    assert "Stopping after these updates" in err
    assert "Stopped; `dpmcl run runs/long` goes on from the last checkpoint." in err
    assert "Traceback" not in err
    folder = tmp_path / "runs" / "long"
    dpmcl.load(folder)
    assert not [p.name for p in folder.rglob(".*") if not p.name.startswith(".lock")]
    assert not (folder / "errors.parquet").exists()
    assert not (folder / ".lock.json").exists()
    assert command("run", "runs/long").status == 0  # the command of the message
    assert (folder / "errors.parquet").read_bytes() == clean
    assert not (folder / "checkpoints").exists()
    assert json.loads((folder / "environment.json").read_text())[-1]["resumed"]


def test_a_second_interrupt_leaves_at_once(tmp_path, clean):
    running = Running(tmp_path)
    running.send(signal.SIGINT)
    time.sleep(0.001)
    start = time.monotonic()
    running.send(signal.SIGINT)
    code, _, err = running.end()
    assert time.monotonic() - start < 10
    assert code == 130
    assert "Traceback" not in err
    folder = tmp_path / "runs" / "long"
    dpmcl.run(tmp_path / "long.toml", out=folder)
    assert (folder / "errors.parquet").read_bytes() == clean


@pytest.mark.parametrize("name", ["digits", "my run"])
def test_the_command_that_goes_on_is_of_the_folder(name, monkeypatch, command):
    """The command must not run a preset or stream with the folder's name."""

    def stopped(*_: object, **__: object) -> None:
        raise Stopped("stopped")

    Path("short.toml").write_text(LONG.replace("250", "2"))
    with monkeypatch.context() as patch:
        patch.setattr(runs, "run_all", stopped)
        ran = command("run", "short.toml", "--out", name)
    assert ran.status == 130
    arguments = shlex.split(ran.err.split("`")[1])
    assert arguments[:2] == ["dpmcl", "run"]
    dpmcl.run("short.toml", out=name)
    assert command(*arguments[1:], "--replicas", "2").status == 0
    assert dpmcl.load(name).errors["er"].seeds == (0, 1)
