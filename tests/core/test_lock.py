"""Only one process at a time writes to a run folder, and a dead process blocks nobody."""

import os
import subprocess
import sys

import pytest

import dpmcl
from conftest import TINY_SPEC, refused
from dpmcl.core.lock import locked
from dpmcl.exceptions import FolderError

HOLD = """
import sys, time
from pathlib import Path
from dpmcl.core.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def holder(tmp_path):
    """A process that has locked tmp_path / "run"."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "run")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait(10)


def test_a_second_process_is_refused_and_a_dead_one_taken_over(holder, tmp_path):
    folder = tmp_path / "run"
    for use in (lambda: locked(folder).__enter__(), lambda: dpmcl.run(TINY_SPEC, out=folder)):
        refused(use, f"process {holder.pid};", str(folder), error=FolderError)
    assert sorted(path.name for path in folder.iterdir()) == [".lock", ".lock.json"]
    dpmcl.run(TINY_SPEC, out=tmp_path / "other")  # another folder is free
    holder.kill()
    holder.wait(10)
    assert (folder / ".lock.json").exists()  # of the dead process
    dpmcl.run(TINY_SPEC, out=folder)
    assert not (folder / ".lock.json").exists()
    assert dpmcl.load(folder).errors["er"].seeds == (0,)


def test_this_process_too_holds_it_once(tmp_path):
    with locked(tmp_path):
        for _ in range(2):  # the first refusal does not free the lock
            with pytest.raises(FolderError, match=f"process {os.getpid()};"), locked(tmp_path):
                pass
    with pytest.raises(KeyboardInterrupt), locked(tmp_path):
        raise KeyboardInterrupt
    with locked(tmp_path):
        assert (tmp_path / ".lock.json").exists()
    assert not (tmp_path / ".lock.json").exists()


@pytest.mark.parametrize("text", ["", "[]", '{"pid": null}', "\xff"])
def test_a_broken_note_of_the_holder(text, tmp_path):
    with locked(tmp_path):
        (tmp_path / ".lock.json").write_text(text, "latin-1")
        with pytest.raises(FolderError, match="process unknown"), locked(tmp_path):
            pass


@pytest.mark.parametrize("name", [".lock", ".lock.json"])
def test_a_folder_where_the_lock_cannot_be_made(name, tmp_path):
    """A folder in place of the lock's files, so that the test also works for root."""
    (tmp_path / "file").write_text("")
    (tmp_path / name).mkdir()
    for folder in (tmp_path, tmp_path / "file", tmp_path / "file" / "run"):
        words = ("cannot be written", "choose another", str(folder))
        refused(locked(folder).__enter__, *words, error=FolderError)
    (tmp_path / name).rmdir()
    with locked(tmp_path):
        pass
