"""Compare a run folder with the spec, the data and the code of the run that is about to start.

Results may be shown, extended by further seeds, or resumed only if all three are the same, so that
no row of a table mixes settings, data or code.
"""

import hashlib
import logging
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from dpmcl import plugins
from dpmcl.exceptions import DpmclError, FolderError, SpecError
from dpmcl.networks.python import Python
from dpmcl.results import store
from dpmcl.results.record import folder_name
from dpmcl.results.store import Stored, StreamInfo
from dpmcl.study.source_hash import Source, file_of, source, source_of_network
from dpmcl.training.spec import Spec

Sources = Mapping[str, Mapping[str, Source]]
"""Sources of the user's plugins, by method and plugin, as in "network 'my:Net'"."""

_LOG = logging.getLogger("dpmcl")

_FREE = (
    "replicas",
    "seed",
    "device",
    "engine",
    "threads",
    "workers",
    "on_divergence",
    "track",
    "tuned_code",
    "methods",
)
"""Settings in which runs of one folder may differ."""

_MONITOR_DECIDES = ("exceeding", "beta", "interval", "rows", "patience")
"""Settings of [monitor] that decide whether a replica stops, unless exceeding = "say"."""

_DIGESTS = {
    "network.digest": " (of the modules passed as network, with their weights; call "
    "torch.manual_seed before you make them)",
    "stream.digest": " (of the data passed as a Stream)",
}
"""Explanations of settings that are fingerprints."""

_ANEW = "choose another folder with --out, or start a run anew with --fresh (fresh=True)."


def read_folder(folder: Path) -> Stored:
    """Read the content of a folder.

    Args:
        folder: A run folder, or one that does not hold a run yet.

    Returns:
        The content; `store.EMPTY` if the folder holds no run.

    Raises:
        FolderError: A file of the run is damaged.
    """
    return store.load(folder) if store.is_run(folder) else store.EMPTY


def read_to_extend(folder: Path, spec: Spec) -> Stored:
    """Read the content of a folder to which a run would add results.

    Args:
        folder: A run folder, or one that does not hold a run yet.
        spec: Spec of the run.

    Returns:
        The content; `store.EMPTY` if the folder holds no run.

    Raises:
        FolderError: A file is damaged, or the folder holds a run of another spec.
    """
    before = read_folder(folder)
    if before.spec:
        refuse_difference(folder, before.spec, spec.to_table(), spec.stream.places)
    return before


def _begun_methods(folder: Path, before: Stored) -> set[str]:
    """Return the methods that have results or a checkpoint in a run folder."""
    checkpoints = folder / "checkpoints"
    begun = {p.relative_to(checkpoints).parts[0] for p in checkpoints.rglob("*.safetensors")}
    names = {name for name in before.spec.get("methods", {}) if folder_name(name) in begun}
    return names | set(before.records)


def sources(spec: Spec) -> Sources:
    """Return the sources of the user's plugins that each method uses.

    Args:
        spec: The spec to be run.

    Raises:
        FolderError: A file was changed after Python had imported it.
    """
    out: dict[str, dict[str, Source]] = {}
    for name, method in spec.methods.items():
        used: list[tuple[str, Any, Any]] = [
            ("method", spec.renamed.get(name, name), method),
            ("discount", method.discount, method.discounting),
            ("optimiser", method.optimiser, method.rule),
            ("network", spec.network_name, spec.network),
            ("stream", spec.stream_name, spec.stream),
            *([("cost", method.cost, method.costing)] if method.cost else []),
            *(("option", *each) for each in zip(method.options, method.optional, strict=True)),
        ]
        out[name] = {}
        for kind, setting, value in used:
            plugin = setting if isinstance(setting, str) else setting["name"]
            home = plugins.home_module(kind, plugin)
            if home.partition(".")[0] != "dpmcl":
                out[name][f"{kind} '{plugin}'"] = source(
                    value if kind == "cost" else type(value), home
                )
        if isinstance(spec.network, Python) and spec.network.modules is not None:
            out[name]["the network"] = source_of_network(spec.network.modules)
    return out


def code_hashes(sources: Sources) -> dict[str, str]:
    """Return a hash of the source of each plugin; "unknown" if its code cannot be compared.

    Args:
        sources: Sources of the user's plugins.
    """
    plugins_used = {name: source for used in sources.values() for name, source in used.items()}
    return {
        name: "unknown"
        if source.hashes is None
        else hashlib.sha256(repr(sorted(source.hashes.items())).encode()).hexdigest()[:16]
        for name, source in plugins_used.items()
    }


