"""Methods of one or more runs side by side: what tells them apart, and what each is called."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from dpmcl.methods._method import Method
from dpmcl.metrics.cme import cme
from dpmcl.metrics.nte import nte
from dpmcl.results.record import Record
from dpmcl.results.store import Stored, StreamInfo

T = TypeVar("T")

MEASURES = {"CME": cme, "NTE": nte}
"""The errors by which methods are compared."""

_SHARED = ("dtype", "precision", "split_seed", "weights_seed")
"""Settings outside tables that move numbers; seeds and the machine's do not tell runs apart."""

_DEFAULTS = {
    field.name: list(field.default) if isinstance(field.default, tuple) else field.default
    for field in fields(Method)
    if field.init
}
"""Settings of every method; a spec leaves out those that are None, or newer than it."""

_EVALUATED = ("held_out", "test_rows")
"""Settings of [evaluation] that say on which rows errors are."""


@dataclass(frozen=True, eq=False)
class Entry:
    """A method of a run.

    Attributes:
        run: Name of the run.
        stream: Description of its data.
        method: Name of the method in its spec.
        record: Its results.
        settings: Value of each setting that moves its numbers, by dotted name; those of the method
            have no prefix.
        label: A name that no other entry of its stream has: that of the method, where several have
            it with the settings that tell them apart, and where there are none with the run's name.
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
        runs: What run folders hold, by name.
    """
    out = [
        Entry(run, stored.stream, method, record, _settings(stored.spec, method), method)
        for run, stored in runs.items()
        for method, record in stored.records.items()
    ]
    keys = differing(out)
    out = _apart(out, lambda entry: _with_settings(entry, keys))
    return _apart(out, lambda entry: f"{entry.label} [{entry.run}]")


def differing(several: Sequence[Entry]) -> list[str]:
    """Return the settings in which entries of one stream differ, in the order of a spec.

    A setting that an entry cannot have, since it is another method's, stream's or network's, is not
    compared with it; one that it can have and does not is None. Entries of one run differ by what
    they are called.

    Args:
        several: The entries.
    """
    if len({entry.run for entry in several}) < 2:
        return []
    known = {(key, _owner(key, entry)) for entry in several for key in entry.settings}

    def varies(key: str, stream: str) -> bool:
        values = [
            entry.settings.get(key)
            for entry in several
            if entry.stream.name == stream and (key, _owner(key, entry)) in known
        ]
        return any(value != values[0] for value in values)

    keys = dict.fromkeys(key for entry in several for key in entry.settings)
    streams = {entry.stream.name for entry in several}
    return [key for key in keys if any(varies(key, stream) for stream in streams)]


def written(value: Any) -> str:
    """Return the value of a setting as a table shows it.

    Args:
        value: Text, a number, true/false, a list or a table; None where an entry has no such
            setting.
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {written(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(written, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def by_stream(several: Sequence[Entry]) -> dict[str, dict[str, Entry]]:
    """Return entries by the name of their stream and by their label.

    Args:
        several: The entries.
    """
    out: dict[str, dict[str, Entry]] = {}
    for entry in several:
        out.setdefault(entry.stream.name, {})[entry.label] = entry
    return out


def described(several: Sequence[Entry]) -> StreamInfo:
    """Return the stream that a figure of several entries names: that with the most tasks.

    Tasks that are not the same in all, as in another order, are numbered.

    Args:
        several: Entries of one stream.
    """
    streams = [entry.stream for entry in several]
    longest = max(streams, key=lambda one: len(one.tasks))
    if all(longest.tasks[: len(one.tasks)] == one.tasks for one in streams):
        return longest
    return replace(longest, tasks=tuple(map(str, range(1, len(longest.tasks) + 1))))


def by_seed(ours: Mapping[T, Entry]) -> dict[str, dict[T, dict[int, float]]]:
    """Return CME and NTE of each seed: by measure, name and seed.

    Args:
        ours: Entries of one stream, by name, or by the value of a setting.
    """
    errors = {name: one.record.test for name, one in ours.items()}
    return {
        title: {
            name: dict(zip(one.seeds, map(float, measure(one)), strict=True))
            for name, one in errors.items()
        }
        for title, measure in MEASURES.items()
    }


def _settings(spec: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Return the settings that move a method's numbers."""
    out = {key: spec.get(key) for key in _SHARED}
    out |= {f"evaluation.{key}": spec.get("evaluation", {}).get(key) for key in _EVALUATED}
    for table in ("stream", "network"):
        out |= {f"{table}.{key}": value for key, value in spec.get(table, {}).items()}
    changed = spec.get("methods", {}).get(method, {})
    return out | {**_DEFAULTS, **spec.get("training", {}), **changed}


def _owner(key: str, entry: Entry) -> Any:
    """Return what has a setting: a stream or a network by name, or else a method."""
    table = key.partition(".")[0]
    named = entry.settings.get(f"{table}.name") if table in ("stream", "network") else None
    plugin = entry.settings.get("method", entry.method)
    return named or (entry.method if key == "method" else plugin)


def _apart(several: Sequence[Entry], longer: Callable[[Entry], str]) -> list[Entry]:
    """Return entries, with a longer label where others of their stream have the same."""
    names = [(entry.stream.name, entry.label) for entry in several]
    return [
        entry if names.count(name) == 1 else replace(entry, label=longer(entry))
        for entry, name in zip(several, names, strict=True)
    ]


def _with_settings(entry: Entry, keys: Sequence[str]) -> str:
    told = [f"{key} {written(entry.settings[key])}" for key in keys if key in entry.settings]
    return f"{entry.label} ({', '.join(told)})" if told else entry.label
