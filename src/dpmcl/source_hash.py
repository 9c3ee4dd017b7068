"""Hash the source of a class from outside the package, and of the user's code that it uses.

A class in a file stands for its whole module and, in turn, for the modules that are imported
there. A class of a script or a notebook (`__main__`) stands for its own source, and in
turn for the functions, classes, constants and modules that its code names: the rest of a script may
change from run to run. Installed libraries and the package itself are left out.
"""

import __future__

import ast
import dis
import functools
import hashlib
import inspect
import linecache
import operator
import sys
import sysconfig
import warnings
import weakref
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from importlib.machinery import SourceFileLoader
from pathlib import Path, PurePath
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpmcl import fingerprint
from dpmcl.exceptions import FolderError

_LIBRARIES = tuple(
    Path(sysconfig.get_path(key)).resolve()
    for key in ("stdlib", "platstdlib", "purelib", "platlib")
)
_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_PRINTED = (
    *(bool, int, float, complex, str, bytes, range, slice, type(None), type(...)),
    *(Enum, PurePath, torch.dtype, torch.device),
)
"""Types whose values are told apart by what they print."""

_CONSTANT = (bool, int, float, complex, str, bytes, tuple)

_FORMS = ("typing", "types", "collections.abc", "annotated_types")
"""Modules of the objects that annotations are made of, which print what they are."""

_FUTURE = functools.reduce(
    operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)

_imported: dict[str, tuple[Any, str]] = {}
"""By module: the spec it was imported by, which a reload replaces, and the hash of its source."""

_texts: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""By class or function, the script or cell as it was when first read; a script may be edited while
it runs.
"""


class _NoSourceError(Exception):
    """A source that cannot be read, or a value that cannot be compared."""


@dataclass(frozen=True)
class Source:
    """Hashes of all code of a plugin.

    hashes: SHA-256 by the name of a module, or of a name in a script or notebook.
    missing: why there are none; then nobody can tell whether the code is the same.
    """

    hashes: Mapping[str, str] = field(default_factory=dict)
    missing: str = ""


@dataclass(frozen=True)
class _Module:
    """A module in a file, which counts as a whole."""

    name: str
    file: Path


@dataclass(frozen=True, eq=False)
class _Value:
    """What a name in a script or notebook stands for."""

    name: str
    value: Any


_Part = _Module | _Value


def source(cls: type, home: str) -> Source:
    """Return the hashes of the code of a class that was found in the module `home`.

    Raises:
        FolderError: A file was changed after Python had imported it.
    """
    parts = [part for base in cls.__mro__ for part in _parts(_name(base), base)]
    module = sys.modules.get(home)
    if module is not None and (file := _file(module)) is not None:
        parts.append(_Module(home, file))
    hashes: dict[str, str] = {}
    try:
        with warnings.catch_warnings(action="ignore"):  # of the user's source, compiled once more
            while parts:
                part = parts.pop()
                if part.name not in hashes:
                    hashes[part.name], uses = _read(part)
                    parts += uses
    except _NoSourceError as error:
        return Source(missing=str(error))
    except RecursionError:
        return Source(missing=f"{_name(cls)} uses a value that holds itself")
    return Source(dict(sorted(hashes.items())))


def file_of(name: str) -> str:
    """Return the file of a hashed module, or the name itself where it has none."""
    return str(_file(sys.modules.get(name)) or name)


def _name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _file(module: ModuleType | None) -> Path | None:
    """Return the file that stands for a module; None for a script and for what has no file."""
    file = getattr(module, "__file__", None)
    if module is None or not isinstance(file, str) or module.__name__ == "__main__":
        return None
    return Path(file)


def _parts(name: str, value: Any) -> list[_Part]:
    """Return what has to be hashed for a value that the user's code names."""
    if isinstance(value, ModuleType):
        return _modules(value)
    value = inspect.unwrap(value) if callable(value) else value
    if not isinstance(value, type | FunctionType):
        # A function in C is a library's.
        return [] if callable(value) and hasattr(value, "__name__") else [_Value(name, value)]
    module = sys.modules.get(value.__module__)
    if _library(module):
        return []
    file = _file(module)
    return [_Value(name, value) if file is None else _Module(value.__module__, file)]


