"""Methods, streams, networks and metrics are found, not registered.

One thing a file, found by its file name in the package's own folder; a third party adds one by an
entry point in the group `dpmcl.methods` (`dpmcl.streams`, `dpmcl.networks`, `dpmcl.metrics`), or
names it as `my_package.module:Name`. Nothing is imported before it is asked for.
"""

import importlib
import importlib.metadata
import inspect
import pkgutil
from collections.abc import Callable
from types import ModuleType
from typing import Any

from dpmcl.exceptions import SpecError, reason, shown, unknown

KINDS = {
    "method": "methods",
    "stream": "streams",
    "network": "networks",
    "metric": "metrics",
    "optimiser": "optimisers",
    "option": "options",
}


def _has(*names: str) -> Callable[[Any], bool]:
    """Whether a thing is a concrete class of settings with these members."""

    def holds(found: Any) -> bool:
        members = ("from_table", *names)
        return (
            isinstance(found, type)
            and not inspect.isabstract(found)
            and all(hasattr(found, member) for member in members)
        )

    return holds


_RULES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "method": ("a subclass of dpmcl.Method with `phases`", _has("phases", "stores")),
    "stream": ("a subclass of dpmcl.StreamSettings with `build`", _has("build", "places")),
    "network": ("a subclass of dpmcl.NetworkSettings with `build`", _has("build", "hidden")),
    "metric": ("a function of Errors", callable),
    "optimiser": ("a subclass of dpmcl.Optimiser with `slots` and `rule`", _has("init", "step")),
    "option": ("a subclass of dpmcl.Option", _has("gradient", "begin_task")),
}


def names(kind: str) -> list[str]:
    """All names of a kind ("method", "stream", "network", "metric"), sorted."""
    return sorted({*_own(kind), *_entry_points(kind)})


def find(kind: str, name: Any) -> Any:
    """What a name stands for: the class or function that the file declares as its `plugin`.

    Raises SpecError when nobody has that name, or when `module:Name` cannot be imported.
    """
    if not isinstance(name, str):
        raise unknown(kind, name, names(kind), "`dpmcl list` shows all.")
    found = _found(kind, name)
    rule, holds = _RULES[kind]
    if not holds(found):
        raise SpecError(f"{kind} '{name}' must be {rule}, got {found!r:.80}.")
    return found


def _found(kind: str, name: str) -> Any:
    if ":" in name:
        module, _, attribute = name.partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except (Exception, SystemExit) as error:  # whatever the user's own module does
            raise SpecError(f"{kind} {shown(name)} cannot be imported: {reason(error)}.") from error
    if name in _own(kind):
        return _plugin(importlib.import_module(f"dpmcl.{KINDS[kind]}.{name}"))
    entry_points = _entry_points(kind)
    if name in entry_points:
        found = entry_points[name].load()
        return _plugin(found) if isinstance(found, ModuleType) else found
    raise unknown(kind, name, names(kind), "`dpmcl list` shows all.")


def home(kind: str, name: str) -> str:
    """Return the module in which a name is looked up: "dpmcl.methods.er", or one from outside."""
    if ":" in name:
        return name.partition(":")[0]
    if name in _own(kind):
        return f"dpmcl.{KINDS[kind]}.{name}"
    return _entry_points(kind)[name].module


def summary(kind: str, name: str) -> str:
    """The first sentence of its documentation."""
    return (find(kind, name).__doc__ or "").strip().split("\n")[0]


def _own(kind: str) -> list[str]:
    folder = importlib.import_module(f"dpmcl.{KINDS[kind]}").__path__
    return [m.name for m in pkgutil.iter_modules(folder) if not m.name.startswith("_")]


def _entry_points(kind: str) -> dict[str, importlib.metadata.EntryPoint]:
    return {e.name: e for e in importlib.metadata.entry_points(group=f"dpmcl.{KINDS[kind]}")}


def _plugin(module: ModuleType) -> Any:
    """A module's `plugin`: the one thing that its file is about."""
    try:
        return module.plugin
    except AttributeError:
        raise SpecError(
            f"{module.__name__} declares no `plugin`; name its class or function so."
        ) from None
