"""Which edits of the user's code change the hash of a class, and which do not."""

import importlib
import linecache
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dpmcl
from conftest import TINY_SPEC
from dpmcl.exceptions import FolderError
from dpmcl.study.source_hash import Source, source

LIB = {"lib/__init__.py": "from . import inner", "lib/inner.py": "from .deep import A"}


def restart(folder: Path) -> None:
    """Forget the imported modules of a folder, as a new Python process would."""
    importlib.invalidate_caches()
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(folder)):
            del sys.modules[name]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of user code, from which Python imports."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    restart(tmp_path)


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text + "\n")


def hashes_of(module: str = "plug") -> dict[str, str]:
    code = source(importlib.import_module(module).Mine, module)
    assert code.hashes is not None, code.missing
    return code.hashes


@pytest.mark.parametrize(
    ("text", "files", "edited", "module"),
    [
        ("", {}, "plug.py", "plug"),
        ("from helper import A", {"helper.py": "A = 1"}, "helper.py", "helper"),
        ("import a", {"a.py": "import b", "b.py": "A = 1"}, "b.py", "b"),
        ("def late():\n    import helper", {"helper.py": "A = 1"}, "helper.py", "helper"),
        ("import lib", LIB | {"lib/deep.py": "A = 1"}, "lib/deep.py", "lib.deep"),
    ],
)
def test_an_edit_of_a_file_that_counts(text, files, edited, module, folder):
    files = {"plug.py": f"{text}\nclass Mine:\n    pass", **files}
    write(folder, files)
    before = hashes_of()
    restart(folder)
    assert hashes_of() == before
    write(folder, {edited: files[edited] + "\n# edited"})
    restart(folder)
    assert {name for name, _ in before.items() ^ hashes_of().items()} == {module}


def test_unrelated_files_and_libraries_do_not_count(folder):
    text = "import json, numpy\nfrom helper import A\nclass Mine:\n    x = 1"
    write(folder, {"unrelated.py": "", "A.py": "", "helper.py": "A = 1", "plug.py": text})
    importlib.import_module("unrelated")
    assert list(hashes_of()) == ["helper", "plug"]


@pytest.mark.parametrize(
    "text",
    [
        "import importlib.util",
        "from importlib import import_module",
        "exec('b')",
        "__import__('b')",
    ],
)
def test_code_that_may_import_anything_is_never_the_same(text, folder):
    write(folder, {"plug.py": f"def late():\n    {text}\nclass Mine:\n    pass"})
    code = source(importlib.import_module("plug").Mine, "plug")
    assert code.hashes is None
    assert "plug.py imports by importlib" in code.missing


@pytest.mark.parametrize(
    ("text", "second"),
    [("def a():\n    return 1", "def a():\n    return 0"), ("A = 1", "A = 0")],
)
@pytest.mark.parametrize("hashed_before", [True, False])
def test_a_file_changed_after_its_import_is_refused(text, second, hashed_before, folder):
    """The old code runs; its results must not be stored as those of the new file."""
    write(folder, {"plug.py": "import helper\nclass Mine:\n    pass", "helper.py": text})
    importlib.import_module("plug")
    before = hashes_of() if hashed_before else {}
    write(folder, {"helper.py": second})
    for _ in range(2):
        with pytest.raises(FolderError, match=r"helper\.py was changed .* restart Python"):
            hashes_of()
    importlib.reload(sys.modules["helper"])
    assert hashes_of() != before


@pytest.mark.parametrize("hashed_before", [True, False])
@pytest.mark.parametrize("replaced", ["A", "SIZES", "function", "method"])
def test_what_other_code_replaces_in_a_module_is_refused(replaced, hashed_before, folder):
    text = "A = 1\nSIZES = [8, {'a': 1}]\nCACHE = [0]\nREGISTRY = {}\n"
    text += "def function(): CACHE.append(1)\nclass Mine:\n    seen = []\n    def method(self): 2"
    write(folder, {"plug.py": text})
    plug = importlib.import_module("plug")
    if hashed_before:
        hashes_of()
    plug.function()
    plug.REGISTRY["a"] = 1
    plug.Mine.seen.append(1)
    hashes_of()
    owner = plug.Mine if replaced == "method" else plug
    if replaced == "SIZES":
        plug.SIZES[1]["a"] = 2
    else:
        setattr(owner, replaced, 2 if replaced == "A" else lambda *_: 3)
    with pytest.raises(FolderError, match=r"plug\.py .* other code has replaced a constant"):
        hashes_of()


# scripts and notebooks


