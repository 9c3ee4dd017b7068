"""Find plugins (methods, streams, networks, metrics, costs, optimisers, ...) by their names.

The package has a folder for each kind with one plugin per file, whose name is that of the file.
Other packages add plugins by an entry point in the group of the folder, as `dpmcl.methods`, or
users name them as `my_package.module:Name`. A plugin is imported only when it is needed.
"""

import importlib
import importlib.metadata
import inspect
import logging
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any

from dpmcl.exceptions import SpecError, reason, shown, unknown

_LOG = logging.getLogger("dpmcl")

KINDS = {
    "method": "methods",
    "stream": "streams",
    "network": "networks",
    "metric": "metrics",
    "cost": "costs",
    "optimiser": "optimisers",
    "discount": "discounts",
    "option": "options",
}
"""The folder of each kind, which also names its group of entry points."""

_RULES = {
    "method": ("a subclass of dpmcl.Method with `phases`", ("phases", "stores")),
    "stream": ("a subclass of dpmcl.StreamSettings with `build`", ("build", "places")),
    "network": ("a subclass of dpmcl.NetworkSettings with `build`", ("build", "hidden")),
    "metric": ("a function of Errors (and predictions)", ()),
    "cost": ("a function of outputs and targets", ()),
    "optimiser": ("a subclass of dpmcl.Optimiser with `slots` and `rule`", ("init", "step")),
    "discount": ("a subclass of dpmcl.Discount with `weights`", ("weights", "total")),
    "option": ("a subclass of dpmcl.Option", ("gradient", "begin_task")),
}
"""The description of each kind, for messages, and the members that its plugins must have.

A kind without members takes functions.
"""


def names(kind: str) -> list[str]:
    """Return the names of all plugins of a kind, sorted.

    Args:
        kind: A key of `KINDS`, as in "method".
    """
    return sorted({*_modules(kind), *_entry_points(kind)})


def find(kind: str, name: Any) -> Any:
    """Return the class or function of a plugin.

    Args:
        kind: A key of `KINDS`.
        name: Name of a file or an entry point, or "my_package.module:Name".

    Raises:
        SpecError: There is no plugin of that name, it cannot be imported, or it is of another kind.
    """
    plugin = _import_plugin(kind, name) if isinstance(name, str) else None
    if plugin is None:
        raise unknown(kind, name, names(kind), "`dpmcl list` shows all.")
    rule, members = _RULES[kind]
    is_class = isinstance(plugin, type)
    abstract = sorted(plugin.__abstractmethods__) if inspect.isabstract(plugin) else []
    is_settings = is_class and all(hasattr(plugin, member) for member in ("from_table", *members))
    if abstract or not (is_settings if members else callable(plugin)):
        lacking = f" without {', '.join(abstract)}" * bool(abstract)
        raise SpecError(f"{kind} '{name}' must be {rule}, got {plugin!r:.80}{lacking}.")
    return plugin


def from_setting(kind: str, setting: str | Mapping[str, Any], **more: Any) -> Any:
    """Return a plugin's settings object for an entry of a spec.

    Args:
        kind: A key of `KINDS`.
        setting: A name, or a table of a name and options.
        more: Further options, which the spec has elsewhere.

    Raises:
        SpecError: There is no name, no plugin has it, or an option breaks a rule.
    """
    name, options = name_and_options(kind, setting)
    return find(kind, name).from_table({**options, **more}, f"{kind} '{name}':")


def name_and_options(kind: str, setting: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name and the options in an entry of a spec.

    Args:
        kind: Kind of the entry, for the message.
        setting: A name, or a table of a name and options.

    Raises:
        SpecError: There is no name.
    """
    options = {"name": setting} if isinstance(setting, str) else dict(setting)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise SpecError(f"{kind} needs a name, as in {kind} = '...'; `dpmcl list` shows all.")
    return name, options


def home_module(kind: str, name: str) -> str:
    """Return the module in which a plugin is looked up, as in "dpmcl.methods.er".

    Args:
        kind: A key of `KINDS`.
        name: Name of a plugin that exists.
    """
    if ":" in name:
        return name.partition(":")[0]
    if name in _modules(kind):
        return f"dpmcl.{KINDS[kind]}.{name}"
    return _entry_points(kind)[name].module


def is_ours(kind: str, name: Any) -> bool:
    """Return True if a name belongs to one of the package's own plugins.

    Args:
        kind: A key of `KINDS`.
        name: Any object.
    """
    return isinstance(name, str) and name in _modules(kind)


def name_of(kind: str, plugin: type) -> str | None:
    """Return the name of one of the package's own plugins; None for any other class.

    Args:
        kind: A key of `KINDS`.
        plugin: Class of the plugin.
    """
    folder, _, name = plugin.__module__.rpartition(".")
    is_plugin = folder == f"dpmcl.{KINDS[kind]}" and name in _modules(kind)
    return name if is_plugin and find(kind, name) is plugin else None


def summary(kind: str, name: str) -> str:
    """Return the first line of a plugin's documentation.

    Args:
        kind: A key of `KINDS`.
        name: Name of a plugin.

    Raises:
        SpecError: There is no plugin of that name.
    """
    line = (find(kind, name).__doc__ or "").strip().split("\n")[0].removeprefix("Return ")
    return line[:1].upper() + line[1:]


def _import_plugin(kind: str, name: str) -> Any:
    """Import a plugin and return it; return None if there is no plugin of that name."""
    entry_point = _entry_points(kind).get(name)
    if name in _modules(kind):
        return _declared_plugin(importlib.import_module(f"dpmcl.{KINDS[kind]}.{name}"))
    if entry_point is None and ":" not in name:
        return None
    try:
        if entry_point is None:
            module, _, attribute = name.partition(":")
            return getattr(importlib.import_module(module), attribute)
        loaded = entry_point.load()
    except (Exception, SystemExit) as error:  # the user's module may raise anything
        raise SpecError(f"{kind} {shown(name)} cannot be imported: {reason(error)}.") from error
    return _declared_plugin(loaded) if isinstance(loaded, ModuleType) else loaded


@cache
def _modules(kind: str) -> frozenset[str]:
    """Return the names of a kind's files; those that begin with an underscore are not plugins."""
    folder = importlib.import_module(f"dpmcl.{KINDS[kind]}").__path__
    names = (module.name for module in pkgutil.iter_modules(folder))
    return frozenset(name for name in names if not name.startswith("_"))


@cache
def _entry_points(kind: str) -> Mapping[str, importlib.metadata.EntryPoint]:
    """Return a kind's entry points; log a warning for those whose name another plugin has."""
    out: dict[str, importlib.metadata.EntryPoint] = {}
    for point in _installed().select(group=f"dpmcl.{KINDS[kind]}"):
        if point.name not in _modules(kind) and point.name not in out:
            out[point.name] = point
        elif point not in out.values():
            _LOG.warning(
                f"{kind} '{point.name}' of an installed package ({point.value}) is not used, since "
                f"another {kind} has that name; write '{point.value}' for it.",
                extra={"once": point.value},
            )
    return out


@cache
def _installed() -> Any:  # of another type before Python 3.12
    """Return the entry points of all installed packages. Reading them takes 6 ms."""
    return importlib.metadata.entry_points()


def _declared_plugin(module: ModuleType) -> Any:
    """Return the class or function that a module assigns to `plugin`."""
    try:
        return module.plugin
    except AttributeError:
        raise SpecError(
            f"{module.__name__} declares no `plugin`; name its class or function so."
        ) from None
