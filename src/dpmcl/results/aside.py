"""What a run folder held before `--fresh`: kept beside it until the new run has finished.

A run folder's own files are moved, and no others, so that the folder itself (its lock, what else
is in it, a process that works in it) stays. `.fresh.json` in the folder says where they went, and
what the new run must have before they go. A move that was cut short is completed by the next run.
"""

import shutil
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

import pydantic

from dpmcl.atomic import write_text
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
    if not store.is_run(folder):
        if note.kept:
            _write(folder, note)
        return None
    home = folder.resolve()
    place = _free(home)
    try:
        if home.parent.stat().st_dev != home.stat().st_dev:
            raise FolderError(
                f"{folder} is where a disk is mounted, so its results cannot be kept beside it; "
                "choose another folder with --out."
            )
        place.mkdir()
    except OSError as error:
        if isinstance(error, FolderError):
            raise
        raise _unmoved(folder, place, error) from None
    note.kept, note.moved = [*note.kept, place.name], False
    _write(folder, note)
    complete(folder)
    return place


def complete(folder: Path) -> None:
    """Complete a move that was cut short; nothing where none was."""
    note = _read(folder)
    if note.moved:
        return
    place = folder.resolve().parent / note.kept[-1]
    try:
        place.mkdir(exist_ok=True)
        for name in ("spec.toml", *store.FILES):
            if (folder / name).exists():
                (folder / name).rename(place / name)
    except OSError as error:
        raise _unmoved(folder, place, error) from None
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
    start = _start(folder.resolve())
    ours = [name for name in note.kept if name.startswith(start) and name == Path(name).name]
    return note if ours == note.kept and (ours or note.moved) else _Note()


def _write(folder: Path, note: _Note) -> None:
    write_text(folder / _NOTE, note.model_dump_json(indent=1) + "\n")


def _start(home: Path) -> str:
    return f"{home.name}.before-fresh"


def _free(home: Path) -> Path:
    names = (_start(home) if i == 1 else f"{_start(home)}-{i}" for i in count(1))
    return next(path for name in names if not (path := home.parent / name).exists())


def _unmoved(folder: Path, place: Path, error: OSError) -> FolderError:
    return FolderError(
        f"{folder} cannot be moved to {place} ({error.strerror}); choose another folder with --out."
    )
