"""Whether a run folder's results are of the spec, the data and the code that are to run now.

Only then may they be shown as its results, extended by further seeds, or resumed. So no row of a
table is ever made of different settings, data or code.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from dpmcl import plugins
from dpmcl.exceptions import DpmclError, FolderError
from dpmcl.results import store
from dpmcl.results.record import Record
from dpmcl.results.store import Code, StreamInfo
from dpmcl.source_hash import Source, file_of, source
from dpmcl.spec import Spec

Say = Callable[[str], None]
Sources = Mapping[str, Mapping[str, Source]]
"""By method, the sources of the plugins from outside the package that decide its numbers."""

_FREE = (
    "replicas",
    "seed",
    "device",
    "engine",
    "threads",
    "workers",
    "on_divergence",
    "methods",
)
"""What runs in one folder may differ in."""

_ANEW = "start anew with --fresh (fresh=True), or choose another folder with --out."


@dataclass(frozen=True, eq=False)
class Held:
    """What a folder holds before a run.

    spec: the table of its spec, empty where it holds no run. records: by method. made: methods with
    results or a checkpoint. stream: the data of these, None where there are none. code: by method.
    """

    spec: Mapping[str, Any] = field(default_factory=dict)
    records: Mapping[str, Record] = field(default_factory=dict)
    made: frozenset[str] = frozenset()
    stream: StreamInfo | None = None
    code: Code = field(default_factory=dict)

    def probe(self, spec: Spec) -> int:
        """Return the seed whose data are compared, where each replica draws its own."""
        seed = None if self.stream is None else self.stream.digest_seed
        return spec.seeds[0] if seed is None else seed


def held(folder: Path) -> Held:
    """Read what a folder holds. Raises FolderError where a file in it is damaged."""
    if not store.is_run(folder):
        return Held()
    stored = store.load(folder)
    places = {path.parent.name for path in folder.glob("checkpoints/*/*.safetensors")}
    begun = {name for name in stored.spec["methods"] if name.replace(":", ".") in places}
    made = frozenset(stored.records) | begun
    stream = stored.stream if made else None
    return Held(stored.spec, stored.records, made, stream, store.load_code(folder))


def sources(spec: Spec) -> Sources:
    """Return the source of each method's plugins from outside the package.

    Raises:
        FolderError: A file was changed after Python had imported it.
    """
    home = plugins.home
    network, stream = spec.network_name, spec.stream_name
    shared = {
        **_outside("network", network, type(spec.network), home("network", network)),
        **_outside("stream", stream, type(spec.stream), home("stream", stream)),
    }
    out = {}
    for name, method in spec.methods.items():
        discount = method.discount if isinstance(method.discount, str) else method.discount["name"]
        place = discount.partition(":")[0] if ":" in discount else "dpmcl"
        out[name] = {
            **_outside("method", name, type(method), home("method", name)),
            **_outside("discount", discount, type(method.discounting), place),
            **shared,
        }
    return out


def _outside(kind: str, name: str, cls: type, home: str) -> dict[str, Source]:
    own = f"{home}.".startswith("dpmcl.")
    return {} if own else {f"{kind} '{name}'": source(cls, home)}


def recorded(code: Code, now: Sources, methods: set[str]) -> Code:
    """Return the code of a folder's methods once some of them are trained with that of now."""
    new: Code = {
        name: {
            plugin: None if found.missing else dict(found.hashes)
            for plugin, found in now[name].items()
        }
        for name in now
        if name in methods
    }
    return {**code, **new}


def refuse_difference(
    folder: Path, old: Mapping[str, Any], new: Mapping[str, Any], places: tuple[str, ...]
) -> None:
    """Raise FolderError unless only methods, seeds and the machine's settings differ."""
    old = _completed(old)
    shared = set(old.get("methods", {})) & set(new["methods"])
    first, second = (_flat(_comparable(t, shared, places)) for t in (old, new))
    for key in [*second, *first]:
        if first.get(key) != second.get(key):
            raise FolderError(
                f"{folder} holds a run with {key} = {first.get(key, 'nothing')!r}, "
                f"got {second.get(key, 'nothing')!r}; choose another folder with --out, or start "
                "anew with --fresh."
            )


