"""Keep what a run folder held before `--fresh` beside it until the new run has finished.

A run folder's own files are moved, and no others, so that the folder itself (its lock, what else
is in it, a process that works in it) stays. `.fresh.json` in the folder says where they went, and
what the new run must have before they go. A move that was cut short is completed by the next run.
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


class _Note(pydantic.BaseModel):
    """kept: names of folders beside the run folder. moved: whether the last of them is whole.

    methods, seeds: what the new run was asked for.
    """

    kept: list[str] = []
    moved: bool = True
    methods: list[str] = []
    seeds: list[int] = []


def refuse_foreign(folder: Path) -> None:
    """Raise FolderError where a folder holds other files, and no run to start anew."""
    others = [p.name for p in folder.iterdir() if p.name not in (*store.LOCKS, _NOTE)]
    if others and not store.is_run(folder) and not (folder / _NOTE).exists():
        raise FolderError(
            f"{folder} holds no run that --fresh could start anew, and has other files "
            f"('{sorted(others)[0]}'); leave out --fresh, or choose another folder with --out."
        )


def put_aside(folder: Path, methods: Sequence[str], seeds: Sequence[int]) -> Path | None:
    """Move a run's files into a new folder beside the run folder, and return that.

    None where there was nothing to move. The caller holds the folder.
    """
    note = _read(folder)
    note.methods, note.seeds = list(methods), list(seeds)
    place = None
    if store.is_run(folder):
        place = _new_place(folder)
        note.kept, note.moved = [*note.kept, place.name], False
    if note.kept:
        _write(folder, note)
        complete(folder)
    return place


def complete(folder: Path) -> None:
    """Complete a move that was cut short; nothing where none was."""
    note = _read(folder)
    if note.moved or not note.kept:
        return
    place = folder.resolve().with_name(note.kept[-1])
    try:
        place.mkdir(exist_ok=True)
        for name in ("spec.toml", *store.FILES):
            if (folder / name).exists():
                (folder / name).rename(place / name)
    except OSError as error:
        raise _unmoved(folder, error.strerror) from None
    note.moved = True
    _write(folder, note)


def remove_finished(folder: Path, records: Mapping[str, Record]) -> None:
    """Remove what was kept, once the folder holds all that the new run was asked for."""
    note = _read(folder)
    wanted = set(note.seeds)
    done = {name for name, record in records.items() if wanted <= set(record.test.seeds)}
    if note.kept and done.issuperset(note.methods):
        for name in note.kept:
            shutil.rmtree(folder.resolve().parent / name, ignore_errors=True)
        (folder / _NOTE).unlink(missing_ok=True)


def _read(folder: Path) -> _Note:
    """Read the note; a copy of a run folder has nothing kept beside it, nor has a damaged note."""
    try:
        note = _Note.model_validate_json((folder / _NOTE).read_bytes())
    except (OSError, ValueError):
        return _Note()
    start = _start(folder)
    ours = all(name.startswith(start) and name == Path(name).name for name in note.kept)
    return note if ours else _Note()


def _write(folder: Path, note: _Note) -> None:
    write_text(folder / _NOTE, note.model_dump_json(indent=1) + "\n")


def _start(folder: Path) -> str:
    return f"{folder.resolve().name}.before-fresh"


def _new_place(folder: Path) -> Path:
    """Make a folder beside a run folder, of a name that is free."""
    if folder.resolve().is_mount():
        raise _unmoved(folder, "a disk is mounted there")
    names = (_start(folder) if i == 1 else f"{_start(folder)}-{i}" for i in count(1))
    places = map(folder.resolve().with_name, names)
    place = next(path for path in places if not path.exists())
    try:
        place.mkdir()
    except OSError as error:
        raise _unmoved(folder, error.strerror) from None
    return place


def _unmoved(folder: Path, why: str | None) -> FolderError:
    return FolderError(
        f"{folder} cannot be kept beside itself ({why}); choose another folder with --out."
    )
