"""Methods of one or more runs side by side: the settings in which they differ, and their labels."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from dpmcl import plugins
from dpmcl.exceptions import DpmclError
from dpmcl.methods._method import Method
from dpmcl.metrics.cme import cme
from dpmcl.metrics.nte import nte
from dpmcl.results.record import Record
from dpmcl.results.store import Stored, StreamInfo

T = TypeVar("T")

MEASURES = {"CME": cme, "NTE": nte}
"""The errors by which methods are compared."""

SHARED = ("dtype", "precision", "split_seed", "weights_seed")
"""Top-level settings that change results. Seeds and settings of the machine do not count."""

VERSION = "dpmcl version"
"""Name under which an entry's settings have the versions of the package that trained it."""

_DEFAULTS = {
    field.name: list(field.default) if isinstance(field.default, tuple) else field.default
    for field in fields(Method)
    if field.init
}
"""Default settings of every method. A spec lacks those that are None, or newer than the spec."""

CODE = "code of "
"""Beginning of the names under which an entry's settings have the hashes of the user's plugins."""

_EVALUATED = ("held_out", "test_rows")
"""Settings of [evaluation] that decide on which rows errors are measured."""


@dataclass(frozen=True, eq=False)
class Entry:
    """A method of a run.

    Attributes:
        run: Name of the run.
        stream: Description of the run's data. If another run has other data under the same name and
            settings, its name ends with the first run that has these data, so that methods are not
            compared across data.
        method: Name of the method in the run's spec.
        record: Results of the method.
        settings: Value of each setting that changes the results, by dotted name. Settings of the
            method have no prefix.
        label: Name that is unique among the entries of a stream: the method's name, followed by
            the settings that differ if several entries have that name, and by the run's name if
            several still have the same.
    """

    run: str
    stream: StreamInfo
    method: str
    record: Record
    settings: Mapping[str, Any]
    label: str


def entries(runs: Mapping[str, Stored]) -> list[Entry]:
    """Return the methods of runs, in order.

    Args:
        runs: Contents of run folders, by name.
    """
    out = [
        Entry(run, stored.stream, method, record, _settings(stored, method), method)
        for run, stored in runs.items()
        for method, record in stored.records.items()
    ]
    out = _with_data_in_names(out)
    keys = differing_settings(out)
    out = _relabelled(out, lambda entry: _with_settings(entry, keys))
    return _relabelled(out, lambda entry: f"{entry.label} [{entry.run}]")


def differing_settings(entries: Sequence[Entry]) -> list[str]:
    """Return the settings in which entries of the same stream differ, in the order of a spec.

    A setting is compared only among the entries that can have it, that is, whose method, stream or
    network has such a setting; if one of them lacks it, its value is None. The result is empty if
    all entries belong to one run, since their names distinguish them.

    Args:
        entries: The entries.
    """
    if len({entry.run for entry in entries}) < 2:
        return []
    known = {(key, _owner(key, entry)) for entry in entries for key in entry.settings}

    def varies(key: str, stream: str) -> bool:
        values = [
            entry.settings.get(key)
            for entry in entries
            if entry.stream.name == stream and (key, _owner(key, entry)) in known
        ]
        return any(value != values[0] for value in values)

    keys = dict.fromkeys(key for entry in entries for key in entry.settings)
    streams = {entry.stream.name for entry in entries}
    return [key for key in keys if any(varies(key, stream) for stream in streams)]


