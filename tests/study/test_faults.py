"""Writes that fail, at every step: the folder stays readable, and the run goes on from it."""

import errno
import itertools
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import dpmcl
from dpmcl.exceptions import FolderError
from dpmcl.results import store
from dpmcl.training import checkpoints, keeper, loop

SPEC: dict[str, Any] = {
    "replicas": 1,
    "stream": {"name": "digits", "tasks": 2},
    "network": {"name": "mlp", "hidden": 4},
    "training": {"updates": 3, "batch": 2, "memory": 40, "lr": 0.05},
    "methods": {"naive": {}, "er": {}},
    "engine": "looped",
    "device": "cpu",
    "workers": 1,
}
STEPS = ("mkdir", "mkstemp", "write", "fsync", "chmod", "replace")
FILES = (
    ".lock",
    "stream",
    "spec",
    "checkpoints/naive",
    "checkpoints/er",
    "parameters/naive",
    "parameters/er",
    "environment",
    "work",
    "errors",
)


@pytest.fixture(scope="module", autouse=True)
def short_chunks():
    """Two chunks a task, so that there are checkpoints within tasks too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "UPDATES_AT_ONCE", 2)
        yield


class Crash(BaseException):
    """The process ends here: nothing after it runs, no clean-up either."""


def no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def broken_disk() -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))


class Disk:
    """Counts the steps of writing into a folder, and fails at one of them.

    fails: asked for each step (step, file, its number among the same); None lets it pass.
    """

    def __init__(self, root: Path, fails: Callable[[str, str, int], BaseException | None]) -> None:
        self.root, self.fails = root, fails
        self.steps: list[tuple[str, str]] = []
        self.crashed = False

    def step(self, step: str, path: Any, half: Callable[[], Any] | None = None) -> None:
        path = Path(path)
        if not path.is_relative_to(self.root):
            return
        if self.crashed:
            raise Crash
        label = step, self.label(path)
        self.steps.append(label)
        error = self.fails(*label, self.steps.count(label))
        if error is not None:
            if half is not None:
                half()
            self.crashed = isinstance(error, Crash)
            raise error

    def label(self, path: Path) -> str:
        """What is written, without the digits that a temporary name brings."""
        place = path.relative_to(self.root)
        if place.parts and place.parts[0] in ("checkpoints", "parameters"):
            return "/".join(place.parts[:2])
        name = place.name
        return next((f for f in FILES if name.lstrip(".").startswith(f.lstrip("."))), name or "")


@contextmanager
def watched(root: Path, fails: Callable[..., BaseException | None]) -> Iterator[Disk]:
    disk = Disk(root, fails)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keeper, "_SHARE", float("inf"))  # a checkpoint after every task, by no clock

        latest = ["/"]

        def fault(owner: Any, name: str, step: str, path_of: Callable[..., Any]) -> None:
            """Fail before a call, or, where it writes, after half of it."""
            real = getattr(owner, name)

            def call(*arguments: Any, **options: Any) -> Any:
                path = path_of(*arguments, **options)

                def half() -> None:
                    real(*arguments, **options)
                    os.truncate(path, Path(path).stat().st_size // 2)

                disk.step(step, path, half if step == "write" else None)
                made = real(*arguments, **options)
                if step == "mkstemp":
                    latest[:] = [made[1]]
                return made

            patch.setattr(owner, name, call)

        real_fsync, real_unlink = os.fsync, Path.unlink

        def fsync(handle: int) -> None:
            whole = stat.S_ISREG(os.fstat(handle).st_mode)  # or the folder, after the renaming
            disk.step("fsync" if whole else "flush", latest[0])
            real_fsync(handle)

        def unlink(path: Path, missing_ok: bool = False) -> None:
            if not disk.crashed:
                real_unlink(path, missing_ok=missing_ok)

        patch.setattr(os, "fsync", fsync)
        patch.setattr(Path, "unlink", unlink)
        fault(tempfile, "mkstemp", "mkstemp", lambda prefix, suffix, dir: Path(dir, prefix))
        fault(Path, "mkdir", "mkdir", lambda path, *_, **__: path)
        fault(Path, "chmod", "chmod", lambda path, *_, **__: path)
        fault(Path, "replace", "replace", lambda _, target: target)
        fault(Path, "write_text", "write", lambda path, *_: path)
        fault(Path, "write_bytes", "write", lambda path, *_: path)
        fault(store.pq, "write_table", "write", lambda _, path: path)
        fault(checkpoints, "save_file", "write", lambda _, path, *__: path)
        yield disk


def run(folder: Path, **options: Any) -> Any:
    return dpmcl.run(SPEC, out=folder, checkpoint_seconds=0, **options)


@pytest.fixture(scope="module")
def clean(tmp_path_factory) -> tuple[bytes, list[tuple[str, str]]]:
    """errors.parquet of a run that nothing disturbs, and the steps of writing it took."""
    folder = tmp_path_factory.mktemp("faults") / "run"
    with watched(folder, lambda *_: None) as disk:
        run(folder)
    return (folder / "errors.parquet").read_bytes(), disk.steps


def test_every_step_of_every_file_is_watched(clean):
    steps = set(clean[1])
    missing = {(step, file) for step in STEPS[1:] for file in FILES if (step, file) not in steps}
    assert missing == set()
    assert clean[1].count(("replace", "checkpoints/er")) == 6  # three in each task
    assert [file for step, file in clean[1] if step == "replace"][-1] == "errors"
    assert sum(step == "mkdir" for step, _ in clean[1]) > 20


def temporaries(folder: Path) -> list[str]:
    return [
        str(path.relative_to(folder))
        for path in folder.rglob(".*")
        if path.name not in (".lock", ".lock.json")
    ]


def readable(folder: Path) -> None:
    """The folder is a run, or says that it is none yet."""
    if (folder / "spec.toml").exists():
        assert set(dpmcl.load(folder).records) <= {"naive", "er"}
    else:
        with pytest.raises(FolderError, match=r"not a run folder"):
            dpmcl.load(folder)


def fail_at(fault: Callable[[], BaseException], *where: Any) -> Callable[..., Any]:
    return lambda *at: fault() if at == where else None


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("file", FILES)
def test_an_error_or_a_crash_at_each_step(file, crash, clean, tmp_path):
    """Each step in turn fails, in one folder; then the run goes on without a fault.

    After an error nothing temporary stays; after a crash, which cleans nothing up, it does, and
    nobody takes it for the file.
    """
    which = 2 if file == "checkpoints/er" else 1  # the first one is kept: the run gets further
    for step, error in zip(STEPS[1:], [no_space, broken_disk] * 3, strict=False):
        fault = fail_at(Crash if crash else error, step, file, which)
        with watched(tmp_path, fault), pytest.raises(Crash if crash else FolderError) as caught:
            run(tmp_path)
        if not crash:
            line = str(caught.value)
            for word in ("cannot be written", os.strerror(error().errno), "--out"):
                assert word in line
            assert "\n" not in line
            assert temporaries(tmp_path) == []
        readable(tmp_path)
    goes_on(tmp_path, clean)


def goes_on(folder: Path, clean: Any) -> None:
    result = run(folder)
    assert (folder / "errors.parquet").read_bytes() == clean[0]
    assert not (folder / "checkpoints").exists()
    assert set(result.records) == {"naive", "er"}


def test_a_crash_while_a_folder_grows_keeps_what_was_there(clean, tmp_path):
    folder = tmp_path / "run"
    run(folder)
    for file in ("spec", "parameters/er", "work", "errors"):
        with watched(folder, fail_at(Crash, "replace", file, 1)), pytest.raises(Crash):
            run(folder, replicas=2)
        result = dpmcl.load(folder)
        assert {r.test.seeds for r in result.records.values()} <= {(0,), (0, 1)}
        assert result.table()
    run(folder, replicas=2)
    whole = tmp_path / "whole"
    run(whole, replicas=2)
    assert (folder / "errors.parquet").read_bytes() == (whole / "errors.parquet").read_bytes()


@pytest.mark.parametrize(
    ("number", "seconds", "share"),
    [(1, 0.0, float("inf")), (6, 60.0, -1.0)],
)
def test_a_folder_removed_in_the_middle(number, seconds, share, tmp_path, monkeypatch):
    """One clear error, and nothing half-written stands there afterwards; then it runs."""
    monkeypatch.setattr(keeper, "_SHARE", share)  # checkpoints after tasks: all or none
    folder, calls = tmp_path / "run", itertools.count(1)

    def watch(*_: Any) -> None:
        if next(calls) == number:
            shutil.rmtree(folder)

    with pytest.raises(FolderError, match="was removed") as caught:
        dpmcl.run(SPEC, out=folder, checkpoint_seconds=seconds, watch=watch)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
    assert not folder.exists()
    run(folder)
    assert dpmcl.load(folder).errors