def _modules(value: ModuleType) -> list[_Part]:
    """Return all loaded modules of the user's that a module's name leads to."""
    if _file(value) is not None and _library(value):
        return []
    start = f"{value.__name__}."
    inside = [m for name, m in list(sys.modules.items()) if f"{name}.".startswith(start)]
    files = [(m.__name__, _file(m)) for m in inside if not _library(m)]
    return [_Module(name, file) for name, file in files if file is not None]


def _library(module: ModuleType | None) -> bool:
    """Return True for the package itself, the standard library and what is installed."""
    if module is None or module.__name__ == "__main__" or module.__spec__ is None:
        return False
    file = _file(module)
    return file is None or module.__name__.partition(".")[0] == "dpmcl" or _installed(file)


def _installed(file: Path) -> bool:
    if {"site-packages", "dist-packages"} & set(file.parts):
        return True
    return any(file.resolve().is_relative_to(folder) for folder in _LIBRARIES)


def _read(part: _Part) -> tuple[str, list[_Part]]:
    """Return the hash of a piece of code, and what it uses in turn."""
    if isinstance(part, _Module):
        return _read_module(part)
    if isinstance(part.value, type):
        return _read_class(part.value)
    if isinstance(part.value, FunctionType):
        return _read_function(part.value)
    out = hashlib.sha256()
    uses: list[_Part] = []
    _add(out, part.name, part.value, uses)
    return out.hexdigest(), uses


# a module in a file


def _read_module(part: _Module) -> tuple[str, list[_Part]]:
    try:
        content = part.file.read_bytes()
    except OSError as error:
        raise _NoSourceError(f"{part.file} cannot be read ({error.strerror})") from None
    digest = hashlib.sha256(content).hexdigest()
    tree = _parsed(content) if part.file.suffix == ".py" else None
    uses = [] if tree is None else _beside(part, tree)
    module = sys.modules.get(part.name)
    if module is None:  # it is imported later
        return digest, uses
    spec, first = _imported.get(part.name, (None, ""))
    same = first == digest if spec is module.__spec__ else _as_imported(module, part.file, content)
    if not same:
        raise FolderError(
            f"{part.file} was changed after Python had imported it, so results would be stored as "
            "those of code that did not run; restart Python."
        )
    _imported[part.name] = (module.__spec__, digest)
    held = [value for value in vars(module).values() if isinstance(value, ModuleType)]
    by_path = [value for value in held if sys.modules.get(value.__name__) is not value]
    uses += [
        _Module(value.__name__, file)
        for value in by_path
        if not _library(value) and (file := _file(value)) is not None
    ]
    set_since = {} if tree is None else _set_since(tree, vars(module), _stored(tree))
    return _hash(f"{digest} {set_since}") if set_since else digest, uses


def _parsed(content: bytes) -> ast.Module | None:
    try:
        return ast.parse(content)
    except (SyntaxError, ValueError):
        return None


def _as_imported(module: ModuleType, file: Path, content: bytes) -> bool:
    """Return whether the functions of a loaded module are those of a source."""
    if type(module.__spec__ and module.__spec__.loader) is not SourceFileLoader:
        return True  # such as pytest's, which compiles another text
    try:
        written = set(_nested(compile(content, file, "exec", dont_inherit=True)))
    except (SyntaxError, ValueError):
        return False
    codes = [f.__code__ for f in _functions(module, module.__name__)]
    return all(code in written for code in codes if code.co_filename == str(file))


