"""Merge folders with results of the same runs, such as those of a study's shards."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpmcl.core.atomic import atomic, sweep
from dpmcl.core.lock import locked
from dpmcl.exceptions import FolderError
from dpmcl.results import store
from dpmcl.results.record import merge as merge_records
from dpmcl.results.record import select_seeds
from dpmcl.results.store import Stored
from dpmcl.study import identity, previous_results, protocol
from dpmcl.study.budget import Budget
from dpmcl.training.job import fingerprint_of_data, read_stream
from dpmcl.training.spec import Spec


def merge(into: Path, others: Sequence[Path]) -> list[str]:
    """Add the results of other folders to a folder, run by run.

    Results of seeds that the folder already has do not change. A run is written once, after its
    results in all other folders have been read.

    Args:
        into: A run folder, or a folder of run folders; it need not exist.
        others: Folders of the same kind, which do not change.

    Returns:
        A line for each run and folder from which something was added.

    Raises:
        FolderError: A folder holds no run, or runs of one name differ in spec, data or code.
    """
    sources: dict[str, list[Path]] = {}
    for other in others:
        runs = _runs(other)
        if not runs:
            raise FolderError(f"{other} holds no run; give a run's or a study's folder.")
        for name, folder in runs.items():
            sources.setdefault(name, []).append(folder)
    lines = []
    for name, folders in sources.items():
        target = into / name if name else into
        with locked(target):
            sweep(target)
            previous_results.complete_move(target)
            lines += _add_results(target, folders)
    return lines


def _runs(folder: Path) -> dict[str, Path]:
    """Return the run folders in a folder by name; "" is the name of the folder itself."""
    if store.is_run(folder):
        return {"": folder}
    inner = sorted(path.parent for path in folder.glob("*/spec.toml"))
    return {path.name: path for path in inner if store.is_run(path)}


def _add_results(target: Path, sources: Sequence[Path]) -> list[str]:
    """Add the results of other run folders to a run's; return lines about what was added."""
    content, budget = identity.read_folder(target), None
    holder = target if content.spec else sources[0]  # for messages
    lines: list[str] = []
    entries: list[Any] = []
    for source in sources:
        theirs = store.load(source)
        content, added = _merged_content(holder, content, source, theirs)
        if added:
            lines.append(f"{target}: {added} from {source}")
            entries += theirs.environment
        if theirs.protocol is not None:
            budget = Budget.parse(theirs.protocol.budget) or budget
    if lines:
        store.save_start(target, content.spec, content.stream, content.code)
        for source in sources:
            _copy_parameters(source, target)
        store.add_environment(target, *entries)
        versions = {(entry.get("dpmcl"), entry.get("torch")) for entry in store.environment(target)}
        if len(versions) > 1:
            lines.append(f"{target}: of several versions (environment.json); numbers may differ")
        unknown = {name for used in content.code.values() for name in used if used[name] is None}
        if unknown:
            lines.append(f"{target}: code that cannot be compared ({', '.join(sorted(unknown))})")
        store.save_records(target, content.records)
    if content.records:
        protocol.check_and_save(target, budget)
    return lines


def _merged_content(
    holder: Path, content: Stored, source: Path, theirs: Stored
) -> tuple[Stored, str]:
    """Return content of `holder` with another folder's results added, and a text about those."""
    folders = f"{holder} and {source}"
    if content.spec not in ({}, theirs.spec):  # specs of a study's shards are equal
        places = Spec.parse(theirs.spec).stream.places
        identity.refuse_difference(
            holder,
            content.spec,
            theirs.spec,
            places,
            way_out="merge it into another folder.",
        )
    if content.records and not _have_same_data(content, theirs):
        raise FolderError(f"{folders} hold results on other data; merge neither.")
    ours, others = (
        {plugin: hashes for used in stored.code.values() for plugin, hashes in used.items()}
        for stored in (content, theirs)
    )
    for plugin in sorted(set(ours) & set(others)):
        if ours[plugin] != others[plugin]:
            raise FolderError(f"{folders} hold results of other code of {plugin}; merge neither.")
    for method in set(content.records) & set(theirs.records):
        recorded = (method in content.code) + (method in theirs.code)
        sources = {**content.code, **theirs.code}.get(method)
        if recorded == 1 and (
            sources or identity.has_moved_since_0_1(Spec.parse(theirs.spec), method)
        ):
            raise FolderError(
                f"{folders} hold results of {method}, one of them by version 0.1, whose numbers or "
                "code may be others (CHANGELOG.md); merge neither."
            )
    records, added = dict(content.records), []
    for method, record in theirs.records.items():
        known_seeds = records[method].test.seeds if method in records else ()
        new_seeds = tuple(seed for seed in record.test.seeds if seed not in known_seeds)
        if new_seeds:
            part = select_seeds(record, new_seeds)
            records[method] = merge_records(records[method], part) if known_seeds else part
            added.append(f"{len(new_seeds)} of {method}")
    if not added:
        return content, ""
    spec = identity.united_spec(content, theirs.spec)
    code = {**theirs.code, **content.code}
    content = replace(content, spec=spec, records=records, stream=theirs.stream, code=code)
    return content, ", ".join(added)


def _have_same_data(ours: Stored, theirs: Stored) -> bool:
    """Return True if two folders hold results on the same data.

    If each replica draws its own, and their fingerprints are of different seeds, both must be those
    of the data that the spec gives now.
    """
    if not ours.stream.digest:  # version 0.1 did not always have one
        return True
    if ours.stream.digest_seed == theirs.stream.digest_seed:
        return ours.stream.digest == theirs.stream.digest
    spec = Spec.parse(theirs.spec)
    return all(
        info.digest_seed is not None
        and info.digest == fingerprint_of_data(read_stream(spec, (info.digest_seed,)))
        for info in (ours.stream, theirs.stream)
    )


def _copy_parameters(source: Path, target: Path) -> None:
    """Copy parameters and last states that the target lacks."""
    files = [*source.glob("parameters/*/*.safetensors"), *source.glob("states/*/*.safetensors")]
    for file in sorted(files):
        copy = target / file.relative_to(source)
        if not copy.exists():
            with atomic(copy) as temporary:
                shutil.copyfile(file, temporary)
