"""Hash the source of a user's class and of the user's code that it uses.

The hashes of a class in a file cover its complete module and, recursively, the user's modules that
it imports. The hash of a class in a script or a notebook (`__main__`) covers its own code and,
recursively, the functions, classes, values and modules that its code names; the rest of a script
may change from run to run. Installed libraries and the package itself are not hashed.
"""

import ast
import dis
import gc
import hashlib
import inspect
import io
import sys
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import PathFinder, SourceFileLoader
from importlib.util import resolve_name
from itertools import accumulate
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from torch import nn

from dpmcl.core import fingerprint
from dpmcl.core.network_layers import settings_of
from dpmcl.exceptions import FolderError, reason

_STDLIB = Path(sysconfig.get_path("stdlib")).resolve()
_DYNAMIC_IMPORTS = {"importlib", "importlib.import_module", "importlib.util", "__import__", "exec"}

_hashed: dict[str, tuple[Any, bytes]] = {}
"""Import spec and source of each hashed module, by name. A reload replaces the import spec."""


class _NoSourceError(Exception):
    """A source cannot be read, or a value cannot be compared."""


@dataclass(frozen=True)
class Source:
    """Hashes of all code of a plugin.

    Attributes:
        hashes: SHA-256 of each module, or of a class in a script or notebook, by name; None if the
            code cannot be compared.
        missing: Why the code cannot be compared; empty if it can.
    """

    hashes: dict[str, str] | None
    missing: str = ""


def source(cls: type | FunctionType, home: str) -> Source:
    """Return the hashes of the code of a class or a function.

    Args:
        cls: The class or the function of a plugin.
        home: Name of the module in which it was looked up.

    Raises:
        FolderError: A file was changed after Python had imported it.
    """
    return _source_of({cls}, home)


def source_of_network(modules: Any) -> Source:
    """Return the hashes of the code of a network's modules, or of the function that makes them.

    Code of installed libraries is not hashed.

    Args:
        modules: A module, two modules, or a function that makes them.

    Raises:
        FolderError: A file was changed after Python had imported it.
    """
    roots = modules if isinstance(modules, tuple) else (modules,)
    layers = [layer for root in roots if isinstance(root, nn.Module) for layer in root.modules()]
    # With this home, all installed libraries are left out.
    return _source_of(set(map(type, layers)), "dpmcl", [*map(settings_of, layers)] or modules)


def _source_of(classes: Set[type | FunctionType], home: str, used: Any = None) -> Source:
    """Return the hashes of the code of classes and functions, and of the files that `used` uses."""
    hashes, modules = {}, {home}
    try:
        for cls in classes:
            modules |= {base.__module__ for base in getattr(cls, "__mro__", (cls,))}
            if not _is_in_file(cls.__module__):
                script = _Script()
                hashes[f"{cls.__module__}.{cls.__qualname__}"] = script.hash_of(cls)
                modules |= script.modules
        script = _Script()
        script.hash_of(used)  # for its modules; a network's digest covers the rest
        modules |= script.modules
        files = {name: file for each in modules for name, file in _module_files(each, home)}
        with warnings.catch_warnings(action="ignore"):  # compiling the user's source warns again
            hashes |= _hashes(files, home)
    except _NoSourceError as error:
        return Source(None, str(error))
    return Source(dict(sorted(hashes.items())))


def file_of(name: str) -> str:
    """Return the file of a hashed module, or its name if it has no file.

    Args:
        name: A key of `Source.hashes`.
    """
    return str(getattr(sys.modules.get(name), "__file__", None) or name)


# Modules in files


def _is_in_file(name: str) -> bool:
    """Return True if a module was imported from a file or is built in, and is not a script."""
    return name != "__main__" and getattr(sys.modules.get(name), "__spec__", None) is not None


def _module_files(name: str, home: str) -> Iterator[tuple[str, Path]]:
    """Yield the user's modules along a dotted name, packages included, with their files.

    Modules of an installed library count only if `home` belongs to that library.
    """
    top, _, _ = name.partition(".")
    search_path = None
    for prefix in () if top == "dpmcl" else accumulate(name.split("."), "{}.{}".format):
        loaded = sys.modules.get(prefix)
        spec = loaded.__spec__ if loaded is not None else PathFinder.find_spec(prefix, search_path)
        if spec is None:
            return
        search_path = spec.submodule_search_locations
        if spec.has_location and spec.origin is not None:
            file = Path(spec.origin)
            installed = not {"site-packages", "dist-packages"}.isdisjoint(file.parts)
            if installed and top != home.partition(".")[0]:
                return
            if not installed and file.resolve().is_relative_to(_STDLIB):
                return
            yield prefix, file
        if search_path is None:  # not a package: the rest of the name is an attribute
            return


def _hashes(files: Mapping[str, Path], home: str) -> dict[str, str]:
    """Return the hashes of modules and, recursively, of the modules that they import."""
    waiting, hashes = dict(files), {}
    while waiting:
        name, file = waiting.popitem()
        try:
            content = file.read_bytes()
            tree = ast.parse(content)
            package = name if file.stem == "__init__" else name.rpartition(".")[0]
            imported = _imported_names(tree, package)
        except (OSError, SyntaxError, ValueError, ImportError):
            raise _NoSourceError(f"{file} cannot be read as Python's source") from None
        if not _DYNAMIC_IMPORTS.isdisjoint(imported):
            raise _NoSourceError(
                f"{file} imports by importlib, __import__ or exec, which may be anything"
            )
        if (module := sys.modules.get(name)) is not None:
            _refuse_changed(module, file, content, tree)
        hashes[name] = hashlib.sha256(content).hexdigest()
        used = {part: path for each in imported for part, path in _module_files(each, home)}
        waiting |= {part: path for part, path in used.items() if part not in hashes}
    return hashes


