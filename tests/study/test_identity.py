"""Results of other data or other code than the present run's are refused."""

import importlib
import json
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dpmcl
from conftest import TINY_SPEC, contents, fail_if_trained, interrupt, refused
from dpmcl import plugins
from dpmcl.exceptions import DataError, FolderError
from dpmcl.study.merging import merge
from dpmcl.study.tune import Search, tune

PLUGINS = """
from dpmcl import Discount, Option
from dpmcl.methods.er import ER
from dpmcl.networks.mlp import MLP
from dpmcl.streams.digits import Digits

class Mine(ER):
    '''A method.'''
class Net(MLP):
    '''A network.'''
class Own(Digits):
    '''A stream.'''
class Free(Option):
    '''An option that does nothing.'''
class Halves(Discount):
    '''A discount.'''
    def weights(self, s):
        return 0.5 ** s
"""
STREAM = """
from dataclasses import dataclass
import torch
from dpmcl import Stream, StreamSettings

@dataclass(frozen=True, kw_only=True)
class Own(StreamSettings):
    '''Every replica draws its own rows around those of a file.'''

    path: str = ""

    def build(self, seeds):
        centre = float(open(self.path).read())
        generators = [torch.Generator().manual_seed(s) for s in seeds]
        x = torch.cat([torch.randn(40, 2, generator=own) for own in generators])
        return Stream(
            name="own", kind="regression", x=x + centre, y=x.sum(1, keepdim=True),
            row=torch.arange(len(x)).view(len(seeds), 40),
            task=(torch.arange(40) // 20).repeat(len(seeds), 1),
            tasks=("a", "b"), classes=(), outputs=1,
        )
"""


def check_refused(folder: Path, *words: str, spec: Any, **options: Any) -> None:
    """Check that a run raises a one-line FolderError, and neither trains nor changes files."""
    before = contents(folder)
    again = {"out": folder, "progress": fail_if_trained, **options}
    refused(lambda: dpmcl.run(spec, **again), str(folder), "--fresh", *words, error=FolderError)
    assert contents(folder) == before


def interrupt_late(spec: Any, folder: Path) -> None:
    """Interrupt a run after a checkpoint."""
    interrupt(spec, lambda _, done, total: done == total, out=folder, checkpoint_seconds=0.0)
    assert list(folder.rglob("checkpoints/**/*.safetensors"))


