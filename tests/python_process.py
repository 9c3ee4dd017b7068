"""Python processes that start at once: they are forked from one that has imported the package."""

import os
import runpy
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.resume_check import fork_server


class Ended(NamedTuple):
    """What a process left: its exit status and what it printed."""

    status: int
    out: str
    err: str


class PythonProcess:
    """`python ARGUMENTS` in a folder, with this process's environment variables.

    Args:
        arguments: `-c` and code, `-m` and a module with its arguments, or a script with them.
        folder: Working folder.
    """

    def __init__(self, *arguments: str, folder: Path) -> None:
        self._scratch = tempfile.TemporaryDirectory()
        self._printed = Path(self._scratch.name)
        self._process = fork_server().Process(
            target=_run, args=(arguments, folder, dict(os.environ), self._printed)
        )
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.exitcode is None

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def end(self, seconds: float = 300) -> Ended:
        """Wait until the process has ended."""
        self._process.join(seconds)
        assert self._process.exitcode is not None, f"not ended after {seconds} s"
        out, err = ((self._printed / name).read_text("utf-8") for name in ("out", "err"))
        return Ended(self._process.exitcode, out, err)


def _run(
    arguments: tuple[str, ...], folder: Path, environment: dict[str, str], printed: Path
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(printed / name, os.O_WRONLY | os.O_CREAT), number)
    torch.set_num_threads(1)
    sys.path.insert(0, str(folder))
    kind, *words = arguments
    if kind == "-c":
        (printed / "code.py").write_text(words[0], "utf-8")
        runpy.run_path(str(printed / "code.py"), run_name="__main__")
    elif kind == "-m":
        sys.argv = words
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [*arguments]
        runpy.run_path(kind, run_name="__main__")