def _set_since(
    node: ast.Module | ast.ClassDef, space: Mapping[str, Any], stored: Counter[str]
) -> dict[str, Any]:
    """Return constants of a module, and of its classes, that are not as the source has them.

    Another module has set them, or the file was edited after its import.
    """
    out: dict[str, Any] = {}
    for statement in node.body:
        match statement:
            case ast.ClassDef(name=name) if isinstance(cls := space.get(name), type):
                out |= _set_since(statement, vars(cls), stored)
                continue
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.expr() as expression):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as expression):
                pass
            case _:
                continue
        value = space.get(name)
        if isinstance(value, _CONSTANT) and stored[name] == 1:
            try:
                written = ast.literal_eval(expression)
            except (ValueError, TypeError, SyntaxError):
                continue
            if type(written) is not type(value) or written != value:
                out[name] = value
    return out


def _stored(tree: ast.Module | ast.ClassDef) -> Counter[str]:
    """Count the places that assign to a name."""
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    return Counter(name.id for name in names if isinstance(name.ctx, ast.Store))


def _functions(holder: Any, module: str) -> Iterator[FunctionType]:
    """Yield the functions of a module or class, and those of the classes in it."""
    for value in list(vars(holder).values()):
        value = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
        if isinstance(value, type):
            if value.__module__ == module and value is not holder:
                yield from _functions(value, module)
        elif callable(value) and isinstance(plain := inspect.unwrap(value), FunctionType):
            yield plain


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _beside(part: _Module, tree: ast.Module) -> list[_Part]:
    """Return the modules that a file imports, wherever they lie.

    From among installed libraries, only modules of its own package.
    """
    package = part.name if part.file.stem == "__init__" else part.name.rpartition(".")[0]
    root = part.file.parents[part.name.count(".") + (part.file.stem == "__init__")]
    top = part.name.partition(".")[0]
    found: list[_Part] = []
    for name in sorted(_imports(tree, package)):
        own = name.partition(".")[0]
        if own == "dpmcl" or (own != top and _installed(part.file)):
            continue
        place = root.joinpath(*name.split("."))
        files = [place / "__init__.py", place.with_name(f"{place.name}.py")]
        loaded = _file(sys.modules.get(name))
        if loaded is not None:  # it may be compiled, or lie in another folder
            files = [loaded] if own == top or not _installed(loaded) else []
        found += [_Module(name, file) for file in files if file.is_file()][:1]
    return found


