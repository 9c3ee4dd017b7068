"""Results are of the data and the code that are asked for now, or are refused; `--fresh`."""

import importlib
import itertools
import json
import linecache
import logging
import os
import runpy
import sys
import textwrap
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import dpmcl
from dpmcl import cli, plugins
from dpmcl.exceptions import DataError, FolderError, ModelError
from dpmcl.study.lock import locked

BASE: dict[str, Any] = {
    "replicas": 1,
    "network": {"name": "mlp", "hidden": 4},
    "training": {"updates": 2, "batch": 4, "lr": 0.1},
    "methods": ["er"],
    "engine": "looped",
    "device": "cpu",
}
DIGITS = {**BASE, "stream": {"name": "digits", "tasks": 2}}

METHOD = """
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dpmcl import Draw, Method, Phase, gradient
{imports}

@dataclass(frozen=True, kw_only=True)
class Mine(Method):
    '''Steps of a length of its own.'''

    def phases(self, model, task):
        def update(state, batches, key):
            grads, _ = gradient(model.cost)(state.theta, batches["new"], key[0])
            by = {factor}
            grads = {{p: {{n: by * g for n, g in part.items()}} for p, part in grads.items()}}
            return self.descend(state, grads)

        return [Phase("train", self.updates, {{"new": Draw("new", self.batch)}}, update)]
"""
NETWORK = """
import math
from dataclasses import dataclass
from torch import nn
from dpmcl import NetworkSettings

@dataclass(frozen=True, kw_only=True)
class Net(NetworkSettings):
    '''One layer.'''

    def build(self, shape, outputs):
        h = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), {width}), nn.ReLU())
        return h, nn.Linear({width}, outputs)
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
        n = 40
        generators = [torch.Generator().manual_seed(s) for s in seeds]
        x = torch.cat([torch.randn(n, 2, generator=own) for own in generators])
        return Stream(
            name="own",
            kind="regression",
            x=x + centre,
            y=x.sum(1, keepdim=True) + {shift},
            row=torch.arange(len(x)).view(len(seeds), n),
            task=(torch.arange(n) // 20).repeat(len(seeds), 1),
            tasks=("a", "b"),
            classes=(),
            outputs=1,
        )
"""
DISCOUNT = """
from dataclasses import dataclass
from dpmcl import Discount

@dataclass(frozen=True, kw_only=True)
class Own(Discount):
    '''Halves.'''

    def weights(self, s):
        return {half} ** s
"""

numbers = itertools.count()


