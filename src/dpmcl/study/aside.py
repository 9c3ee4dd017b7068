"""Keep what a run folder held before `--fresh` until the new run has finished.

Its files, and no others, move into a folder `before-fresh` inside it, so the folder itself (its
lock, what else the user keeps in it, a process that works in it) stays. `.fresh.json` names that
folder, and says what the new run must have before it is removed. A move that was cut short is
completed by the next run.
"""

import shutil
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

import pydantic

from dpmcl.core.atomic import write_text
from dpmcl.exceptions import FolderError
from dpmcl.results import store
from dpmcl.results.record import Record

_NOTE = ".fresh.json"
_KEPT = "before-fresh"


class _Note(pydantic.BaseModel):
    """Content of `.fresh.json`.

    Attributes:
        kept: Names of the folders with earlier runs, oldest first.
        moved: Whether the last of them is whole.
        methods: Methods that the new run was asked for.
        seeds: Seeds that the new run was asked for.
    """

    kept: list[str] = []
    moved: bool = True
    methods: list[str] = []
    seeds: list[int] = []


def refuse_foreign(folder: Path) -> None:
    """Raise FolderError where a folder holds other files, and no run to start anew.

    Args:
        folder: The folder of which a fresh run was asked.
    """
    others = [p.name for p in folder.iterdir() if p.name not in (*store.LOCKS, _NOTE)]
    if others and not store.is_run(folder) and not (folder / _NOTE).exists():
        raise FolderError(
            f"{folder} holds no run that --fresh could start anew, and has other files "
            f"('{sorted(others)[0]}'); leave out --fresh, or choose another folder with --out."
        )


def put_aside(folder: Path, methods: Sequence[str], seeds: Sequence[int]) -> Path | None:
    """Move a run's files into a new folder inside the run folder.

    Args:
        folder: The run folder, which the caller holds.
        methods: Methods of the new run.
        seeds: Seeds of the new run.

    Returns:
        The new folder; None if there was nothing to move.
    """
    note = _read(folder)
    note.methods, note.seeds = list(methods), list(seeds)
    kept = None
    if store.is_run(folder):
        names = (_KEPT if i == 1 else f"{_KEPT}-{i}" for i in count(1))
        kept = next(folder / name for name in names if not (folder / name).exists())
        note.kept, note.moved = [*note.kept, kept.name], False
    if note.kept:
        _write(folder, note)
        complete(folder)
    return kept


def complete(folder: Path) -> None:
    """Complete a move that was cut short, if there was one.

    Args:
        folder: The run folder.

    Raises:
        FolderError: A file cannot be moved.
    """
    note = _read(folder)
    if note.moved or not note.kept:
        return
    kept = folder / note.kept[-1]
    try:
        kept.mkdir(exist_ok=True)
        for name in ("spec.toml", *store.FILES):
            if (folder / name).exists():
                (folder / name).rename(kept / name)
    except OSError as error:
        raise FolderError(
            f"{folder} cannot be kept in {kept} ({error.strerror}); choose another folder with "
            "--out."
        ) from None
    note.moved = True
    _write(folder, note)


def remove_finished(folder: Path, records: Mapping[str, Record]) -> None:
    """Remove the earlier runs, once a folder holds all that the new run was asked for.

    Args:
        folder: The run folder.
        records: Its results by method.
    """
    note = _read(folder)
    wanted = set(note.seeds)
    done = {name for name, record in records.items() if wanted <= set(record.test.seeds)}
    if note.kept and done.issuperset(note.methods):
        for name in note.kept:
            shutil.rmtree(folder / name, ignore_errors=True)
        (folder / _NOTE).unlink(missing_ok=True)


def _read(folder: Path) -> _Note:
    """Read the note; a damaged one, or one with names that are not ours, counts as none."""
    try:
        note = _Note.model_validate_json((folder / _NOTE).read_bytes())
    except (OSError, ValueError):
        return _Note()
    ours = all(name.startswith(_KEPT) and name == Path(name).name for name in note.kept)
    return note if ours else _Note()


def _write(folder: Path, note: _Note) -> None:
    """Write the note."""
    write_text(folder / _NOTE, note.model_dump_json(indent=1) + "\n")