def _completed(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """A stored spec with the settings that came after it was stored, at their defaults."""
    try:
        return Spec.parse(table).to_table()
    except DpmclError:  # it names a plugin that is not here now
        return table


def _comparable(
    table: Mapping[str, Any], methods: set[str], places: tuple[str, ...]
) -> dict[str, Any]:
    kept = {key: value for key, value in table.items() if key not in _FREE}
    monitor = kept.pop("monitor", {})
    ends = monitor.get("exceeding", "say")
    decide = () if ends == "say" else ("beta", "interval", "rows", "patience")
    kept["monitor"] = {"exceeding": ends, **{k: monitor[k] for k in decide if k in monitor}}
    kept["stream"] = {k: v for k, v in table.get("stream", {}).items() if k not in places}
    kept["methods"] = {name: table["methods"][name] for name in sorted(methods)}
    return kept


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            out.update(_flat(value, f"{prefix}{key}."))
        else:
            out[f"{prefix}{key}"] = value
    return out


def refuse_other_code(
    folder: Path, old: Held, now: Sources, spec: Spec, trained: set[str], say: Say
) -> None:
    """Raise FolderError where results were made with other code than that of now.

    trained: methods of which something is missing. say: told where nobody can tell, since version
    0.1 made the folder; that is refused where rows would be added.
    """
    plugins_now = {plugin: found for own in now.values() for plugin, found in own.items()}
    for method in sorted(old.made & set(old.code)):
        for plugin, hashes in old.code[method].items():
            found = plugins_now.get(plugin)
            if found is None:
                continue
            if found.missing or hashes is None:
                why = found.missing or "its source could not be read when they were made"
                raise FolderError(
                    f"{folder} holds results of {plugin}, and nobody can tell whether its code is "
                    f"still the same: {why}; {_ANEW}"
                )
            changed = {
                name
                for name in {*hashes, *found.hashes}
                if hashes.get(name) != found.hashes.get(name)
            }
            if changed:
                files = ", ".join(sorted(map(file_of, changed)))
                raise FolderError(
                    f"{folder} holds results of {plugin} with other code: {files} changed since "
                    f"then; {_ANEW}"
                )
    if old.made <= set(old.code):
        return
    extended = trained & (old.made - set(old.code))
    if moved := sorted(name for name in extended if _moved_since_0_1(spec, name)):
        raise FolderError(
            f"{folder} was made by version 0.1, and the numbers of {moved[0]} on "
            f"'{spec.stream_name}' have moved since (CHANGELOG.md); {_ANEW}"
        )
    unknown = sorted({plugin for name in trained for plugin in now[name]})
    if unknown:
        raise FolderError(
            f"{folder} was made by version 0.1, which did not record the code of {unknown[0]}, so "
            f"no rows are added to it; {_ANEW}"
        )
    if plugins_now:
        say(
            f"{folder} was made by version 0.1, which did not record code: its results may be of "
            f"another version of {min(plugins_now)}."
        )


def _moved_since_0_1(spec: Spec, method: str) -> bool:
    """Return whether a method's new seeds would differ from those of 0.1 by more than rounding."""
    return spec.stream_name == "sine" or spec.methods[method].trains_on_validation


def refuse_other_data(folder: Path, before: Held, now: StreamInfo, spec: Spec) -> None:
    """Raise FolderError where what a folder holds is of other data."""
    then = before.stream
    if then is None or not then.digest or then.digest == now.digest:
        return
    where = ""
    for place in spec.stream.places:
        old, new = before.spec.get("stream", {}).get(place), getattr(spec.stream, place)
        if isinstance(old, str) and isinstance(new, str):
            was = "what is there changed" if old == new else f"then '{old}'"
            where += f" (stream.{place} = '{new}', {was})"
    raise FolderError(
        f"{folder} holds results on other data{where}: their fingerprint is {then.digest[:12]}, "
        f"that of the data now {now.digest[:12]}; {_ANEW}"
    )


def say_other_versions(folder: Path, records: Mapping[str, Record], say: Say) -> None:
    """Say where rows of another version of dpmcl or PyTorch are about to be extended."""
    now = {"dpmcl": version("dpmcl"), "torch": str(torch.__version__)}
    for entry in store.environment(folder):
        name = entry.get("method") if isinstance(entry, dict) else None
        if not isinstance(name, str) or name not in records:
            continue
        other = [f"{key} {entry[key]}" for key in now if entry.get(key, now[key]) != now[key]]
        if other:
            say(
                f"{name}: its first seeds were trained with {' and '.join(other)}, whose numbers "
                "may differ from those of now."
            )
            return