def setting_text(value: Any) -> str:
    """Return the value of a setting as a table shows it.

    Args:
        value: Text, a number, a boolean, a list or a mapping; None if an entry lacks the setting.
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {setting_text(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(setting_text, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def entries_by_stream(entries: Sequence[Entry]) -> dict[str, dict[str, Entry]]:
    """Return entries by the name of their stream, and by label.

    Args:
        entries: The entries.
    """
    out: dict[str, dict[str, Entry]] = {}
    for entry in entries:
        out.setdefault(entry.stream.name, {})[entry.label] = entry
    return out


def common_stream(entries: Sequence[Entry]) -> StreamInfo:
    """Return the description of the stream for a figure of several entries.

    It is that of the entry with the most tasks. If the entries' tasks differ, for example in their
    order, the tasks are named by number.

    Args:
        entries: Entries of one stream.
    """
    streams = [entry.stream for entry in entries]
    longest = max(streams, key=lambda stream: len(stream.tasks))
    if all(longest.tasks[: len(stream.tasks)] == stream.tasks for stream in streams):
        return longest
    return replace(longest, tasks=tuple(map(str, range(1, len(longest.tasks) + 1))))


def errors_by_seed(entries: Mapping[T, Entry]) -> dict[str, dict[T, dict[int, float]]]:
    """Return CME and NTE by measure, name and seed.

    Args:
        entries: Entries of one stream by name, or by the value of a setting.
    """
    errors = {name: one.record.test for name, one in entries.items()}
    return {
        title: {
            name: dict(zip(one.seeds, map(float, measure(one)), strict=True))
            for name, one in errors.items()
        }
        for title, measure in MEASURES.items()
    }


def _settings(stored: Stored, method: str) -> dict[str, Any]:
    """Return what changes a method's results: settings, the user's code, the package's version."""
    spec = stored.spec
    out = {key: spec.get(key) for key in SHARED}
    out |= {f"evaluation.{key}": spec.get("evaluation", {}).get(key) for key in _EVALUATED}
    for table in ("stream", "network"):
        out |= {f"{table}.{key}": value for key, value in spec.get(table, {}).items()}
    changed = spec.get("methods", {}).get(method, {})
    code = {
        f"{CODE}{plugin}": hashlib.sha256(repr(sorted(hashes.items())).encode()).hexdigest()[:8]
        for plugin, hashes in stored.code.get(method, {}).items()
        if hashes is not None
    }
    versions = {
        str(entry["dpmcl"])
        for entry in stored.environment
        if entry.get("method") == method and "dpmcl" in entry
    }
    version = {VERSION: ", ".join(sorted(versions))} if versions else {}
    return out | {**_DEFAULTS, **spec.get("training", {}), **changed} | code | version


def _with_data_in_names(entries: Sequence[Entry]) -> list[Entry]:
    """Return entries in which streams with the same settings and other data have other names."""
    first_run: dict[tuple[str, str], str] = {}
    for entry in entries:
        if entry.stream.digest:  # version 0.1 did not always have one
            first_run.setdefault((_description_of_data(entry), entry.stream.digest), entry.run)
    descriptions = [description for description, _ in first_run]

    def with_data(entry: Entry) -> Entry:
        description = _description_of_data(entry)
        run = first_run.get((description, entry.stream.digest))
        if run is None or descriptions.count(description) == 1:
            return entry
        stream = replace(entry.stream, name=f"{entry.stream.name} (data of {run})")
        return replace(entry, stream=stream)

    return [with_data(entry) for entry in entries]


def _description_of_data(entry: Entry) -> str:
    """Return what decides the data of an entry, apart from the places where files are."""
    places: tuple[str, ...] = ()
    with suppress(DpmclError):  # a plugin that is no longer installed
        places = plugins.find("stream", entry.settings.get("stream.name", "")).places
    omitted = {"stream.digest", *(f"stream.{place}" for place in places)}
    settings = {
        key: value
        for key, value in entry.settings.items()
        if key.startswith("stream.") and key not in omitted
    }
    stream = entry.stream
    return repr((stream.name, stream.scenario, stream.digest_seed, sorted(settings.items())))


def _owner(key: str, entry: Entry) -> Any:
    """Return what an entry must have in common with others that have a setting, to have it too.

    It is the name of the stream, network or method to which the setting belongs. Of code, it is
    that the entry uses the code: that others do not is told by the names of their plugins.
    """
    if key.startswith(CODE):
        return key in entry.settings
    table = key.partition(".")[0]
    name = entry.settings.get(f"{table}.name") if table in ("stream", "network") else None
    plugin = entry.settings.get("method", entry.method)
    return name or (entry.method if key == "method" else plugin)


def _relabelled(entries: Sequence[Entry], label: Callable[[Entry], str]) -> list[Entry]:
    """Return entries, with a longer label for those whose label is not unique in the stream."""
    names = [(entry.stream.name, entry.label) for entry in entries]
    return [
        entry if names.count(name) == 1 else replace(entry, label=label(entry))
        for entry, name in zip(entries, names, strict=True)
    ]


def _with_settings(entry: Entry, keys: Sequence[str]) -> str:
    """Return the label of an entry, followed by some of its settings."""
    settings = [
        f"{key} {setting_text(entry.settings[key])}" for key in keys if key in entry.settings
    ]
    return f"{entry.label} ({', '.join(settings)})" if settings else entry.label