@pytest.fixture
def module(tmp_path, monkeypatch) -> Iterator[Callable[..., str]]:
    """Write a module of a name of its own, or write it anew; `restart` forgets what is imported."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    made: set[str] = set()

    def write(text: str, name: str | None = None) -> str:
        name = name or f"own_{next(numbers)}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        made.add(name)
        return name

    yield write
    restart(*made)


def restart(*names: str) -> None:
    """Do what a new Python would do: import anew what is on disk."""
    importlib.invalidate_caches()
    for name in names:
        sys.modules.pop(name, None)


def rows(folder: Path) -> bytes:
    return (folder / "errors.parquet").read_bytes()


def refused(folder: Path, *words: str, spec: Any = None, **options: Any) -> str:
    """Run, and check that it is refused in one line, that nothing was trained or changed."""
    before = {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
    with pytest.raises(FolderError) as caught:
        dpmcl.run(spec, out=folder, watch=untrained, **options)
    line = str(caught.value)
    assert "\n" not in line
    for word in (str(folder), *words):
        assert word in line
    assert {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()} == before
    return line


def untrained(*_: Any) -> None:
    raise AssertionError("something was trained")


# data


def table_file(path: Path, shift: float = 0.0) -> Path:
    """Sixty rows of two kinds."""
    lines = [f"{i % 7 + shift},{(i * i) % 11},{'ab'[i % 2]}" for i in range(60)]
    path.write_text("\n".join(["p,q,kind", *lines]) + "\n")
    return path


def of_table(path: Path) -> dict[str, Any]:
    return {**BASE, "stream": {"name": "table", "path": str(path), "target": "kind"}}


@pytest.fixture
def monday(tmp_path) -> tuple[Path, Path]:
    """A table, and a folder with the results on it."""
    path = table_file(tmp_path / "monday.csv")
    dpmcl.run(of_table(path), out=tmp_path / "run")
    return path, tmp_path / "run"


def test_the_same_data_elsewhere_are_the_same(monday, tmp_path):
    path, folder = monday
    moved = path.rename(tmp_path / "moved.csv")
    dpmcl.run(of_table(moved), out=folder, watch=untrained)
    found = dpmcl.run(of_table(moved), replicas=2, out=folder).errors["er"]
    assert found.seeds == (0, 1)


@pytest.mark.parametrize("replicas", [1, 2])
def test_another_file_is_refused(replicas, monday, tmp_path):
    path, folder = monday
    tuesday = table_file(tmp_path / "tuesday.csv", shift=1)
    line = refused(folder, spec=of_table(tuesday), replicas=replicas)
    for word in (str(path), str(tuesday), "other data", "--fresh", "--out"):
        assert word in line


@pytest.mark.parametrize("replicas", [1, 2])
def test_labels_shuffled_in_place_are_refused(replicas, monday):
    path, folder = monday
    head, *lines = path.read_text().splitlines()
    first, *others = [line.rpartition(",")[2] for line in lines]
    labels = [*others, first]
    changed = [f"{line.rpartition(',')[0]},{y}" for line, y in zip(lines, labels, strict=True)]
    path.write_text("\n".join([head, *changed]) + "\n")
    refused(folder, "other data", str(path), "--fresh", spec=of_table(path), replicas=replicas)


def test_data_that_are_gone_are_refused_and_results_still_read(monday):
    path, folder = monday
    path.unlink()
    for source in (of_table(path), str(folder)):
        with pytest.raises(DataError, match=r"monday\.csv"):
            dpmcl.run(source, out=folder, watch=untrained)
    with pytest.raises(DataError, match=r"monday\.csv"):
        dpmcl.run(of_table(path), out=folder, fresh=True)
    assert dpmcl.load(folder).errors["er"].seeds == (0,)


def test_data_are_compared_before_a_resume(tmp_path):
    path = table_file(tmp_path / "monday.csv")
    stopped(of_table(path), tmp_path / "run")
    table_file(path, shift=1)
    refused(tmp_path / "run", "other data", spec=of_table(path))


def test_data_that_change_between_two_groups_of_seeds(monday):
    """Seed 1 of er alone, then both seeds of naive."""
    path, folder = monday

    def change(method: str, *_: Any) -> None:
        table_file(path, shift=1)

    with pytest.raises(FolderError, match="other data"):
        dpmcl.run(of_table(path), methods=["er", "naive"], replicas=2, out=folder, watch=change)
    assert list(dpmcl.load(folder).errors) == ["er"]


def test_a_stream_of_one_s_own_whose_file_is_gone(module, tmp_path):
    (tmp_path / "centre").write_text("1")
    name = f"{module(STREAM.format(shift=0))}:Own"
    spec = {**BASE, "stream": {"name": name, "path": str(tmp_path / "centre")}}
    dpmcl.run(spec, out=tmp_path / "run")
    (tmp_path / "centre").unlink()
    with pytest.raises(DataError, match=r"Own' cannot be built: FileNotFoundError.*; mend"):
        dpmcl.run(spec, out=tmp_path / "run")
    assert dpmcl.load(tmp_path / "run").rows()


def test_a_stream_that_each_replica_draws_from_a_file(module, tmp_path):
    name = module(STREAM.format(shift=0))
    path = tmp_path / "centre"
    path.write_text("1")
    spec = {**BASE, "stream": {"name": f"{name}:Own", "path": str(path)}}
    folder = tmp_path / "run"
    dpmcl.run(spec, seed=3, out=folder)
    dpmcl.run(spec, seed=3, out=folder, watch=untrained)
    grown = dpmcl.run(spec, seed=1, replicas=3, out=folder)
    assert json.loads((folder / "stream.json").read_text())["digest_seed"] == 3
    path.write_text("2")
    refused(folder, "other data", spec=spec, seed=3)
    refused(folder, "other data", spec=spec, seed=7)
    path.write_text("1")
    fresh = dpmcl.run(spec, seed=1, replicas=3)
    np.testing.assert_array_equal(grown.errors["er"].values, fresh.errors["er"].values)


# code


def stopped(spec: Any, folder: Path, **options: Any) -> None:
    """A run that is interrupted after a checkpoint."""

    def leave(method: str, done: int, total: int) -> None:
        if done == total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dpmcl.run(spec, out=folder, watch=leave, checkpoint_seconds=0.0, **options)
    assert list(folder.glob("checkpoints/*/*.safetensors"))


def method_spec(name: str) -> dict[str, Any]:
    return {**DIGITS, "methods": [f"{name}:Mine"]}


def edited(
    kind: str, module: Callable[..., str], tmp_path: Path
) -> tuple[dict[str, Any], str, Any]:
    """A spec with a plugin of a kind, the file that is to change, and what changes it."""
    helper = None
    if kind == "helper":
        helper = module("from numbers import Number\nFACTOR = 1.0\n")
    if kind == "package":
        (tmp_path / "lib").mkdir()
        (tmp_path / "lib" / "__init__.py").write_text("from . import inner\n")
        (tmp_path / "lib" / "inner.py").write_text("from .deep import FACTOR\n")
        helper = module("FACTOR = 1.0\n", "lib/deep")
    texts = {
        "method": (METHOD.format(imports="", factor=f) for f in ("1.0", "0.0")),
        "network": (NETWORK.format(width=w) for w in (4, 5)),
        "stream": (STREAM.format(shift=s) for s in (0, "0 * seeds[0]")),
        "discount": (DISCOUNT.format(half=h) for h in (0.5, 0.7)),
        "helper": [METHOD.format(imports=f"import {helper}", factor=f"{helper}.FACTOR")],
        "package": [METHOD.format(imports="import lib", factor="lib.inner.FACTOR")],
    }
    text, *changed = texts[kind]
    name = module(text)
    spec: dict[str, Any] = {**DIGITS, "methods": [f"{name}:Mine"]}
    if kind == "network":
        spec = {**DIGITS, "network": {"name": f"{name}:Net"}}
    if kind == "stream":
        (tmp_path / "centre").write_text("1")
        spec = {**BASE, "stream": {"name": f"{name}:Own", "path": str(tmp_path / "centre")}}
    if kind == "discount":
        spec = {**DIGITS, "training": {**BASE["training"], "discount": f"{name}:Own"}}

    def change() -> None:
        if helper is None:
            module(changed[0], name)
        else:
            module("FACTOR = 0.0\n", helper)
        restart(name, *([helper] if helper else []), "lib", "lib.inner", "lib.deep")

    return spec, f"{helper or name}.py", change


KINDS = ["method", "helper", "package", "network", "stream", "discount"]


@pytest.mark.parametrize("kind", KINDS)
def test_edited_code_is_refused(kind, module, tmp_path):
    """With no seed missing, with one more, and before the data are read."""
    spec, file, change = edited(kind, module, tmp_path)
    folder = tmp_path / "run"
    dpmcl.run(spec, out=folder)
    dpmcl.run(spec, out=folder, watch=untrained)
    dpmcl.run(spec, replicas=2, out=folder)
    change()
    for replicas in (1, 2, 3):
        refused(folder, file, "other code", "--fresh", "--out", spec=spec, replicas=replicas)
    dpmcl.run(spec, out=folder, fresh=True)
    assert dpmcl.load(folder).rows()[0]["replicas"] == 1


BY_PATH = """
import importlib.util
spec = importlib.util.spec_from_file_location("by_path", {file!r})
helper = importlib.util.module_from_spec(spec)
spec.loader.exec_module(helper)
"""


BY_NAME = """
import importlib
helper = importlib.import_module("elsewhere_helper")
"""


@pytest.mark.parametrize("imports", ["import elsewhere_helper as helper", BY_NAME, BY_PATH])
def test_a_helper_in_another_folder_counts(imports, module, tmp_path, monkeypatch):
    file = tmp_path / "elsewhere" / "elsewhere_helper.py"
    file.parent.mkdir()
    file.write_text("FACTOR = 1.0\n")
    monkeypatch.syspath_prepend(file.parent)
    (tmp_path / "own").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "own")
    (tmp_path / "own" / "in_own_folder.py").write_text(
        METHOD.format(imports=imports.format(file=str(file)), factor="helper.FACTOR")
    )
    dpmcl.run(method_spec("in_own_folder"), out=tmp_path / "run")
    dpmcl.run(method_spec("in_own_folder"), out=tmp_path / "run", watch=untrained)
    file.write_text("FACTOR = 0.0\n")
    restart("in_own_folder", "elsewhere_helper")
    refused(tmp_path / "run", "other code", spec=method_spec("in_own_folder"))


@pytest.mark.parametrize("kind", ["method", "helper"])
def test_edited_code_is_refused_before_a_resume(kind, module, tmp_path):
    spec, file, change = edited(kind, module, tmp_path)
    stopped(spec, tmp_path / "run")
    change()
    refused(tmp_path / "run", file, "--fresh", spec=spec)


def test_code_that_failed_at_once_may_be_mended(module, tmp_path):
    """Nothing has been trained with it, so there is nothing to mix."""
    name = module(METHOD.format(imports="", factor="undefined"))
    with pytest.raises(Exception, match="undefined"):
        dpmcl.run(method_spec(name), out=tmp_path / "run")
    module(METHOD.format(imports="", factor="0.5"), name)
    restart(name)
    dpmcl.run(method_spec(name), out=tmp_path / "run")


def test_methods_are_compared_one_by_one(module, tmp_path):
    kept, changed = (module(METHOD.format(imports="", factor=f)) for f in ("1.0", "1.0"))
    folder = tmp_path / "run"
    dpmcl.run({**DIGITS, "methods": [f"{kept}:Mine", f"{changed}:Mine", "naive"]}, out=folder)
    module(METHOD.format(imports="", factor="0.0"), changed)
    restart(changed)
    dpmcl.run(method_spec(kept), replicas=2, out=folder)
    dpmcl.run({**DIGITS, "methods": ["naive"]}, replicas=2, out=folder)
    refused(folder, f"{changed}:Mine", f"{changed}.py", spec=method_spec(changed))


def test_a_network_is_compared_also_for_a_new_method(module, tmp_path):
    """A table does not set methods side by side that were trained on unlike networks."""
    spec, file, change = edited("network", module, tmp_path)
    dpmcl.run(spec, out=tmp_path / "run")
    change()
    refused(tmp_path / "run", file, spec={**spec, "methods": ["naive"]})


def test_other_files_and_libraries_do_not_count(module, tmp_path):
    name = module(METHOD.format(imports="import json, numpy", factor="1.0"))
    module("X = 1", "unrelated")
    dpmcl.run(method_spec(name), out=tmp_path / "run")
    code = json.loads((tmp_path / "run" / "code.json").read_text())
    assert [list(found) for found in code[f"{name}:Mine"].values()] == [[name]]
    module("X = 2", "unrelated")
    dpmcl.run(method_spec(name), out=tmp_path / "run", watch=untrained)


@pytest.mark.parametrize("imported", ["by the run", "before"])
def test_a_file_changed_after_its_import_is_refused(imported, module, tmp_path):
    """What runs is the old code; its results must not be stored as the new file's."""
    text = "def factor():\n    return {}\n"
    helper = module(text.format(1.0))
    name = module(METHOD.format(imports=f"import {helper}", factor=f"{helper}.factor()"))
    if imported == "before":
        importlib.import_module(name)
    else:
        dpmcl.run(method_spec(name), out=tmp_path / "first")
    module(text.format(0.0), helper)
    for folder in ("first", "second"):
        with pytest.raises(FolderError, match=rf"{helper}\.py was changed .* restart Python"):
            dpmcl.run(method_spec(name), out=tmp_path / folder, watch=untrained)
    assert not (tmp_path / "second").exists()
    importlib.reload(sys.modules[helper])
    if imported == "by the run":
        refused(tmp_path / "first", helper, "--fresh", spec=method_spec(name))
    dpmcl.run(method_spec(name), out=tmp_path / "second")


