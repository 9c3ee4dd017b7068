"""Signals to the command line: it stops after a checkpoint, prints how to resume, and resumes."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dpmcl
from dpmcl import cli
from dpmcl.exceptions import Stopped
from dpmcl.study import runs

LONG = """
replicas = 1
engine = "looped"
device = "cpu"
[stream]
name = "digits"
tasks = 2
[network]
name = "mlp"
hidden = 4
[training]
updates = 250
batch = 2
lr = 0.05
[methods.er]
"""


class Running:
    """`dpmcl run` in another process, after its first checkpoint."""

    def __init__(self, folder: Path) -> None:
        (folder / "long.toml").write_text(LONG)
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dpmcl", "run", "long.toml", "--checkpoint", "0"],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        end = time.monotonic() + 60
        while not list((folder / "runs").rglob("0*.safetensors")):
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < end
            time.sleep(0.005)

    def end(self) -> tuple[int, str]:
        _, err = self.process.communicate(timeout=60)
        return self.process.returncode, err


@pytest.fixture(scope="module")
def clean(tmp_path_factory) -> bytes:
    """errors.parquet of a run that is not stopped."""
    folder = tmp_path_factory.mktemp("signals")
    (folder / "long.toml").write_text(LONG)
    dpmcl.run(folder / "long.toml", out=folder / "run")
    return (folder / "run" / "errors.parquet").read_bytes()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_goes_on_to_the_same_errors(number, status, tmp_path, clean, monkeypatch):
    running = Running(tmp_path)
    running.process.send_signal(number)
    code, err = running.end()
    assert code == status
    assert "Stopping after these updates" in err
    assert "Stopped; `dpmcl run runs/long` goes on from the last checkpoint." in err
    assert "Traceback" not in err
    folder = tmp_path / "runs" / "long"
    dpmcl.load(folder)
    assert not [p.name for p in folder.rglob(".*") if not p.name.startswith(".lock")]
    assert not (folder / "errors.parquet").exists()
    assert not (folder / ".lock.json").exists()
    monkeypatch.chdir(tmp_path)  # run the command of the message in this process
    monkeypatch.setattr(sys, "argv", ["dpmcl", "run", "runs/long"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    assert (folder / "errors.parquet").read_bytes() == clean
    assert not (folder / "checkpoints").exists()
    assert json.loads((folder / "environment.json").read_text())[-1]["resumed"]


def test_a_second_interrupt_leaves_at_once(tmp_path, clean):
    running = Running(tmp_path)
    running.process.send_signal(signal.SIGINT)
    time.sleep(0.001)
    start = time.monotonic()
    running.process.send_signal(signal.SIGINT)
    code, err = running.end()
    assert time.monotonic() - start < 10
    assert code == 130
    assert "Traceback" not in err
    folder = tmp_path / "runs" / "long"
    dpmcl.run(tmp_path / "long.toml", out=folder)
    assert (folder / "errors.parquet").read_bytes() == clean


@pytest.mark.parametrize("name", ["digits", "my run"])
def test_the_command_that_goes_on_is_of_the_folder(name, tmp_path, monkeypatch, capsys):
    """The command must not run a preset or stream with the folder's name."""

    def stopped(*_: object, **__: object) -> None:
        raise Stopped("stopped")

    def command(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["dpmcl", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0)

    monkeypatch.chdir(tmp_path)
    Path("short.toml").write_text(LONG.replace("250", "2"))
    with monkeypatch.context() as patch:
        patch.setattr(runs, "run_all", stopped)
        assert command("run", "short.toml", "--out", name) == 130
    arguments = shlex.split(capsys.readouterr().err.split("`")[1])
    assert arguments[:2] == ["dpmcl", "run"]
    dpmcl.run("short.toml", out=name)
    assert command(*arguments[1:], "--replicas", "2") == 0
    assert dpmcl.load(name).errors["er"].seeds == (0, 1)