class Notebook:
    """A `__main__` of cells, whose source `inspect` can find, as it can in IPython."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        linecache.clearcache()
        self.main, self.cells = ModuleType("__main__"), 0
        monkeypatch.setitem(sys.modules, "__main__", self.main)

    def cell(self, text: str, keep: bool = True) -> Any:
        self.cells += 1
        name = f"<cell {self.cells}>"
        if keep:
            linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec"), vars(self.main))
        return self.main

    def mine(self, value: str) -> Source:
        """Run a cell with a class that uses a value, and hash the class."""
        text = f"class Mine:\n    def value(self):\n        return {value}\n"
        return source(self.cell(text).Mine, "__main__")


@pytest.fixture
def notebook(monkeypatch) -> Notebook:
    return Notebook(monkeypatch)


NESTED = "def made(x):\n  def f(n): return f(n - 1) if n else x\n  return f\n"


@pytest.mark.parametrize(
    ("first", "second", "value"),
    [
        ("FACTOR = [1.0]", "FACTOR.append(2.0)", "FACTOR[-1]"),
        ("LENGTH = 1\ndef factor(): return LENGTH", "LENGTH = 0", "factor()"),
        ("factor = lambda: 1.0", "factor = lambda: 0.0", "factor()"),
        ("def factor(x=1.0): return x", "def factor(x=0.0): return x", "factor()"),
        ("class Base:\n  def f(s): return 1", "class Base:\n  def f(s): return 0", "Base().f()"),
        ("class A:\n  x = 1.0\n  def f(s): return s.x", "A.x = 0.0", "A().f()"),
        ("RULES = {1: lambda: 1, 2: lambda: 1}", "RULES[2] = lambda: 0", "RULES[2]()"),
        (f"{NESTED}f = made(1.0)", "f = made(0.0)", "f(2)"),
        ("import torch\nT = torch.ones(2)", "T = torch.zeros(2)", "T.sum()"),
    ],
)
def test_a_value_that_a_notebook_s_class_uses_counts(first, second, value, notebook):
    notebook.cell(first)
    before = notebook.mine(value)
    assert before.hashes
    notebook.cell("result = 5")
    assert notebook.mine(value) == before
    notebook.cell(second)
    assert notebook.mine(value) != before


@pytest.mark.parametrize("value", ["np.ones(helper.A)", "late()"])
def test_a_module_that_a_notebook_s_class_uses_counts(value, notebook, folder):
    write(folder, {"helper.py": "A = 1"})
    text = "import helper, numpy as np\ndef late():\n    import helper\n    return helper.A"
    notebook.cell(text)
    before = notebook.mine(value).hashes
    assert before is not None
    assert set(before) == {"__main__.Mine", "helper"}
    write(folder, {"helper.py": "A = 2"})
    restart(folder)
    notebook.cell(text)
    assert notebook.mine(value).hashes != before


@pytest.mark.parametrize(
    ("value", "why"),
    [("LOCK.locked()", "cannot be compared: cannot pickle '_thread.lock' object"), ("1", "")],
)
def test_code_that_cannot_be_compared(value, why, notebook):
    notebook.cell("import threading\nLOCK = threading.Lock()")
    assert notebook.mine(value).missing.endswith(why)
    text = "class Unkept:\n    def value(self):\n        return 1\n"
    unkept = source(notebook.cell(text, keep=False).Unkept, "__main__")
    assert unkept == Source(None, "__main__.Unkept.value has no source that can be read")


METHOD = """
from dpmcl.methods.naive import Naive
class Mine(Naive):
    '''Naive.'''
    def phases(self, model, task):
        return super().phases(model, task)[:{phases}]
"""


def test_a_notebook_s_class_in_a_run_folder(notebook, tmp_path):
    def mine(phases: int, keep: bool = True) -> Any:
        return notebook.cell(METHOD.format(phases=phases), keep).Mine

    dpmcl.run(TINY_SPEC, methods=[mine(1)], out=tmp_path / "run")
    dpmcl.run(TINY_SPEC, methods=[mine(1)], replicas=2, out=tmp_path / "run")
    for replicas in (2, 3):
        with pytest.raises(FolderError, match=r"other code: __main__\.Mine changed.*--fresh"):
            dpmcl.run(TINY_SPEC, methods=[mine(2)], replicas=replicas, out=tmp_path / "run")
    unkept = mine(1, keep=False)
    dpmcl.run(TINY_SPEC, methods=[unkept], out=tmp_path / "unkept")
    for replicas in (1, 2):
        with pytest.raises(FolderError, match=r"no source that can be read; choose another folder"):
            dpmcl.run(TINY_SPEC, methods=[unkept], replicas=replicas, out=tmp_path / "unkept")
    dpmcl.run(
        TINY_SPEC, methods=["er"], out=tmp_path / "unkept"
    )  # the package's own code needs no comparison


def test_a_script_may_ask_for_more_and_not_for_other_code(tmp_path, monkeypatch):
    """`replicas` may change in the script, and so may the code around the class."""
    monkeypatch.chdir(tmp_path)

    def run(phases: int, replicas: int) -> Any:
        call = f"dpmcl.run({TINY_SPEC!r}, methods=[Mine], replicas={replicas}, out='run')"
        text = f"import dpmcl\n{METHOD.format(phases=phases)}\nresult = {call}"
        Path("script.py").write_text("# a comment\n" * replicas + text)
        return runpy.run_path("script.py", run_name="__main__")["result"]

    assert run(1, 1).rows()[0]["replicas"] == 1
    assert run(1, 2).rows()[0]["replicas"] == 2
    with pytest.raises(FolderError, match=r"Mine.*--fresh"):
        run(2, 2)