@pytest.mark.parametrize(
    ("text", "used"),
    [("FACTOR = {}\n", "FACTOR"), ("class Rule:\n    factor = {}\n", "Rule.factor")],
)
def test_a_constant_changed_after_its_import_is_refused(text, used, module, tmp_path):
    helper = module(text.format(1.0))
    name = module(METHOD.format(imports=f"import {helper}", factor=f"{helper}.{used}"))
    importlib.import_module(name)
    module(text.format(0.0), helper)
    with pytest.raises(FolderError, match=rf"{helper}\.py was changed .* restart Python"):
        dpmcl.run(method_spec(name), out=tmp_path / "run", watch=untrained)
    restart(name, helper)
    dpmcl.run(method_spec(name), out=tmp_path / "run")


def test_an_entry_point_s_code_counts(module, tmp_path, monkeypatch):
    name = module(METHOD.format(imports="", factor="1.0"))
    point = EntryPoint("third", f"{name}:Mine", "dpmcl.methods")
    monkeypatch.setattr(plugins, "_entry_points", lambda kind: {"third": point})
    spec = {**DIGITS, "methods": ["third"]}
    dpmcl.run(spec, out=tmp_path / "run")
    module(METHOD.format(imports="", factor="0.0"), name)
    restart(name)
    refused(tmp_path / "run", f"{name}.py", "method 'third'", spec=spec)