def warn_of_other_tuned_code(spec: Spec, sources: Sources) -> None:
    """Log a warning if the settings of a spec were found with other code of the user's plugins.

    Args:
        spec: The spec to be run.
        sources: Sources of its plugins.
    """
    now, then = code_hashes(sources), spec.tuned_code or {}
    changed = [name for name in now if then.get(name, now[name]) != now[name]]
    if changed:
        text = f"Settings of this spec were found with other code of {', '.join(changed)}; "
        _LOG.warning(f"{text}search again, or remove [tuned_code].", extra={"once": text})


def united_spec(before: Stored, new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec of a folder to which a run is added.

    It has all methods and, if the seeds of both together have no gap, all seeds.

    Args:
        before: Content of the folder.
        new: The table of the added spec.

    Raises:
        SpecError: Two methods would have their files in one folder.
    """
    methods = {**before.spec.get("methods", {}), **new["methods"]}
    for name in methods:
        folder = folder_name(name)
        if folder != name and folder in methods:
            raise SpecError(
                f"Each method has a folder of its own, and '{name}' has that of '{folder}'; choose "
                "another name for the latter."
            )
    seeds = {s for record in before.records.values() for s in record.test.seeds}
    seeds |= set(range(new["seed"], new["seed"] + new["replicas"]))
    out = {**new, "methods": methods}
    if max(seeds) - min(seeds) + 1 == len(seeds):
        out.update(seed=min(seeds), replicas=len(seeds))
    return out


def refuse_difference(
    folder: Path,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    places: tuple[str, ...],
    *,
    way_out: str = _ANEW,
) -> None:
    """Raise FolderError if two specs differ in more than methods, seeds and machine settings.

    Args:
        folder: The run folder, for the message.
        old: Table of the stored spec.
        new: Table of the spec to be run or added.
        places: Settings of the stream that locate its data; they may differ.
        way_out: End of the message.
    """
    with suppress(DpmclError):  # it may name a plugin that is no longer installed
        old = Spec.parse(old).to_table()  # adds settings that are newer than the folder
    methods = sorted(set(old.get("methods", {})) & set(new["methods"]))
    theirs, ours = (_entries(_comparable_part(table, methods, places)) for table in (old, new))
    for key in [*ours, *theirs]:
        if theirs.get(key) != ours.get(key):
            raise FolderError(
                f"{folder} holds a run with {key} = {theirs.get(key, 'nothing')!r}, "
                f"got {ours.get(key, 'nothing')!r}{_DIGESTS.get(key, '')}; {way_out}"
            )


def _comparable_part(
    table: Mapping[str, Any], methods: list[str], places: tuple[str, ...]
) -> dict[str, Any]:
    """Return the part of a spec's table that must be equal for all runs of a folder."""
    part = {key: value for key, value in table.items() if key not in _FREE}
    monitor = {"exceeding": "say", **table.get("monitor", {})}
    decides = ("exceeding",) if monitor["exceeding"] == "say" else _MONITOR_DECIDES
    part["monitor"] = {key: monitor[key] for key in decides if key in monitor}
    part["stream"] = {k: v for k, v in table.get("stream", {}).items() if k not in places}
    part["methods"] = {name: table["methods"][name] for name in methods}
    return part


def _entries(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested tables by dotted name."""
    out: dict[str, Any] = {}
    for key, value in table.items():
        inner = isinstance(value, Mapping)
        out |= _entries(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return out


def refuse_other_code(
    folder: Path, before: Stored, sources: Sources, *, spec: Spec, trained: set[str]
) -> None:
    """Raise FolderError if results in a folder were made with other code than the present code.

    Version 0.1 did not record code. If it made the folder, results of a user's plugins cause a
    warning, and no rows can be added that use such a plugin or whose numbers have moved since.

    Args:
        folder: The run folder.
        before: Its content.
        sources: Sources of the plugins of the run about to start.
        spec: Spec of that run.
        trained: Methods with missing results.
    """
    plugins_now = {name: source for used in sources.values() for name, source in used.items()}
    begun = _begun_methods(folder, before)
    for method in begun:
        for plugin, hashes in before.code.get(method, {}).items():
            if plugin in plugins_now:
                _refuse_changed(folder, plugin, hashes, plugins_now[plugin])
    unknown = begun - set(before.code)
    if not unknown:
        return
    if extended := sorted({plugin for name in trained for plugin in sources[name]}):
        raise FolderError(
            f"{folder} was made by version 0.1, which did not record the code of "
            f"{extended[0]}, so no rows are added to it; {_ANEW}"
        )
    for name in sorted(trained & unknown):
        if has_moved_since_0_1(spec, name):
            raise FolderError(
                f"{folder} was made by version 0.1, and the numbers of {name} on "
                f"'{spec.stream_name}' have moved since (CHANGELOG.md); {_ANEW}"
            )
    if plugins_now:
        _LOG.warning(
            f"{folder} was made by version 0.1, which did not record code: its results may "
            f"be of another version of {min(plugins_now)}."
        )


def has_moved_since_0_1(spec: Spec, method: str) -> bool:
    """Return True if a method gives other numbers than in version 0.1.

    Args:
        spec: A spec with the method.
        method: Name of the method in the spec.
    """
    return spec.stream_name == "sine" or bool(spec.methods[method].trains_on_validation)


def refuse_other_network(folder: Path, before: Stored, spec: Spec, method: str) -> None:
    """Raise FolderError if a method's results were made with other code of its network.

    Args:
        folder: The run folder.
        before: Its content.
        spec: Its spec.
        method: Name of the method in the spec.
    """
    way_out = "put that code back, or run the spec again."
    for plugin, now in sources(spec)[method].items():
        if plugin.startswith("network ") and method in before.code:
            _refuse_changed(folder, plugin, before.code[method].get(plugin), now, way_out=way_out)


def _refuse_changed(
    folder: Path, plugin: str, old: dict[str, str] | None, new: Source, *, way_out: str = _ANEW
) -> None:
    """Raise FolderError unless a plugin's old and new hashes are known and equal."""
    if new.hashes is None or old is None:
        reason = new.missing or "its source could not be read when they were made"
        raise FolderError(
            f"{folder} holds results of {plugin}, and nobody can tell whether its code is "
            f"still the same: {reason}; {way_out}"
        )
    if changed := {name for name, _ in old.items() ^ new.hashes.items()}:
        files = ", ".join(sorted(map(file_of, changed)))
        raise FolderError(
            f"{folder} holds results of {plugin} with other code: {files} changed since "
            f"then; {way_out}"
        )


def refuse_other_data(folder: Path, before: Stored, now: StreamInfo, spec: Spec) -> None:
    """Raise FolderError if results in a folder were made on other data.

    Args:
        folder: The run folder.
        before: Its content.
        now: Description of the data of the run about to start.
        spec: Spec of that run.
    """
    stored = before.stream
    if stored.digest in ("", now.digest) or not _begun_methods(folder, before):
        return
    moved = ""
    for setting in spec.stream.places:
        old, new = before.spec.get("stream", {}).get(setting), getattr(spec.stream, setting)
        if isinstance(old, str) and isinstance(new, str):
            change = "what is there changed" if old == new else f"then '{old}'"
            moved += f" (stream.{setting} = '{new}', {change})"
    raise FolderError(
        f"{folder} holds results on other data{moved}: their fingerprint is "
        f"{stored.digest[:12]}, that of the data now {now.digest[:12]}; {_ANEW}"
    )


def warn_of_other_versions(before: Stored, trained: set[str]) -> set[str]:
    """Log a warning for each method with results of another version of dpmcl or PyTorch.

    Args:
        before: Content of the run folder.
        trained: Methods that are about to be trained.

    Returns:
        The methods among `trained` that have such results.
    """
    now = {"dpmcl": version("dpmcl"), "torch": str(torch.__version__)}
    versions_by_method: dict[str, str] = {}
    for entry in before.environment:
        if str(entry.get("method")) in before.records:
            changed = [f"{key} {entry[key]}" for key in now if entry.get(key, now[key]) != now[key]]
            if changed:
                versions_by_method[entry["method"]] = " and ".join(changed)
    for method, versions in versions_by_method.items():
        consequence = (
            f"its first seeds were trained with {versions}, whose numbers may differ from those of "
            "now; the new seeds are equal to theirs to rounding at best."
            if method in trained
            else f"it was trained with {versions}, whose numbers may differ from those of now, and "
            "so may its errors from those of the methods that are trained now."
        )
        _LOG.warning(f"{method}: {consequence}")
    return versions_by_method.keys() & trained
