"""Files appear whole or not at all, and what a dead process left is swept away."""

import pytest

from dpmcl.core.atomic import atomic, path_of, sweep, write_text
from dpmcl.exceptions import FolderError


def test_a_block_that_fails_leaves_what_was_there(tmp_path):
    write_text(tmp_path / "a.txt", "old")
    with pytest.raises(ValueError, match="no"), atomic(tmp_path / "a.txt") as temporary:
        temporary.write_text("half")
        raise ValueError("no")
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"


def test_sweeping_takes_temporary_files_and_nothing_else(tmp_path):
    inner = tmp_path / "parameters" / "er"
    write_text(inner / "seed-0.safetensors", "kept")
    write_text(tmp_path / ".lock", "kept")
    with atomic(inner / "seed-1.safetensors") as temporary:
        left = temporary.with_name(temporary.name + "-of-a-dead-process")
        left.write_text("half")
        temporary.write_text("whole")
    sweep(tmp_path)
    found = sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file())
    assert found == [
        ".lock",
        "parameters/er/seed-0.safetensors",
        "parameters/er/seed-1.safetensors",
    ]
    sweep(tmp_path / "none")


def test_text_that_is_none_is_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(FolderError, match=r"'\\ud800', which is no text"):
        write_text(tmp_path / "a.txt", "a name: \ud800")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["", None, 3, b"x", "a\0b", "x" * 5000, "\ud800"])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(FolderError):
        path_of(path)


def test_a_path_need_not_be_there(tmp_path):
    assert path_of(str(tmp_path / "none" / "x")) == tmp_path / "none" / "x"
    assert path_of(tmp_path) == tmp_path