@pytest.fixture
def command(tmp_path, monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """Run the command line in a folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dpmcl", *arguments])
        status: Any = 0
        try:
            cli.main()
        except SystemExit as end:
            status = end.code or 0
        return (status, *capsys.readouterr())

    return run


def test_a_refusal_and_fresh_at_the_command_line(command, module, tmp_path):
    name = module(METHOD.format(imports="", factor="1.0"))
    Path("mine.toml").write_text(
        f'replicas = 1\nmethods = ["{name}:Mine"]\nengine = "looped"\n'
        '[stream]\nname = "digits"\ntasks = 2\n[training]\nupdates = 2\n'
    )
    assert command("run", "mine.toml")[0] == 0
    module(METHOD.format(imports="", factor="0.0"), name)
    restart(name)
    was = rows(Path("runs/mine"))
    status, out, err = command("run", "mine.toml")
    assert (status, out) == (2, "")
    (line,) = err.strip().splitlines()
    assert line.startswith("dpmcl: ")
    assert f"{name}.py" in line
    assert rows(Path("runs/mine")) == was
    assert command("table", "runs/mine")[0] == 0
    status, out, err = command("run", "mine.toml", "--fresh")
    assert status == 0
    assert "runs/mine/before-fresh" in err
    assert os.listdir("runs") == ["mine"]  # noqa: PTH208


# folders of version 0.1


def make_old(folder: Path) -> None:
    """Make a folder what version 0.1 would have left."""
    (folder / "code.json").unlink()
    info = json.loads((folder / "stream.json").read_text())
    if info.pop("digest_seed", None) is not None:
        info["digest"] = ""
    (folder / "stream.json").write_text(json.dumps(info, indent=1) + "\n")


def test_a_folder_of_version_0_1_is_shown_and_not_extended(module, tmp_path, caplog):
    name = module(METHOD.format(imports="", factor="1.0"))
    folder = tmp_path / "run"
    dpmcl.run(method_spec(name), out=folder)
    make_old(folder)
    with caplog.at_level(logging.WARNING, "dpmcl"):
        shown = dpmcl.run(method_spec(name), out=folder, watch=untrained)
    assert shown.errors[f"{name}:Mine"].seeds == (0,)
    assert "did not record code" in caplog.text
    refused(folder, "0.1", "--fresh", spec=method_spec(name), replicas=2)
    dpmcl.run(method_spec(name), replicas=2, out=folder, fresh=True)
    assert dpmcl.load(folder).rows()[0]["replicas"] == 2


@pytest.mark.parametrize("stream", ["digits", "oscillator"])
def test_a_folder_of_version_0_1_is_extended_by_the_package_s_own(stream, tmp_path):
    spec = {**BASE, "stream": {"name": stream, "tasks": 2}}
    folder = tmp_path / "run"
    dpmcl.run(spec, out=folder)
    make_old(folder)
    assert dpmcl.run(spec, replicas=2, methods=["er", "naive"], out=folder).rows()
    assert json.loads((folder / "stream.json").read_text())["digest"]


@pytest.mark.parametrize(
    ("stream", "method"),
    [({"name": "sine", "rows": 20, "outputs": 3}, "er"), ({"name": "digits"}, "oml")],
)
def test_rows_of_version_0_1_whose_numbers_have_moved_get_no_further_seeds(
    stream, method, tmp_path
):
    spec = {**BASE, "stream": {**stream, "tasks": 2}, "methods": [method]}
    folder = tmp_path / "run"
    dpmcl.run(spec, out=folder)
    make_old(folder)
    assert dpmcl.run(spec, out=folder).rows()[0]["replicas"] == 1
    refused(folder, "0.1", method, "--fresh", spec=spec, replicas=2)


# scripts and notebooks


class Notebook:
    """A `__main__` whose cells are texts that Python can show again, as IPython keeps them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.main = ModuleType("__main__")
        monkeypatch.setitem(sys.modules, "__main__", self.main)

    def cell(self, text: str, keep: bool = True) -> Any:
        name = f"<cell {next(numbers)}>"
        if keep:
            linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec"), vars(self.main))
        return self.main


@pytest.fixture
def notebook(monkeypatch) -> Notebook:
    return Notebook(monkeypatch)


def test_a_class_of_a_notebook(notebook, tmp_path):
    folder = tmp_path / "run"
    mine = notebook.cell(METHOD.format(imports="", factor="1.0")).Mine
    dpmcl.run(DIGITS, methods=[mine], out=folder)
    notebook.cell("result = 5")
    mine = notebook.cell(METHOD.format(imports="", factor="1.0")).Mine
    dpmcl.run(DIGITS, methods=[mine], replicas=2, out=folder)
    mine = notebook.cell(METHOD.format(imports="", factor="0.0")).Mine
    for replicas in (2, 3):
        refused(folder, "Mine", "--fresh", spec=DIGITS, methods=[mine], replicas=replicas)
    dpmcl.run(DIGITS, methods=[mine], out=folder, fresh=True)


@pytest.mark.parametrize(
    ("first", "second", "factor"),
    [
        ("FACTOR = 1.0", "FACTOR = 0.0", "FACTOR"),
        ("FACTOR = [1.0]", "FACTOR.append(2.0)", "FACTOR[-1]"),
        ("def factor(): return 1.0", "def factor(): return 0.0", "factor()"),
        ("LENGTH = 1\ndef factor(): return LENGTH", "LENGTH = 0", "factor()"),
        ("factor = lambda: 1.0", "factor = lambda: 0.0", "factor()"),
        ("def factor(x=1.0): return x", "def factor(x=0.0): return x", "factor()"),
        ("import torch\nFACTOR = torch.ones(2)", "FACTOR = torch.zeros(2)", "FACTOR[0]"),
        ("class Base:\n  def f(s): return 1", "class Base:\n  def f(s): return 0", "Base().f()"),
        ("class A:\n  x = 1.0\n  def f(s): return s.x", "A.x = 0.0", "A().f()"),
        (
            "from types import SimpleNamespace\nARGS = SimpleNamespace(factor=1.0)",
            "ARGS.factor = 0.0",
            "ARGS.factor",
        ),
        ("RULES = {'a': lambda: 1.0}", "RULES = {'a': lambda: 0.0}", "RULES['a']()"),
        ("RULES = {1: lambda: 1, 2: lambda: 1}", "RULES[2] = lambda: 0", "RULES[1]() * RULES[2]()"),
        (
            "def made(x):\n  def f(n): return f(n - 1) if n else x\n  return f\nf = made(1.0)",
            "f = made(0.0)",
            "f(2)",
        ),
        (
            "def made(x):\n  def factor(): return x\n  return factor\nfactor = made(1.0)",
            "factor = made(0.0)",
            "factor()",
        ),
    ],
)
def test_what_a_notebook_s_class_uses_counts(first, second, factor, notebook, tmp_path):
    notebook.cell(first)
    mine = notebook.cell(METHOD.format(imports="", factor=factor)).Mine
    dpmcl.run(DIGITS, methods=[mine], out=tmp_path)
    dpmcl.run(DIGITS, methods=[mine], replicas=2, out=tmp_path)
    notebook.cell(second)
    refused(tmp_path, "Mine", "--fresh", spec=DIGITS, methods=[mine])


def test_a_module_that_a_notebook_s_class_uses_counts(notebook, module, tmp_path):
    helper = module("FACTOR = 1.0\n")
    text = METHOD.format(imports=f"import {helper}\nimport numpy as np", factor=f"{helper}.FACTOR")
    mine = notebook.cell(text).Mine
    dpmcl.run(DIGITS, methods=[mine], out=tmp_path / "run")
    module("FACTOR = 0.0\n", helper)
    restart(helper)
    mine = notebook.cell(text).Mine
    refused(tmp_path / "run", f"{helper}.py", spec=DIGITS, methods=[mine])


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_class_without_a_source_is_never_reused(replicas, notebook, tmp_path):
    mine = notebook.cell(METHOD.format(imports="", factor="1.0"), keep=False).Mine
    folder = tmp_path / "run"
    dpmcl.run(DIGITS, methods=[mine], out=folder)
    refused(folder, "no source", "--fresh", spec=DIGITS, methods=[mine], replicas=replicas)
    assert dpmcl.load(folder).errors
    dpmcl.run(DIGITS, methods=["er"], out=folder)  # of which nothing is in doubt
    dpmcl.run(DIGITS, methods=[mine], out=tmp_path / "other")


SCRIPT = """
import sys
import dpmcl
{method}
if __name__ == "__main__":
    result = dpmcl.run({spec!r}, methods=[Mine], replicas={replicas}, out="run")
"""


def test_a_script_may_ask_for_more_and_not_for_other_code(tmp_path, monkeypatch):
    """`replicas` may change in it, and what stands around the class."""
    monkeypatch.chdir(tmp_path)

    def run(factor: str, replicas: int) -> Any:
        method = METHOD.format(imports="", factor=factor)
        text = SCRIPT.format(method=method, spec=DIGITS, replicas=replicas)
        Path("script.py").write_text("# a comment\n" * replicas + text)
        return runpy.run_path("script.py", run_name="__main__")["result"]

    assert run("1.0", 1).rows()[0]["replicas"] == 1
    assert run("1.0", 2).rows()[0]["replicas"] == 2
    with pytest.raises(FolderError, match=r"Mine.*--fresh"):
        run("0.0", 2)


# --fresh


@pytest.fixture
def finished(tmp_path) -> Path:
    dpmcl.run(DIGITS, out=tmp_path / "run")
    return tmp_path / "run"


def beside(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.parent.iterdir() if p != folder)


FASTER = {**DIGITS, "training": {"updates": 1, "batch": 4}}


def test_fresh_starts_anew(finished):
    (finished / "notes.txt").write_text("mine")
    was, seen = rows(finished), []

    def look(*_: Any) -> None:
        seen.append(rows(finished / "before-fresh") == was)

    result = dpmcl.run(FASTER, out=finished, fresh=True, watch=look)
    assert result.spec["training"]["updates"] == 1
    assert seen
    assert all(seen)
    assert beside(finished) == []
    assert (finished / "notes.txt").read_text() == "mine"
    expected = dpmcl.run(FASTER).errors["er"].values
    np.testing.assert_array_equal(dpmcl.load(finished).errors["er"].values, expected)
    assert not (finished / ".fresh.json").exists()


def interrupted(spec: Any, folder: Path, after: str = "er") -> None:
    def leave(method: str, done: int, total: int) -> None:
        if method == after and done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dpmcl.run(spec, out=folder, watch=leave, fresh=True, methods=["naive", "er"])


def test_fresh_that_is_interrupted_loses_nothing(finished, caplog):
    was = rows(finished)
    with caplog.at_level(logging.WARNING, "dpmcl"):
        interrupted(FASTER, finished)
    kept = finished / "before-fresh"
    assert str(kept) in caplog.text
    assert rows(kept) == was
    assert dpmcl.load(kept).errors["er"].seeds == (0,)
    assert list(dpmcl.load(finished).errors) == ["naive"]
    dpmcl.run(FASTER, methods=["naive"], out=finished)  # which is not all that was asked for
    assert beside(finished) == ["before-fresh"]
    dpmcl.run(FASTER, methods=["er"], out=finished)
    assert beside(finished) == []
    assert set(dpmcl.load(finished).errors) == {"naive", "er"}


def test_fresh_twice_keeps_both(finished):
    was = rows(finished)
    interrupted(FASTER, finished)
    partly = rows(finished)
    interrupted(DIGITS, finished, after="naive")
    assert beside(finished) == ["before-fresh", "before-fresh-2"]
    assert rows(finished / "before-fresh") == was
    assert rows(finished.parent / "before-fresh-2") == partly
    dpmcl.run(DIGITS, methods=["naive", "er"], out=finished)
    assert beside(finished) == []


def test_fresh_leaves_a_folder_of_the_user_s_alone(finished):
    (finished / "before-fresh").mkdir()
    (finished / "before-fresh" / "mine").touch()
    dpmcl.run(FASTER, out=finished, fresh=True)
    assert beside(finished) == ["before-fresh"]
    assert (finished / "before-fresh" / "mine").exists()


def test_a_copy_of_an_unfinished_folder_removes_nothing(finished):
    interrupted(FASTER, finished)
    finished.rename(finished.parent / "copy")
    dpmcl.run(FASTER, methods=["naive", "er"], out=finished.parent / "copy")
    assert (finished / "before-fresh" / "errors.parquet").exists()


@pytest.mark.parametrize("cut", range(1, 6))
def test_fresh_that_is_cut_short_while_it_moves(cut, finished, monkeypatch):
    """Every file is in one of the two folders, and the next run completes the move."""
    (finished / ".lock").unlink()
    files = {p.relative_to(finished): p.read_bytes() for p in finished.rglob("*.*") if p.is_file()}
    calls, rename = itertools.count(1), Path.rename

    def end(path: Path, target: Any) -> Any:
        if path.parent == finished and not path.name.startswith(".") and next(calls) == cut:
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "rename", end)
        dpmcl.run(FASTER, out=finished, fresh=True)
    seen = []

    def look(*_: Any) -> None:
        kept = finished / "before-fresh"
        seen.append({p.relative_to(kept): p.read_bytes() for p in kept.rglob("*.*") if p.is_file()})

    dpmcl.run(FASTER, out=finished, watch=look)
    assert seen[0] == files
    assert beside(finished) == []


