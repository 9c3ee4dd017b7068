"""Merges folders that hold results of the same runs, such as those of a study's shards."""

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from dpmcl.exceptions import FolderError
from dpmcl.results import store
from dpmcl.results.record import merge as merge_records
from dpmcl.results.record import of_seeds
from dpmcl.study import identity
from dpmcl.study.lock import locked
from dpmcl.training.spec import Spec


def merge(into: Path, others: Sequence[Path]) -> list[str]:
    """Add the results of other folders to a folder, run by run; a seed that it has stays as it is.

    Args:
        into: A run folder, or a folder of run folders; it may be new.
        others: Folders of the same kind; they stay as they are.

    Returns:
        A line for each run to which something was added.

    Raises:
        FolderError: A folder holds no run, or runs of one name differ in spec, data or code.
    """
    lines = []
    for other in others:
        runs = _runs(other)
        if not runs:
            raise FolderError(f"{other} holds no run; give a run's or a study's folder.")
        for name, folder in runs.items():
            target = into / name if name else into
            with ExitStack() as stack:
                for path in (target, folder):
                    stack.enter_context(locked(path))
                if added := _add(target, folder):
                    lines.append(f"{target}: {added} from {folder}")
    return lines


def _runs(folder: Path) -> dict[str, Path]:
    """Return the run folders of a folder by name; "" for itself."""
    if store.is_run(folder):
        return {"": folder}
    inner = sorted(path.parent for path in folder.glob("*/spec.toml"))
    return {path.name: path for path in inner if store.is_run(path)}


def _add(target: Path, source: Path) -> str:
    """Add a run's results to another one; say in words which."""
    theirs, code = store.load(source), store.load_code(source)
    before = identity.held(target)
    records = dict(before.records)
    if before.spec:
        places = Spec.parse(theirs.spec).stream.places
        identity.refuse_difference(target, before.spec, theirs.spec, places)
        digest = before.stream.digest if before.stream else ""
        if digest and digest != theirs.stream.digest:
            raise FolderError(f"{target} and {source} hold results on other data; merge neither.")
        for method in set(before.code) & set(code):
            if before.code[method] != code[method]:
                raise FolderError(
                    f"{target} and {source} hold results of other code of {method}; merge neither."
                )
    told = []
    for method, record in theirs.records.items():
        known = records[method].test.seeds if method in records else ()
        new = tuple(seed for seed in record.test.seeds if seed not in known)
        if not new:
            continue
        part = of_seeds(record, new)
        records[method] = merge_records(records[method], part) if method in records else part
        told.append(f"{len(new)} of {method}")
    if not told:
        return ""
    united = identity.united(before, theirs.spec)
    store.save_start(target, united, theirs.stream, {**code, **before.code})
    files = [*source.glob("parameters/*/*.safetensors"), *source.glob("states/*/*.safetensors")]
    for file in sorted(files):
        copied = target / file.relative_to(source)
        if not copied.exists():
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copied)
    for entry in store.environment(source):
        store.add_environment(target, entry)
    store.save_records(target, records)
    return ", ".join(told)
