"""Hash the source of a class from outside the package, and of the user's code that it uses.

A class in a file stands for its whole module and, in turn, for the modules that are imported
there. A class of a script or a notebook (`__main__`) stands for its own source and, in turn, for
the functions, classes, values and modules that its code names; the rest of a script may change
from run to run. Installed libraries and the package itself are left out.
"""

import __future__

import ast
import dis
import hashlib
import inspect
import io
import linecache
import pickle
import sys
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from importlib.util import resolve_name
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from torch import Tensor

from dpmcl.exceptions import FolderError

_STANDARD = Path(sysconfig.get_path("stdlib")).resolve()

_imported: dict[str, tuple[Any, bytes]] = {}
"""Import spec, which a reload replaces, and source of each module that was hashed, by name."""


class _NoSourceError(Exception):
    """A source that cannot be read, or a value that cannot be compared."""


@dataclass(frozen=True)
class Source:
    """Hashes of all code of a plugin.

    Attributes:
        hashes: SHA-256 by the name of a module, or of a name in a script or notebook; None where
            nobody can tell whether the code is the same.
        missing: Why nobody can tell.
    """

    hashes: dict[str, str] | None
    missing: str = ""


class _Part(NamedTuple):
    """A module in a file, which counts as a whole, or the value of a name in a script."""

    name: str
    file: Path | None = None
    value: Any = None


def source(cls: type, home: str) -> Source:
    """Return the hashes of the code of a class.

    Args:
        cls: The class of a plugin.
        home: Name of the module in which it was looked up.

    Raises:
        FolderError: A file was changed after Python had imported it.
    """
    parts = [part for base in cls.__mro__ for part in _parts(_name(base), base)]
    if (file := _file(sys.modules.get(home))) is not None:
        parts.append(_Part(home, file))
    hashes: dict[str, str] = {}
    seen: set[Any] = set()
    try:
        with warnings.catch_warnings(action="ignore"):  # of the user's source, compiled once more
            while parts:
                part = parts.pop()
                # A function may hold itself, under a longer name each time.
                key = part.value if isinstance(part.value, type | FunctionType) else part.name
                if key in seen:
                    continue
                if part.name in hashes:
                    raise _NoSourceError(f"{part.name} stands for two things")
                seen.add(key)
                content, uses = _read(part)
                hashes[part.name] = hashlib.sha256(content).hexdigest()
                parts += uses
    except _NoSourceError as error:
        return Source(None, str(error))
    return Source(dict(sorted(hashes.items())))


def file_of(name: str) -> str:
    """Return the file of a hashed module, or the name itself where it has none.

    Args:
        name: A key of `Source.hashes`.
    """
    return str(_file(sys.modules.get(name)) or name)


def _name(value: Any) -> str:
    """Return the full name of a class."""
    return f"{value.__module__}.{value.__qualname__}"


def _file(module: ModuleType | None) -> Path | None:
    """Return the file of a module; None for a script, and for a module without a file."""
    file = getattr(module, "__file__", None)
    return Path(file) if isinstance(file, str) and module is not sys.modules["__main__"] else None


def _parts(name: str, value: Any) -> list[_Part]:
    """Return the parts to hash for a value that the user's code names."""
    if isinstance(value, ModuleType):  # its name leads to all that is loaded in it
        start = f"{value.__name__}."
        return _in_files(m for key, m in list(sys.modules.items()) if f"{key}.".startswith(start))
    value = inspect.unwrap(value) if callable(value) else value
    if isinstance(value, type | FunctionType):
        module = sys.modules.get(value.__module__)
        if module is not None and (_is_library(module) or _file(module) is not None):
            return _in_files([module])
    return [_Part(name, value=value)]


def _in_files(modules: Iterable[ModuleType]) -> list[_Part]:
    """Return the parts for those of some modules that are the user's and lie in files."""
    return [
        _Part(module.__name__, file)
        for module in modules
        if not _is_library(module) and (file := _file(module)) is not None
    ]


def _is_library(module: ModuleType) -> bool:
    """Return whether a module is the package's, the standard library's or an installed one."""
    if module is sys.modules["__main__"] or module.__spec__ is None:
        return False
    file = _file(module)
    return file is None or module.__name__.partition(".")[0] == "dpmcl" or _is_installed(file)