def _imported_names(tree: ast.Module, package: str) -> set[str]:
    """Return the dotted names in a module's imports; some may be modules, others attributes."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                names |= {alias.name for alias in node.names}
            case ast.ImportFrom():
                base = resolve_name("." * node.level + (node.module or ""), package)
                names |= {f"{base}.{alias.name}" for alias in node.names}
            case ast.Name(id="__import__" | "exec" as name):
                names.add(name)
    return names


def _refuse_changed(module: ModuleType, file: Path, content: bytes, tree: ast.Module) -> None:
    """Raise FolderError unless a module was imported from the present content of its file."""
    name, spec = module.__name__, module.__spec__
    known_spec, known_content = _hashed.get(name, (None, b""))
    # Pytest's loader, for one, compiles rewritten source.
    from_source = type(module.__loader__) is SourceFileLoader
    if known_spec is spec:
        same_file = known_content == content
    else:
        same_file = not from_source or _is_loaded(module, file, tree)
    if not same_file or (from_source and not _has_definitions(tree, vars(module), file)):
        raise FolderError(
            f"{file} was changed after Python had imported it, or other code has replaced a "
            "constant or a function in it, so results would be stored as those of code that did "
            "not run; restart Python."
        )
    _hashed[name] = spec, content


def _is_loaded(module: ModuleType, file: Path, tree: ast.Module) -> bool:
    """Return True if a source has the functions of a loaded module."""
    source_codes = set(_nested(compile(tree, file, "exec", dont_inherit=True)))
    if not _codes(module, file) <= source_codes:
        gc.collect()  # free functions that a reload replaced
    return _codes(module, file) <= source_codes


def _codes(module: ModuleType, file: Path) -> set[CodeType]:
    """Return the code of all functions of a module, also those in classes and decorators."""
    referrers = gc.get_referrers(vars(module))
    codes = {referrer.__code__ for referrer in referrers if isinstance(referrer, FunctionType)}
    return {code for code in codes if Path(code.co_filename) == file}


def _nested(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object, and those of the functions and classes in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _has_definitions(
    tree: ast.Module | ast.ClassDef, namespace: Mapping[str, Any], file: Path
) -> bool:
    """Return True if literal constants have the values, and functions the file, of a source."""
    assignments = Counter(
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    for statement in tree.body:
        match statement:
            case ast.ClassDef(name=name) if isinstance(namespace.get(name), type):
                if not _has_definitions(statement, vars(namespace[name]), file):
                    return False
            case ast.FunctionDef(name=name, decorator_list=[]) if (
                isinstance(namespace.get(name), FunctionType) and not assignments[name]
            ):
                function = inspect.unwrap(namespace[name])
                if Path(inspect.getfile(function)) != file:
                    return False
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.expr() as value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ) if assignments[name] == 1 and (
                type(namespace.get(name)) in (bool, int, float, str, tuple)
                or (isinstance(tree, ast.Module) and _is_constant(name, value, tree))
            ):
                with suppress(ValueError, TypeError, SyntaxError):  # not a literal
                    if repr(ast.literal_eval(value)) != repr(namespace[name]):
                        return False
    return True


def _is_constant(name: str, value: ast.expr, tree: ast.Module) -> bool:
    """Return True if a list or dict is not to be filled later, as a registry or a cache is."""
    filled = {
        node.value.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.value, ast.Name)
        if isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load)
    }
    has_entries = getattr(value, "elts", None) or getattr(value, "keys", None)
    return isinstance(value, ast.List | ast.Dict) and bool(has_entries) and name not in filled


# Scripts and notebooks


class _Script(fingerprint.Pickler):
    """Pickler of an object of a script or notebook, with all that its code names.

    Attributes:
        modules: Names of the modules that the code uses.
    """

    def __init__(self) -> None:
        self._content = io.BytesIO()
        super().__init__(self._content)
        self.modules: set[str] = set()

    def hash_of(self, value: Any) -> str:
        """Return the hash of a class, a function or another object."""
        try:
            self.dump(value)
        except _NoSourceError:
            raise
        except Exception as error:  # objects that cannot be pickled raise exceptions of many kinds
            raise _NoSourceError(f"it names what cannot be compared: {reason(error)}") from None
        return hashlib.sha256(self._content.getvalue()).hexdigest()

    def persistent_id(self, value: Any) -> str | None:
        """Note the module of a value, and refuse a function without source."""
        if isinstance(value, ModuleType):
            start = f"{value.__name__}."  # code can reach all loaded submodules by this name
            self.modules |= {name for name in sys.modules if f"{name}.".startswith(start)}
        elif isinstance(value, type | FunctionType | BuiltinFunctionType) and value.__module__:
            if _is_in_file(value.__module__):
                self.modules.add(value.__module__)
            elif isinstance(value, FunctionType):
                _check_source(value)
        return super().persistent_id(value)

    def reducer_override(self, value: Any) -> Any:
        """Note the imports of code."""
        if isinstance(value, CodeType):
            instructions = dis.get_instructions(value)
            self.modules |= {i.argval for i in instructions if i.opname == "IMPORT_NAME"}
        return super().reducer_override(value)


def _check_source(function: FunctionType) -> None:
    """Raise _NoSourceError unless a function of a script has a source that can be read."""
    if not function.__name__.startswith("__"):  # `dataclass` adds some, without source
        try:
            inspect.findsource(function)
        except (OSError, TypeError):
            name = f"{function.__module__}.{function.__qualname__}"
            raise _NoSourceError(f"{name} has no source that can be read") from None
