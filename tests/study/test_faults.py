"""Writes that fail at any step: the folder stays readable, and the run resumes from it."""

import errno
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import dpmcl
from conftest import TINY_SPEC, refused
from dpmcl.exceptions import FolderError
from dpmcl.study.merging import merge
from dpmcl.training import keeper, loop

SPEC = {
    **TINY_SPEC,
    "training": {"updates": 3, "batch": 2, "memory": 40, "lr": 0.05},
    "methods": ["naive", "er"],
}
FILES = {"stream", "spec", "code", "environment", "work", "errors", "seed-0", "00000001"}
STEPS = ("mkstemp", "fsync", "chmod", "replace")


@pytest.fixture(scope="module", autouse=True)
def short_segments():
    """Two segments per task, so that there are checkpoints within tasks too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "UPDATES_AT_ONCE", 2)
        patch.setattr(keeper, "_SHARE", float("inf"))  # and after every task, at any speed
        yield


class Crash(BaseException):
    """Simulates the end of the process: nothing runs after it, not even clean-up."""


class Disk:
    """Counts the steps of writing files, and fails at one of them.

    done: the steps so far, each with its arguments.
    """

    def __init__(self, number: int, error: BaseException) -> None:
        self.number, self.error = number, error
        self.done: list[tuple[str, str]] = []
        self.crashed = False

    def step(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if self.crashed:
                raise Crash
            self.done.append((name, str([*arguments, *options.values()])))
            if len(self.done) == self.number:
                self.crashed = isinstance(self.error, Crash)
                raise self.error
            return real(*arguments, **options)

        return call

    def unlink(self, real: Callable[..., None]) -> Callable[..., None]:
        return lambda *a, **k: None if self.crashed else real(*a, **k)


@contextmanager
def failing(number: int = 0, error: BaseException | None = None) -> Iterator[Disk]:
    """Fail at a step of writing, counted from 1; at none by default."""
    disk = Disk(number, error or Crash())
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in zip((tempfile, os, Path, Path), STEPS, strict=True):
            patch.setattr(owner, name, disk.step(name, getattr(owner, name)))
        patch.setattr(Path, "unlink", disk.unlink(Path.unlink))
        yield disk


def run(folder: Path, **options: Any) -> Any:
    return dpmcl.run(SPEC, out=folder, checkpoint_seconds=0, **options)


@pytest.fixture(scope="module")
def clean(tmp_path_factory) -> tuple[bytes, list[tuple[str, str]]]:
    """errors.parquet of an undisturbed run, and the steps of writing in it."""
    folder = tmp_path_factory.mktemp("faults") / "run"
    with failing() as disk:
        run(folder)
    return (folder / "errors.parquet").read_bytes(), disk.done


def test_every_file_is_written_whole_and_what_is_made_of_the_errors_after_them(clean):
    replaced = [paths for step, paths in clean[1] if step == "replace"]
    for name in FILES:
        assert any(f".{name}." in paths or f"/{name}." in paths for paths in replaced), name
    assert sum("checkpoints" in paths for paths in replaced) > 10  # three in each task
    assert "errors" in replaced[-2] and "protocol" in replaced[-1]
    counts = [sum(step == name for step, _ in clean[1]) for name in STEPS]
    assert counts[0] == counts[2] == counts[3] == len(replaced)


def check_readable(folder: Path) -> None:
    """Check that a folder is a readable run, or is reported as no run yet."""
    if (folder / "spec.toml").exists():
        assert set(dpmcl.load(folder).records) <= {"naive", "er"}
    else:
        with pytest.raises(FolderError, match=r"not a run folder"):
            dpmcl.load(folder)


@pytest.mark.parametrize("code", [None, errno.ENOSPC], ids=["crash", "full"])
@pytest.mark.parametrize("first", range(5))
def test_an_error_or_a_crash_at_each_step(first, code, clean, tmp_path):
    """Each step fails in turn, in the same folder; then the run resumes without a fault.

    An error leaves no temporary files. A crash leaves some, since nothing is cleaned up, and they
    are never read.
    """
    error = Crash() if code is None else OSError(code, os.strerror(code))
    for number in range(1 + first, 50, 5):
        with failing(number, error) as disk:
            try:
                run(tmp_path)
            except (Crash, FolderError) as caught:
                if code is not None:
                    for word in ("cannot be written", os.strerror(code), "choose another folder"):
                        assert word in str(caught)
                    assert "\n" not in str(caught)
            else:  # failing to flush a folder is no error, and the step may not be reached
                assert len(disk.done) < number or disk.done[number - 1][0] == "fsync"
        names = {path.name for path in tmp_path.rglob(".*")}
        assert code is None or names <= {".lock", ".lock.json"}
        check_readable(tmp_path)
    result = run(tmp_path)
    assert (tmp_path / "errors.parquet").read_bytes() == clean[0]
    assert not (tmp_path / "checkpoints").exists()
    assert set(result.records) == {"naive", "er"}


def test_a_crash_while_a_folder_grows_keeps_what_was_there(tmp_path):
    folder = tmp_path / "run"
    run(folder)
    for number in range(2, 40, 5):
        with failing(number), pytest.raises(Crash):
            run(folder, replicas=2)
        result = dpmcl.load(folder)
        assert {r.test.seeds for r in result.records.values()} <= {(0,), (0, 1)}
        assert result.table()
    run(folder, replicas=2)
    whole = tmp_path / "whole"
    run(whole, replicas=2)
    assert (folder / "errors.parquet").read_bytes() == (whole / "errors.parquet").read_bytes()


def test_a_merge_that_was_killed_is_completed_by_the_next(tmp_path, monkeypatch):
    """It is killed at each step of writing, and in the middle of a copy."""
    parts = [tmp_path / "0", tmp_path / "1"]
    for seed, part in enumerate(parts):
        run(part, seed=seed)

    def files(folder: Path) -> dict[str, bytes]:
        paths = {p for p in folder.rglob("*") if p.is_file() and p.name != "environment.json"}
        return {str(path.relative_to(folder)): path.read_bytes() for path in paths}

    with failing() as disk:
        merge(tmp_path / "all", parts)
    real_copy, whole = shutil.copyfile, files(tmp_path / "all")

    def half(source: Path, copy: Path) -> None:
        copy.write_bytes(source.read_bytes()[:100])
        raise Crash

    for number in range(0, len(disk.done), 3):
        folder = tmp_path / str(10 + number)
        monkeypatch.setattr(shutil, "copyfile", real_copy if number else half)
        with failing(number), suppress(Crash):
            merge(folder, parts)
        monkeypatch.setattr(shutil, "copyfile", real_copy)
        merge(folder, parts)
        assert files(folder) == whole


@pytest.mark.parametrize(
    ("number", "seconds", "share"),
    [(1, 0.0, float("inf")), (6, 60.0, -1.0)],
)
def test_a_folder_removed_in_the_middle(number, seconds, share, tmp_path, monkeypatch):
    """One clear error, and no partly written folder; then the spec runs."""
    monkeypatch.setattr(keeper, "_SHARE", share)  # checkpoints after tasks: all or none
    folder, calls = tmp_path / "run", itertools.count(1)

    def progress(*_: Any) -> None:
        if next(calls) == number:
            shutil.rmtree(folder)

    removed = {"out": folder, "checkpoint_seconds": seconds, "progress": progress}
    refused(lambda: dpmcl.run(SPEC, **removed), "was removed", str(folder), error=FolderError)
    assert not folder.exists()
    run(folder)
    assert dpmcl.load(folder).errors