def _is_installed(file: Path) -> bool:
    """Return whether a file is of an installed library or the standard library."""
    folders = {"site-packages", "dist-packages"}
    return not folders.isdisjoint(file.parts) or file.resolve().is_relative_to(_STANDARD)


def _read(part: _Part) -> tuple[bytes, list[_Part]]:
    """Return the content to hash for a part, and the parts that it uses in turn."""
    if part.file is not None:
        return _read_module(part.name, part.file)
    if isinstance(part.value, type):
        return _read_class(part.value)
    if isinstance(part.value, FunctionType):
        return _read_function(part.name, part.value)
    return _read_value(part.name, part.value)


# a module in a file


def _read_module(name: str, file: Path) -> tuple[bytes, list[_Part]]:
    """Return the source of a module, and the modules that it imports or holds."""
    try:
        content = file.read_bytes()
        tree = ast.parse(content)
        uses = _imports(name, file, tree)
    except (OSError, SyntaxError, ValueError, ImportError):
        raise _NoSourceError(f"{file} cannot be read as Python's source") from None
    module = sys.modules.get(name)
    if module is None:  # it is imported later
        return content, uses
    spec, first = _imported.get(name, (None, b""))
    if not (first == content if spec is module.__spec__ else _is_loaded(tree, module, file)):
        raise FolderError(
            f"{file} was changed after Python had imported it, or another module has set a "
            "constant in it, so results would be stored as those of code that did not run; "
            "restart Python."
        )
    _imported[name] = (module.__spec__, content)
    modules = [value for value in vars(module).values() if isinstance(value, ModuleType)]
    # Those that were loaded by path: no import leads to them.
    return content, uses + _in_files(m for m in modules if sys.modules.get(m.__name__) is not m)


def _is_loaded(tree: ast.Module, module: ModuleType, file: Path) -> bool:
    """Return whether a source has the functions and the constants of a loaded module."""
    if type(module.__spec__ and module.__spec__.loader) is not SourceFileLoader:
        return True  # such as pytest's, which compiles another text
    written = set(_nested(compile(tree, file, "exec", dont_inherit=True)))
    codes = {function.__code__ for function in _functions(module, module.__name__)}
    codes = {code for code in codes if code.co_filename == str(file)}
    return codes <= written and _has_constants(tree, vars(module))


def _has_constants(tree: ast.Module | ast.ClassDef, space: Mapping[str, Any]) -> bool:
    """Return whether literal constants have the values that a source gives them."""
    stored = Counter(
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    for statement in tree.body:
        match statement:
            case ast.ClassDef(name=name) if isinstance(space.get(name), type):
                if not _has_constants(statement, vars(space[name])):
                    return False
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.expr() as value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ) if stored[name] == 1 and type(space.get(name)) in (bool, int, float, str, tuple):
                with suppress(ValueError, TypeError, SyntaxError):  # it is no literal
                    if repr(ast.literal_eval(value)) != repr(space[name]):
                        return False
    return True


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
    """Yield a piece of code, and the code of the functions and classes in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _imports(name: str, file: Path, tree: ast.Module) -> list[_Part]:
    """Return the modules that a module imports, wherever they lie.

    One that is not loaded yet is looked for in the folder that the top-level package lies in. Of
    installed libraries, only modules of the file's own package count.
    """
    is_package = file.stem == "__init__"
    root = file.parents[name.count(".") + is_package]
    parts = []
    for imported in sorted(_imported_names(tree, name if is_package else name.rpartition(".")[0])):
        loaded = _file(sys.modules.get(imported))
        path = root.joinpath(*imported.split("."))
        files = [path / "__init__.py", path.with_suffix(".py")] if loaded is None else [loaded]
        top = imported.partition(".")[0]
        for other in files:
            library = top == "dpmcl" or (_is_installed(other) and top != name.partition(".")[0])
            if other.is_file() and not library:
                parts.append(_Part(imported, other))
    return parts


def _imported_names(tree: ast.Module, package: str) -> set[str]:
    """Return the dotted names in a module's imports that may be modules, with their packages."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                names |= {alias.name for alias in node.names}
            case ast.ImportFrom():
                base = resolve_name("." * node.level + (node.module or ""), package)
                names |= {f"{base}.{alias.name}" for alias in node.names}
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__")
                | ast.Attribute(attr="import_module" | "__import__"),
                args=[ast.Constant(value=str(literal)), *_],
            ):  # a name that is no literal counts if a global name leads to the module
                names.add(resolve_name(literal, package))
    parts = [name.split(".") for name in names]
    return {".".join(part[: i + 1]) for part in parts for i in range(len(part))}