@pytest.fixture
def module(tmp_path, monkeypatch) -> Iterator[Callable[[str], None]]:
    """A function that writes the module `plug`, to be imported anew."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(text: str) -> None:
        (tmp_path / "plug.py").write_text(text)
        importlib.invalidate_caches()
        sys.modules.pop("plug", None)

    yield write
    sys.modules.pop("plug", None)


# data


def table_file(path: Path, shift: float = 0.0) -> Path:
    """Write a table of sixty rows of two kinds."""
    lines = [f"{i % 7 + shift},{(i * i) % 11},{'ab'[i % 2]}" for i in range(60)]
    path.write_text("\n".join(["p,q,kind", *lines]) + "\n")
    return path


def table_spec(path: Path) -> dict[str, Any]:
    return {**TINY_SPEC, "stream": {"name": "table", "path": str(path), "target": "kind"}}


@pytest.fixture
def monday(tmp_path) -> tuple[Path, Path]:
    """A table, and a run folder with results on it."""
    path = table_file(tmp_path / "monday.csv")
    dpmcl.run(table_spec(path), out=tmp_path / "run")
    return path, tmp_path / "run"


def test_data_may_move_and_not_change(monday, tmp_path):
    path, folder = monday
    tuesday = table_file(tmp_path / "tuesday.csv", shift=1)
    for replicas in (1, 2):
        words = (str(path), str(tuesday), "other data", "--out")
        check_refused(folder, *words, spec=table_spec(tuesday), replicas=replicas)
    moved = path.rename(tmp_path / "moved.csv")
    dpmcl.run(table_spec(moved), out=folder, progress=fail_if_trained)
    assert dpmcl.run(table_spec(moved), replicas=2, out=folder).errors["er"].seeds == (0, 1)


def test_data_that_are_gone_are_refused_and_results_still_read(monday):
    path, folder = monday
    path.unlink()
    for source in (table_spec(path), str(folder)):
        with pytest.raises(DataError, match=r"monday\.csv"):
            dpmcl.run(source, out=folder, progress=fail_if_trained)
    assert dpmcl.load(folder).errors["er"].seeds == (0,)


def test_data_are_compared_before_a_resume(tmp_path):
    path, folder = table_file(tmp_path / "monday.csv"), tmp_path / "run"
    interrupt_late(table_spec(path), folder)
    path.write_text(path.read_text().replace(",a\n", ",c\n").replace(",b\n", ",a\n"))
    check_refused(folder, "other data", "what is there changed", spec=table_spec(path))


def test_a_stream_that_each_replica_draws_from_a_file(module, tmp_path):
    module(STREAM)
    path, folder = tmp_path / "centre", tmp_path / "run"
    path.write_text("1")
    spec = {**TINY_SPEC, "stream": {"name": "plug:Own", "path": str(path)}}
    dpmcl.run(spec, seed=3, out=folder)
    dpmcl.run(spec, seed=3, out=folder, progress=fail_if_trained)
    grown = dpmcl.run(spec, seed=1, replicas=3, out=folder)
    assert json.loads((folder / "stream.json").read_text())["digest_seed"] == 3
    path.write_text("2")
    check_refused(folder, "other data", spec=spec, seed=3)
    check_refused(folder, "other data", spec=spec, seed=7)
    path.write_text("1")
    fresh = dpmcl.run(spec, seed=1, replicas=3)
    np.testing.assert_array_equal(grown.errors["er"].values, fresh.errors["er"].values)
    path.unlink()
    with pytest.raises(DataError, match=r"Own' cannot be built: FileNotFoundError.*; fix"):
        dpmcl.run(spec, out=folder)


# code


SPECS: dict[str, dict[str, Any]] = {
    "method": {"methods": ["plug:Mine"]},
    "network": {"network": {"name": "plug:Net", "hidden": 4}},
    "stream": {"stream": {"name": "plug:Own", "tasks": 2}},
    "discount": {"training": {**TINY_SPEC["training"], "discount": "plug:Halves"}},
    "option": {"training": {**TINY_SPEC["training"], "options": ["plug:Free"]}},
    "entry point": {"methods": ["third"]},
}


@pytest.mark.parametrize("kind", SPECS)
def test_edited_code_is_refused(kind, module, tmp_path, monkeypatch):
    """With no missing seed and with one more; also for a method that was not trained before."""
    point = EntryPoint("third", "plug:Mine", "dpmcl.methods")
    if kind == "entry point":
        monkeypatch.setattr(plugins, "_entry_points", lambda _: {"third": point})
    spec, folder = {**TINY_SPEC, **SPECS[kind]}, tmp_path / "run"
    module(PLUGINS)
    dpmcl.run(spec, out=folder)
    dpmcl.run(spec, out=folder, progress=fail_if_trained)
    if kind == "method":
        interrupt_late(spec, tmp_path / "stopped")
    module(PLUGINS + "\n# edited")
    for replicas in (1, 2):
        words = ("plug.py", "other code", "--out")
        check_refused(folder, *words, spec=spec, replicas=replicas)
    if kind == "method":
        check_refused(tmp_path / "stopped", "plug.py", "other code", spec=spec)
    if kind == "network":
        check_refused(folder, "plug.py", spec={**spec, "methods": ["naive"]})
        with pytest.raises(FolderError, match=r"plug\.py changed .* put that code back"):
            dpmcl.load(folder).learner("er")
    dpmcl.run(spec, out=folder, fresh=True)


NET = """
from torch import nn
class Net(nn.Module):
    def __init__(self, slope=0.1):
        super().__init__()
        self.slope, self.flat = slope, nn.Flatten()
        self.body, self.head = nn.Linear(64, 4), nn.Linear(4, 10)
    def forward(self, x):
        return self.head(nn.functional.leaky_relu(self.body(self.flat(x)), self.slope))
def make(shape, outputs):
    return Net()