def bad_network(*_: Any) -> Any:
    raise ModelError("no such network")


def test_bad_input_is_refused_before_anything_moves(finished, tmp_path, monkeypatch):
    files = {p: p.read_bytes() for p in finished.rglob("*") if p.is_file()}
    gone = of_table(tmp_path / "gone.csv")
    for spec in (gone, {**DIGITS, "stream": {"name": "digits", "tasks": 99}}):
        with pytest.raises(dpmcl.DpmclError):
            dpmcl.run(spec, out=finished, fresh=True)
    from dpmcl.networks.mlp import MLP

    monkeypatch.setattr(MLP, "build", bad_network)
    with pytest.raises(ModelError):
        dpmcl.run(FASTER, out=finished, fresh=True)
    assert {p: p.read_bytes() for p in finished.rglob("*") if p.is_file()} == files
    assert beside(finished) == []


def test_fresh_on_no_run(tmp_path):
    dpmcl.run(DIGITS, out=tmp_path / "new", fresh=True)
    assert dpmcl.load(tmp_path / "new").errors
    (tmp_path / "other").mkdir()
    dpmcl.run(DIGITS, out=tmp_path / "other", fresh=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(FolderError, match=r"thesis\.tex.*leave out --fresh"):
        dpmcl.run(DIGITS, out=tmp_path / "mine", fresh=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine", "new", "other"]


def test_fresh_in_a_folder_that_another_process_holds(finished):
    with locked(finished), pytest.raises(FolderError, match="being written to"):
        dpmcl.run(FASTER, out=finished, fresh=True)
    assert dpmcl.load(finished).spec["training"]["updates"] == 2


def test_fresh_on_a_damaged_folder(finished):
    (finished / "errors.parquet").write_bytes(b"PAR1")
    dpmcl.run(DIGITS, out=finished, fresh=True)
    assert dpmcl.load(finished).errors["er"].seeds == (0,)


def test_fresh_in_the_folder_itself_at_the_command_line(finished, command, monkeypatch):
    """The folder is the current one, and its own spec.toml is the source."""
    monkeypatch.chdir(finished)
    status, out, err = command("run", ".", "--fresh")
    assert status == 0
    assert "er" in out
    assert "is kept in" in err
    assert beside(finished) == []
    assert dpmcl.load(finished).errors["er"].seeds == (0,)


# versions


def test_another_version_is_said(finished, caplog):
    path = finished / "environment.json"
    path.write_text(path.read_text().replace('"dpmcl": "', '"dpmcl": "9.'))
    with caplog.at_level(logging.WARNING, "dpmcl"):
        dpmcl.run(DIGITS, out=finished, watch=untrained)
        assert caplog.text == ""
        dpmcl.run(DIGITS, replicas=2, out=finished)
    assert "dpmcl 9." in caplog.text