# a name in a script or notebook


def _read_class(cls: type) -> tuple[bytes, list[_Part]]:
    """Return the class statement, found by the code of its methods, and what it names."""
    space = sys.modules.get(cls.__module__)
    functions = list(_functions(cls, cls.__module__))
    codes = {function.__code__ for function in functions if not _is_generated(function)}
    files = {code.co_filename for code in codes} or {str(getattr(space, "__file__", ""))}
    text = _text(_name(cls), files.pop(), codes)
    for node in reversed(list(ast.walk(ast.parse(text)))):
        if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
            first = min([node.lineno, *(part.lineno for part in node.decorator_list)])
            inside = all(first <= code.co_firstlineno <= (node.end_lineno or 0) for code in codes)
            if inside and space and not files and _has_constants(node, vars(cls)):
                block = text.splitlines(keepends=True)[first - 1 : node.end_lineno]
                statement = compile(ast.Module([node], []), "", "exec", dont_inherit=True)
                return "".join(block).encode(), _used(statement, vars(space))
    raise _NoSourceError(f"{_name(cls)} has no source that can be read")


def _is_generated(function: FunctionType) -> bool:
    """Return whether `dataclass` or a library has added a function to a class."""
    file = function.__code__.co_filename
    made = file == "<string>" and function.__name__.startswith("__")
    return made or _is_installed(Path(file))


def _read_function(name: str, function: FunctionType) -> tuple[bytes, list[_Part]]:
    """Return the source of a function; its defaults, closure and global names are its parts."""
    code = function.__code__
    lines = _text(name, code.co_filename, {code}).splitlines(keepends=True)
    block = inspect.getblock(lines[code.co_firstlineno - 1 :])
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    held = (function.__defaults__, function.__kwdefaults__, cells)
    kept = _Part(f"{name} (defaults, closure)", value=held)
    return "".join(block).encode(), [kept, *_used(code, function.__globals__)]


def _text(name: str, file: str, codes: set[CodeType]) -> str:
    """Return the text of a script or cell that runs, and not that of a later edit."""
    # A notebook keeps the flags of earlier cells.
    flags = {code.co_flags & __future__.annotations.compiler_flag for code in codes} or {0}
    for refresh in (False, True):
        if refresh:
            linecache.checkcache(file)
        text = "".join(linecache.getlines(file))
        with suppress(SyntaxError, ValueError):
            written = set(_nested(compile(text, "", "exec", max(flags), True)))
            if text and codes <= written:
                return text
    raise _NoSourceError(f"{name} has no source that can be read")


def _used(code: CodeType, space: Mapping[str, Any]) -> list[_Part]:
    """Return the parts for the global names in a piece of code."""
    names = {
        instruction.argval
        for inner in _nested(code)
        for instruction in dis.get_instructions(inner)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
        if instruction.argval in space
        if not instruction.argval.startswith("__")  # a class statement's own
    }
    return [part for name in sorted(names) for part in _parts(f"__main__.{name}", space[name])]


class _Pickler(pickle.Pickler):
    """Pickler that collects the code in a value, which pickle alone tells apart by name."""

    def __init__(self, out: io.BytesIO, name: str) -> None:
        super().__init__(out, protocol=5)
        self.fast = True  # or the bytes depend on what is the same object
        self.name = name
        self.uses: list[_Part] = []

    def persistent_id(self, value: Any) -> Any:
        """Return the form in which a value is pickled; None for pickle's own."""
        if isinstance(value, type | FunctionType | ModuleType):
            self.uses += _parts(f"{self.name} {len(self.uses)}", value)
            return value.__name__
        if isinstance(value, Tensor):  # pickled with the address of its memory
            return [str(value.dtype), value.tolist()]
        if isinstance(value, set | frozenset):  # in another order in each process
            return sorted(map(repr, value))
        return None


def _read_value(name: str, value: Any) -> tuple[bytes, list[_Part]]:
    """Return the pickle of a value, and the code in it."""
    out = io.BytesIO()
    pickler = _Pickler(out, name)
    try:
        pickler.dump(value)
    except Exception:  # whatever a class of the user's does when it is pickled
        kind = type(value).__qualname__
        raise _NoSourceError(f"{name} is a {kind}, which cannot be compared") from None
    return out.getvalue(), pickler.uses
