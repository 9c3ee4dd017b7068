"""Checkpoints at an address are those of a folder, and half of one is passed over."""

from dataclasses import replace
from pathlib import Path

import pytest
from test_checkpoint import ORIGIN, assert_same, blank, snapshot

from dpmcl.exceptions import FolderError
from dpmcl.training.state import Position
from dpmcl.training.storage import Storage, StoredCheckpoints, absolute_address


@pytest.fixture(params=["{}", "file://{}", "local://{}"])
def storage(request, tmp_path) -> Storage:
    """A run's folder; pyarrow leaves the last kind of address to fsspec."""
    return Storage(request.param.format(tmp_path / "kept"), "a")


def test_jobs_of_a_run_are_kept_apart_and_the_last_two_checkpoints_stay(
    storage, tmp_path, log_lines
):
    (tmp_path / "spec.toml").write_text("replicas = 1")
    first, second = (
        StoredCheckpoints(storage, replace(ORIGIN, seeds=seeds)) for seeds in ((3, 4), (5, 6))
    )
    with pytest.raises(FolderError, match="machines see different folders"):
        first.refuse_removed()
    storage.write_mark(tmp_path / "spec.toml")
    assert first.newest() is None
    for update in range(3):
        first.save(snapshot(Position(0, 0, update)))
    assert second.newest() is None
    folder = tmp_path / "kept/a/checkpoints/er/3-4"
    assert [path.name for path in sorted(folder.iterdir())] == [
        "00000002.safetensors",
        "00000003.safetensors",
    ]
    assert log_lines == []
    newest = folder / "00000003.safetensors"
    newest.write_bytes(newest.read_bytes()[:-9])  # its writer died
    expected = snapshot(Position(0, 0, 1))
    assert_same(first.newest().state(blank(expected), 3), expected)
    assert len(log_lines) == 1 and "00000003.safetensors is damaged" in log_lines[0]
    second.save(snapshot())
    first.clear()
    first.clear()
    assert first.newest() is None and second.newest() is not None
    storage.remove("")
    assert list((tmp_path / "kept").iterdir()) == []


def test_an_address_is_checked_and_a_relative_path_made_absolute(tmp_path, monkeypatch):
    with pytest.raises(FolderError, match="'nowhere://x' cannot be read or written"):
        Storage("nowhere://x", "a").names("")
    monkeypatch.chdir(tmp_path)
    assert absolute_address("kept") == str(Path("kept").absolute())
    assert absolute_address("s3://bucket/kept") == "s3://bucket/kept"
