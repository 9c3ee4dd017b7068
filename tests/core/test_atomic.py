"""Files appear whole or not at all, and what a dead process left is swept away."""

import pytest

from dpmcl.core.atomic import atomic, path_of, sweep, write_text
from dpmcl.exceptions import FolderError


def test_a_block_that_fails_leaves_what_was_there(tmp_path):
    write_text(tmp_path / "a.txt", "old")
    with pytest.raises(ValueError, match="no"), atomic(tmp_path / "a.txt") as temporary:
        temporary.write_text("half")
        raise ValueError("no")
    with pytest.raises(FolderError, match=r"'\\ud800', which is no text"):
        write_text(tmp_path / "a.txt", "a name: \ud800")
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"


def test_sweeping_takes_temporary_files_and_nothing_else(tmp_path):
    inner = tmp_path / "parameters" / "er"
    write_text(inner / "seed-0", "kept")
    write_text(tmp_path / ".lock", "kept")
    with atomic(inner / "seed-1") as temporary:
        temporary.with_name(temporary.name + "-of-a-dead-process").write_text("half")
    sweep(tmp_path)
    assert {p.name for p in tmp_path.rglob("*") if p.is_file()} == {".lock", "seed-0", "seed-1"}
    sweep(tmp_path / "none")


@pytest.mark.parametrize("path", ["", None, 3, b"x", "a\0b", "x" * 5000, "\ud800"])
def test_what_is_no_path_is_refused(path, tmp_path, monkeypatch):
    with pytest.raises(FolderError):
        path_of(path)
    assert path_of(str(tmp_path / "none" / "x")) == tmp_path / "none" / "x"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert path_of("~/x") == tmp_path / "x"
