"""Compare a run folder with the spec, the data and the code that are to run now.

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
from dpmcl.study.source_hash import Source, file_of, source
from dpmcl.training.spec import Spec

Say = Callable[[str], None]
Sources = Mapping[str, Mapping[str, Source]]
"""By method, the sources of the plugins from outside the package that decide its numbers."""

_FREE = ("replicas", "seed", "device", "engine", "threads", "workers", "on_divergence", "methods")
"""Settings in which runs of one folder may differ."""

_ANEW = "start anew with --fresh (fresh=True), or choose another folder with --out."


@dataclass(frozen=True, eq=False)
class Held:
    """Content of a run folder before a run.

    spec: the table of its spec, empty where it holds no run. records: by method. made: methods with
    results or a checkpoint. stream: the data of these, None where there are none. code: by method.
    """

    folder: Path | None = None
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
        return Held(folder)
    stored = store.load(folder)
    places = {path.parent.name for path in folder.glob("checkpoints/*/*.safetensors")}
    begun = {name for name in stored.spec["methods"] if name.replace(":", ".") in places}
    made = frozenset(stored.records) | begun
    stream = stored.stream if made else None
    return Held(folder, stored.spec, stored.records, made, stream, store.load_code(folder))


def sources(spec: Spec) -> Sources:
    """Return the source of each method's plugins from outside the package.

    Raises:
        FolderError: A file was changed after Python had imported it.
    """
    out = {}
    for name, method in spec.methods.items():
        discount = method.discount if isinstance(method.discount, str) else method.discount["name"]
        place = discount.partition(":")[0] if ":" in discount else "dpmcl"
        used = [
            ("method", name, type(method), plugins.home("method", name)),
            ("discount", discount, type(method.discounting), place),
        ]
        optimiser = method.optimiser
        optimiser = optimiser if isinstance(optimiser, str) else optimiser["name"]
        place = plugins.home("optimiser", optimiser)
        used.append(("optimiser", optimiser, type(method.rule), place))
        for setting, option in zip(method.options, method.optional, strict=True):
            own = setting if isinstance(setting, str) else setting["name"]
            used.append(("option", own, type(option), plugins.home("option", own)))
        for kind in ("network", "stream"):
            own = getattr(spec, f"{kind}_name")
            used.append((kind, own, type(getattr(spec, kind)), plugins.home(kind, own)))
        out[name] = {
            f"{kind} '{own}'": source(cls, home)
            for kind, own, cls, home in used
            if not f"{home}.".startswith("dpmcl.")
        }
    return out


def recorded(code: Code, now: Sources, methods: set[str]) -> Code:
    """Return the code of a folder's methods once some of them are trained with that of now."""
    new: Code = {
        name: {plugin: found.hashes for plugin, found in now[name].items()} for name in methods
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


def refuse_other_code(old: Held, now: Sources, spec: Spec, trained: set[str], say: Say) -> None:
    """Raise FolderError where results were made with other code than that of now.

    trained: methods of which something is missing. say: told where nobody can tell, since version
    0.1 made the folder; that is refused where rows would be added.
    """
    plugins_now = {plugin: found for own in now.values() for plugin, found in own.items()}
    for plugin, hashes in (item for name in old.made for item in old.code.get(name, {}).items()):
        found = plugins_now.get(plugin)
        if found is None:
            continue
        if found.hashes is None or hashes is None:
            why = found.missing or "its source could not be read when they were made"
            raise FolderError(
                f"{old.folder} holds results of {plugin}, and nobody can tell whether its code is "
                f"still the same: {why}; {_ANEW}"
            )
        if changed := {name for name, _ in hashes.items() ^ found.hashes.items()}:
            files = ", ".join(sorted(map(file_of, changed)))
            raise FolderError(
                f"{old.folder} holds results of {plugin} with other code: {files} changed since "
                f"then; {_ANEW}"
            )
    unknown = old.made - set(old.code)
    if not unknown:
        return
    extended = sorted({plugin for name in trained for plugin in now[name]})
    if extended:
        raise FolderError(
            f"{old.folder} was made by version 0.1, which did not record the code of "
            f"{extended[0]}, so no rows are added to it; {_ANEW}"
        )
    for name in sorted(trained & unknown):
        if spec.stream_name == "sine" or spec.methods[name].trains_on_validation:
            raise FolderError(
                f"{old.folder} was made by version 0.1, and the numbers of {name} on "
                f"'{spec.stream_name}' have moved since (CHANGELOG.md); {_ANEW}"
            )
    if plugins_now:
        say(
            f"{old.folder} was made by version 0.1, which did not record code: its results may be "
            f"of another version of {min(plugins_now)}."
        )


def refuse_other_data(before: Held, now: StreamInfo, spec: Spec) -> None:
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
        f"{before.folder} holds results on other data{where}: their fingerprint is "
        f"{then.digest[:12]}, that of the data now {now.digest[:12]}; {_ANEW}"
    )


def say_other_versions(folder: Path, extended: set[str], say: Say) -> None:
    """Say where rows of another version of dpmcl or PyTorch are about to be extended."""
    now = {"dpmcl": version("dpmcl"), "torch": str(torch.__version__)}
    for entry in store.environment(folder):
        if isinstance(entry, dict) and str(entry.get("method")) in extended:
            other = [f"{key} {entry[key]}" for key in now if entry.get(key, now[key]) != now[key]]
            if other:
                say(
                    f"{entry['method']}: its first seeds were trained with {' and '.join(other)}, "
                    "whose numbers may differ from those of now."
                )
                return
