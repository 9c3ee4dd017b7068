"""`--fresh`: an earlier run is kept until the new one has finished."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpmcl
from conftest import TINY_SPEC, contents, interrupt
from dpmcl.core.lock import locked
from dpmcl.exceptions import FolderError, ModelError
from dpmcl.networks.mlp import MLP

FASTER = {**TINY_SPEC, "training": {"updates": 1, "batch": 4}}


@pytest.fixture
def folder(tmp_path) -> Path:
    """A finished run."""
    dpmcl.run(TINY_SPEC, out=tmp_path / "run")
    return tmp_path / "run"


def visible(folder: Path) -> dict[str, bytes]:
    return contents(folder, "[!.]*.*")


def earlier_runs(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("before-fresh*"))


def interrupt_fresh(spec: Any, folder: Path, at: str = "er") -> None:
    anew = {"out": folder, "fresh": True, "methods": ["naive", "er"]}
    interrupt(spec, lambda method, done, _: method == at and done > 0, **anew)


def test_fresh_starts_anew(folder):
    (folder / "notes.txt").write_text("mine")
    before, seen = visible(folder), []
    del before["notes.txt"]
    result = dpmcl.run(
        FASTER,
        out=folder,
        fresh=True,
        progress=lambda *_: seen.append(visible(folder / "before-fresh") == before),
    )
    assert result.spec["training"]["updates"] == 1
    assert seen
    assert all(seen)
    assert earlier_runs(folder) == []
    assert (folder / "notes.txt").read_text() == "mine"
    expected = dpmcl.run(FASTER).errors["er"].values
    np.testing.assert_array_equal(dpmcl.load(folder).errors["er"].values, expected)


def test_an_interrupted_run_loses_nothing(folder, caplog):
    before = visible(folder)
    interrupt_fresh(FASTER, folder)
    earlier = folder / "before-fresh"
    assert f"is kept in {earlier} until" in caplog.text
    assert visible(earlier) == before
    assert dpmcl.load(earlier).errors["er"].seeds == (0,)
    assert list(dpmcl.load(folder).errors) == ["naive"]
    interrupt_fresh(TINY_SPEC, folder, at="naive")  # removes the unfinished run alone
    assert visible(earlier) == before
    dpmcl.run(TINY_SPEC, methods=["naive"], out=folder)  # er is still missing
    assert earlier_runs(folder) == ["before-fresh"]
    dpmcl.run(TINY_SPEC, methods=["er"], out=folder)
    assert earlier_runs(folder) == []
    assert set(dpmcl.load(folder).errors) == {"naive", "er"}


@pytest.mark.parametrize("cut", [1, 5])
def test_a_move_that_is_cut_short_is_completed_by_the_next_run(cut, folder, monkeypatch):
    before, seen = visible(folder), []
    calls, rename = itertools.count(1), Path.rename

    def end(path: Path, target: Any) -> Any:
        if Path(target).parent.name == ".moving" and next(calls) == cut:
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "rename", end)
        dpmcl.run(FASTER, out=folder, fresh=True)
    dpmcl.run(
        FASTER,
        out=folder,
        progress=lambda *_: seen.append(visible(folder / "before-fresh") == before),
    )
    assert all(seen)
    assert seen
    assert earlier_runs(folder) == []


def test_bad_input_is_refused_before_anything_moves(folder, monkeypatch):
    before = visible(folder)
    gone = {"name": "table", "path": "gone.csv", "target": "kind"}
    for stream in (gone, {"name": "digits", "tasks": 99}):
        with pytest.raises(dpmcl.DpmclError):
            dpmcl.run({**TINY_SPEC, "stream": stream}, out=folder, fresh=True)

    def build(*_: Any) -> Any:
        raise ModelError("no such network")

    monkeypatch.setattr(MLP, "build", build)
    with pytest.raises(ModelError):
        dpmcl.run(FASTER, out=folder, fresh=True)
    with locked(folder), pytest.raises(FolderError, match="being written to"):
        dpmcl.run(FASTER, out=folder, fresh=True)
    assert visible(folder) == before


def test_folders_without_a_whole_run(folder, tmp_path):
    (folder / "errors.parquet").write_bytes(b"PAR1")
    (tmp_path / "empty").mkdir()
    (tmp_path / "mine" / "before-fresh").mkdir(parents=True)
    (tmp_path / "mine" / "before-fresh" / "thesis.tex").touch()
    with pytest.raises(FolderError, match="before-fresh is no run that --fresh has kept; rename"):
        dpmcl.run(TINY_SPEC, out=tmp_path / "mine", fresh=True)
    assert dpmcl.run(TINY_SPEC, out=tmp_path / "mine").errors
    (tmp_path / "mine" / "before-fresh").rename(tmp_path / "mine" / "before")
    for out in (folder, tmp_path / "empty", tmp_path / "new", tmp_path / "mine"):
        dpmcl.run(TINY_SPEC, out=out, fresh=True)
        assert dpmcl.load(out).errors["er"].seeds == (0,)
    assert (tmp_path / "mine" / "before" / "thesis.tex").exists()
