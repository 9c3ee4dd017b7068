"""Names of other packages that are not public come from one module, which says why."""

import ast
from pathlib import Path

import dpmcl
from dpmcl.core import not_public

ROOT = Path(dpmcl.__file__).parent
SOURCES = [*ROOT.rglob("*.py"), *(Path(__file__).parents[2] / "benchmarks").glob("*.py")]


def private(path: Path) -> list[str]:
    """What a file imports by a name with a part that begins with an underscore."""
    names = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    ours = ("dpmcl.", "benchmarks.")
    return [name for name in names if "._" in f".{name}" and not name.startswith(ours)]


def test_no_other_file_imports_private_names():
    with_names = {path.name: names for path in SOURCES if (names := private(path))}
    assert list(with_names) == ["not_public.py"], with_names


def test_each_private_name_has_a_reason():
    assert len(private(Path(not_public.__file__))) == len(not_public.__all__)
    for name in not_public.__all__:
        assert f"- `{name}`" in not_public.__doc__