"""


@pytest.mark.parametrize("make", ["module", "function", "attribute"])
def test_edited_code_of_a_module_of_ones_own_is_refused(make, module, tmp_path):
    def network(**options):
        plug = importlib.import_module("plug")
        torch.manual_seed(0)
        if make == "module":
            return plug.Net(**options)
        if make == "function":
            return plug.make
        made = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        made.functions = [plug.make]
        return made

    spec = {key: value for key, value in TINY_SPEC.items() if key != "network"}
    module(NET)
    dpmcl.run(spec, network=network(), out=tmp_path / "run")
    dpmcl.run(spec, network=network(), out=tmp_path / "run", progress=fail_if_trained)
    if make == "module":
        changed = {"spec": spec, "network": network(slope=0.2)}
        check_refused(tmp_path / "run", "network.digest", "with their weights", **changed)
    module(NET.replace("leaky_relu(self", "leaky_relu(-self"))
    words = ("the network", "plug.py", "other code")
    check_refused(tmp_path / "run", *words, spec=spec, network=network(), replicas=2)


def test_methods_are_compared_one_by_one(module, tmp_path):
    module(PLUGINS)
    dpmcl.run({**TINY_SPEC, "methods": ["plug:Mine", "naive"]}, out=tmp_path)
    module(PLUGINS + "\n# edited")
    dpmcl.run({**TINY_SPEC, "methods": ["naive"]}, replicas=2, out=tmp_path)


def test_code_that_failed_at_once_may_be_mended(module, tmp_path):
    """Nothing has been trained with it, so there is nothing to mix."""
    spec = {**TINY_SPEC, **SPECS["discount"]}
    module(PLUGINS.replace("0.5", "undefined"))
    with pytest.raises(Exception, match="undefined"):
        dpmcl.run(spec, out=tmp_path / "run")
    module(PLUGINS)
    dpmcl.run(spec, out=tmp_path / "run")


# folders of other versions


def make_old(folder: Path) -> None:
    """Change a folder into one that version 0.1 would have written."""
    (folder / "code.json").unlink()
    info = json.loads((folder / "stream.json").read_text())
    if info.pop("digest_seed", None) is not None:
        info["digest"] = ""
    (folder / "stream.json").write_text(json.dumps(info, indent=1) + "\n")
    work = json.loads((folder / "work.json").read_text())
    names = ("gradient_evaluations", "rows_backpropagated")
    old = {m: {s: {n: w[n] for n in names} for s, w in of.items()} for m, of in work.items()}
    (folder / "work.json").write_text(json.dumps(old) + "\n")


def test_a_folder_of_version_0_1_is_shown_and_not_extended(module, tmp_path, caplog):
    spec = {**TINY_SPEC, "methods": ["plug:Mine"]}
    module(PLUGINS)
    dpmcl.run(spec, out=tmp_path / "run")
    make_old(tmp_path / "run")
    result = dpmcl.run(spec, out=tmp_path / "run", progress=fail_if_trained)
    assert result.errors["plug:Mine"].seeds == (0,)
    assert "version 0.1, which did not record code" in caplog.text
    check_refused(tmp_path / "run", "0.1", spec=spec, replicas=2)


def test_a_folder_of_version_0_1_is_extended_by_the_package_s_own(tmp_path):
    spec = {**TINY_SPEC, "stream": {"name": "oscillator", "tasks": 2}}
    dpmcl.run(spec, out=tmp_path)
    make_old(tmp_path)
    assert dpmcl.run(spec, replicas=2, methods=["er", "naive"], out=tmp_path).rows()
    assert json.loads((tmp_path / "stream.json").read_text())["digest"]


@pytest.mark.parametrize(
    ("stream", "method"),
    [({"name": "sine", "rows": 20, "outputs": 3}, "er"), ({"name": "digits"}, "oml")],
)
def test_rows_of_version_0_1_whose_numbers_have_moved_get_no_further_seeds(
    stream, method, tmp_path
):
    spec = {**TINY_SPEC, "stream": {**stream, "tasks": 2}, "methods": [method]}
    dpmcl.run(spec, out=tmp_path)
    make_old(tmp_path)
    assert dpmcl.run(spec, out=tmp_path).rows()[0]["replicas"] == 1
    check_refused(tmp_path, "0.1", method, spec=spec, replicas=2)

    dpmcl.run(spec, seed=1, out=tmp_path / "new")
    with pytest.raises(FolderError, match=f"hold results of {method}, one of them by version 0.1"):
        merge(tmp_path / "all", [tmp_path, tmp_path / "new"])


def test_a_warning_is_logged_where_another_version_is_extended(tmp_path, caplog):
    dpmcl.run(TINY_SPEC, out=tmp_path)
    path = tmp_path / "environment.json"
    path.write_text(path.read_text().replace('"dpmcl": "', '"dpmcl": "9.'))
    dpmcl.run(TINY_SPEC, out=tmp_path, progress=fail_if_trained)
    assert caplog.text == ""
    dpmcl.run(TINY_SPEC, methods="naive", out=tmp_path)
    assert "er: it was trained with dpmcl 9." in caplog.text
    dpmcl.run(TINY_SPEC, replicas=2, out=tmp_path)
    assert "er: its first seeds were trained with dpmcl 9." in caplog.text
    entries = [entry for entry in json.loads(path.read_text()) if entry["method"] == "er"]
    marks = [(entry["seeds"], entry["repeats"]) for entry in entries]
    assert marks == [([0], "byte for byte"), ([1], "to rounding")]


def test_a_run_resumed_from_a_checkpoint_of_another_engine_repeats_to_rounding(tmp_path, caplog):
    interrupt_late({**TINY_SPEC, "engine": "batched"}, tmp_path)
    dpmcl.run({**TINY_SPEC, "engine": "looped"}, out=tmp_path)
    assert "another engine, device or version of PyTorch or dpmcl made it" in caplog.text
    (entry,) = json.loads((tmp_path / "environment.json").read_text())
    assert (entry["engine"], entry["resumed"], entry["repeats"]) == ("looped", True, "to rounding")


def test_merging_says_that_versions_differ(tmp_path):
    for seed in (0, 1):
        dpmcl.run(TINY_SPEC, seed=seed, out=tmp_path / str(seed))
    path = tmp_path / "1" / "environment.json"
    path.write_text(path.read_text().replace('"dpmcl": "', '"dpmcl": "9.'))
    lines = merge(tmp_path / "all", [tmp_path / "0"])
    assert not any("several versions" in line for line in lines)
    lines = merge(tmp_path / "all", [tmp_path / "1"])
    assert lines[0].startswith(f"{tmp_path / 'all'}: 1 of er") and "several versions" in lines[1]


def test_settings_that_were_found_with_other_code_are_named(module, tmp_path, caplog):
    module(PLUGINS)
    search = Search(space={"training.lr": [0.01]}, tasks=2, replicas=1)
    tune({**TINY_SPEC, "methods": ["plug:Mine", "er"]}, search, tmp_path / "search")
    tuned = tmp_path / "search" / "tuned.toml"
    dpmcl.run(tuned, out=tmp_path / "same")
    module(PLUGINS.replace("A method", "Another method"))
    dpmcl.run(tuned, methods="er")
    assert caplog.text == ""
    for options in ({}, {"out": tmp_path / "new"}, {"out": tmp_path / "new"}):
        dpmcl.run(tuned, methods="plug:Mine", **options)
        assert "found with other code of method 'plug:Mine'; search again" in caplog.text
        caplog.clear()
    tune(tomllib.loads(tuned.read_text()), search, tmp_path / "again")
    dpmcl.run(tmp_path / "again" / "tuned.toml", methods="plug:Mine", out=tmp_path / "new")
    assert caplog.text == ""


def test_folders_whose_replicas_draw_their_own_rows_merge_if_their_data_agree(module, tmp_path):
    module(STREAM)
    path = tmp_path / "centre"
    spec = {**TINY_SPEC, "stream": {"name": "plug:Own", "path": str(path)}}
    for seed, centre in ((0, "1"), (7, "1"), (9, "2")):
        path.write_text(centre)
        dpmcl.run(spec, seed=seed, out=tmp_path / str(seed))
    for centre in ("1", "2"):
        path.write_text(centre)
        with pytest.raises(FolderError, match="other data"):
            merge(tmp_path / "0", [tmp_path / "9"])
    path.write_text("1")
    assert merge(tmp_path / "0", [tmp_path / "7"]) == [
        f"{tmp_path / '0'}: 1 of er from {tmp_path / '7'}"
    ]


def test_merging_compares_the_code_that_methods_share(module, tmp_path):
    spec = {**TINY_SPEC, "network": {"name": "plug:Net", "hidden": 4}}
    for method, text in (("er", PLUGINS), ("naive", PLUGINS + "# edited"), ("joint", PLUGINS)):
        module(text)
        dpmcl.run({**spec, "methods": [method]}, out=tmp_path / method)
    merge(tmp_path / "all", [tmp_path / "er", tmp_path / "joint"])
    with pytest.raises(FolderError, match=r"other code of network 'plug:Net'"):
        merge(tmp_path / "all", [tmp_path / "naive"])


def test_merging_says_that_code_cannot_be_compared(module, tmp_path):
    module("import importlib" + PLUGINS)
    for seed in (0, 1):
        dpmcl.run({**TINY_SPEC, "methods": ["plug:Mine"]}, seed=seed, out=tmp_path / str(seed))
    lines = merge(tmp_path / "all", [tmp_path / "0", tmp_path / "1"])
    assert lines[-1].endswith("code that cannot be compared (method 'plug:Mine')")
