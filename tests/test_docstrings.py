"""Docstrings of public functions: a sentence, and Args, Returns and Raises in Google form."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import dpmcl
from dpmcl import exceptions

ROOT = Path(dpmcl.__file__).parent
COMMANDS = {ROOT / "cli" / f"{name}.py" for name in ("learner", "results", "run", "show", "study")}
SOURCES = [path for path in sorted(ROOT.rglob("*.py")) if path not in COMMANDS]  # Typer's help


def public_functions(node: ast.AST) -> Iterator[ast.FunctionDef]:
    """Yield the public functions of a module, and the public methods of its classes."""
    for child in getattr(node, "body", ()):
        if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            yield from public_functions(child)
        if isinstance(child, ast.FunctionDef) and not child.name.startswith("_"):
            yield child


def has_result(function: ast.FunctionDef) -> bool:
    """Return True if a function returns a value that its docstring must describe."""
    decorators = " ".join(map(ast.unparse, function.decorator_list))
    if function.returns is None or "property" in decorators or "contextmanager" in decorators:
        return False
    return ast.unparse(function.returns) not in ("None", "NoReturn")


def raised(function: ast.FunctionDef) -> set[str]:
    """Names of the package's errors in the raise statements of a function."""
    calls = (n.exc for n in ast.walk(function) if isinstance(n, ast.Raise))
    names = (getattr(call.func, "id", "") for call in calls if isinstance(call, ast.Call))
    return {name for name in names if name.endswith("Error") and name in vars(exceptions)}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_argument_and_error_is_documented(path):
    missing = []
    for function in public_functions(ast.parse(path.read_text("utf-8"))):
        text = ast.get_docstring(function)
        if text is None:  # an override, which inherits it (ruff's D102)
            continue
        arguments = function.args
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        for name in names:
            listed = re.search(rf"^\s+(\w+, )*{name}(, \w+)*:", text, re.MULTILINE)
            if name not in ("self", "cls") and not listed:
                missing.append(f"{function.name}: {name}")
        missing += [f"{function.name}: {name}" for name in raised(function) if name not in text]
        stated = (
            re.search(r"\b([Rr]eturn|[Yy]ield)\b", text.partition("\n")[0]) or "Returns:" in text
        )
        if has_result(function) and not stated:
            missing.append(f"{function.name}: Returns")
    assert not missing