def _imports(tree: ast.Module, package: str) -> set[str]:
    """Return the dotted names of all that may be a module in a file's imports."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                names |= {alias.name for alias in aliases}
            case ast.ImportFrom(module=module, names=aliases, level=level):
                parents = package.split(".")[: package.count(".") + 2 - level] if level else []
                base = ".".join([*parents, *([module] if module else [])])
                names |= {base, *(f"{base}.{alias.name}" for alias in aliases)}
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                names.add(name)
    parts = [name.split(".") for name in names]
    return {".".join(part[: i + 1]) for part in parts for i in range(len(part)) if all(part)}


# a name in a script or notebook


def _read_class(cls: type) -> tuple[str, list[_Part]]:
    """Return the hash of a class statement, found by the code of its methods."""
    space = sys.modules.get(cls.__module__)
    codes = [f.__code__ for f in _functions(cls, cls.__module__) if not _generated(f)]
    files = {code.co_filename for code in codes} or {str(getattr(space, "__file__", ""))}
    text = _text(cls, next(iter(files)), codes)
    nodes = [
        node
        for node in ast.walk(_parsed(text.encode()) or ast.Module([], []))
        if isinstance(node, ast.ClassDef) and node.name == cls.__name__
        if all(node.lineno <= c.co_firstlineno <= (node.end_lineno or 0) for c in codes)
    ]
    if space is None or len(files) > 1 or not nodes:
        raise _NoSourceError(f"{_name(cls)} has no source that can be read")
    node = nodes[-1]
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    lines = text.splitlines()[first - 1 : node.end_lineno]
    statement = compile(ast.Module([node], []), "<class>", "exec", dont_inherit=True)
    set_since = _set_since(node, vars(cls), _stored(node))
    text = "\n".join(lines) + (f" {set_since}" if set_since else "")
    return _hash(text), _used(statement, vars(space))


def _generated(function: FunctionType) -> bool:
    """Return True for what `dataclass` adds to a class."""
    code = function.__code__
    made = code.co_filename == "<string>" and function.__name__.startswith("__")
    return made or _installed(Path(code.co_filename))


def _read_function(function: FunctionType) -> tuple[str, list[_Part]]:
    code = function.__code__
    text = _text(function, code.co_filename, [code])
    if not text:
        raise _NoSourceError(f"{_name(function)} has no source that can be read")
    lines = inspect.getblock(text.splitlines(keepends=True)[code.co_firstlineno - 1 :])
    parts = _used(code, function.__globals__)
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    held = [(name, cell.cell_contents) for name, cell in cells]
    held += [(str(i), value) for i, value in enumerate(function.__defaults__ or ())]
    held += sorted((function.__kwdefaults__ or {}).items())
    parts += [p for name, value in held for p in _parts(f"{_name(function)}.{name}", value)]
    return _hash("".join(lines)), parts


def _used(code: CodeType, space: Mapping[str, Any]) -> list[_Part]:
    """Return what stands behind the global names in a piece of code."""
    names = {
        instruction.argval
        for inner in _nested(code)
        for instruction in dis.get_instructions(inner)
        if instruction.opname in _GLOBAL and instruction.argval in space
        if not instruction.argval.startswith("__")  # a class statement's own
    }
    return [part for name in sorted(names) for part in _parts(f"__main__.{name}", space[name])]


def _text(value: Any, file: str, codes: list[CodeType]) -> str:
    """Return the text that a class or function was made from; empty where there is none."""
    if value not in _texts:
        linecache.checkcache(file)
        text = "".join(linecache.getlines(file))
        if not text or not _written(codes, text):
            return ""
        _texts[value] = text
    return _texts[value]


def _written(codes: list[CodeType], text: str) -> bool:
    """Return whether a text has the code that runs, and not that of a later edit."""
    if not codes:
        return True
    flags = codes[0].co_flags & _FUTURE  # a notebook keeps those of earlier cells
    try:
        written = set(_nested(compile(text, "<text>", "exec", flags, dont_inherit=True)))
    except (SyntaxError, ValueError):
        return False
    return all(code in written for code in codes)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _add(out: Any, name: str, value: Any, uses: list[_Part]) -> None:
    """Add a value to a hashlib sum, and the code in it to `uses`.

    Raises:
        _NoSourceError: It cannot be compared.
    """
    size = len(value) if isinstance(value, list | tuple | dict) else ""
    out.update(f"{type(value).__qualname__}{size}:".encode())
    if isinstance(value, Tensor):
        fingerprint.add(out, value)
    elif isinstance(value, np.ndarray) and value.dtype != object:
        out.update(f"{value.dtype} {value.shape}".encode() + value.tobytes())
    elif isinstance(value, _PRINTED) or type(value).__module__ in _FORMS:
        out.update(f"{value!r};".encode())
    elif isinstance(value, list | tuple):
        for item in value:
            _add(out, name, item, uses)
    elif isinstance(value, dict):
        _add(out, name, list(value.items()), uses)
    elif isinstance(value, set | frozenset):
        _add(out, name, sorted(map(repr, value)), uses)
    elif isinstance(value, ModuleType) or (callable(value) and hasattr(value, "__name__")):
        out.update(value.__name__.encode())
        uses += _parts(f"{name}.{value.__name__}", value)
    elif is_dataclass(value):
        uses += _parts(_name(type(value)), type(value))
        _add(out, name, [getattr(value, f.name, None) for f in fields(value)], uses)
    elif isinstance(value, SimpleNamespace | Namespace):
        _add(out, name, vars(value), uses)
    else:
        raise _NoSourceError(f"{name} is a {type(value).__qualname__}, which cannot be compared")
