"""Keep what a run folder held before `--fresh` until the new run has finished.

Only the run's files move, into a folder `before-fresh` inside the run folder. The lock, the user's
other files and the folder itself stay in place, for processes that work in it. During the move the
inner folder is called `.moving`; the next run completes a move that was interrupted.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpmcl.exceptions import FolderError
from dpmcl.results import store
from dpmcl.results.record import Record

_KEPT, _MOVING = "before-fresh", ".moving"


def put_aside(folder: Path) -> Path | None:
    """Move a run's files into a new folder inside the run folder.

    If that folder holds an earlier run already, it stays, and the unfinished later run is removed.

    Args:
        folder: The run folder, locked by the caller.

    Returns:
        The folder with the earlier run; None if there is none.

    Raises:
        FolderError: A folder of the user's own has the name of the new one.
    """
    earlier = folder / _KEPT
    if earlier.exists() and not store.is_run(earlier):
        raise FolderError(f"{earlier} is no run that --fresh has kept; rename it.")
    if store.is_run(folder):
        (folder / _MOVING).mkdir()
        complete_move(folder)
    return earlier if earlier.exists() else None


def complete_move(folder: Path) -> None:
    """Complete a move of a run's files that was interrupted, if there was one.

    Args:
        folder: The run folder.

    Raises:
        FolderError: A file cannot be moved.
    """
    unfinished, earlier = folder / _MOVING, folder / _KEPT
    if not unfinished.exists():
        return
    try:
        for name in ("spec.toml", *store.FILES):
            if (folder / name).exists():
                (folder / name).rename(unfinished / name)
        if earlier.exists():
            shutil.rmtree(unfinished)
        else:
            unfinished.rename(earlier)
    except OSError as error:
        raise FolderError(
            f"{folder} cannot be kept in {earlier} ({error.strerror}); choose another folder with "
            "--out."
        ) from None


def remove_finished(folder: Path, spec: Mapping[str, Any], records: Mapping[str, Record]) -> None:
    """Remove the earlier run if the folder has all results of its new spec.

    Args:
        folder: The run folder.
        spec: The table of the new spec.
        records: Results of the new run, by method.
    """
    seeds = set(range(spec["seed"], spec["seed"] + spec["replicas"]))
    unfinished = [
        name
        for name in spec["methods"]
        if name not in records or not seeds <= set(records[name].test.seeds)
    ]
    if not unfinished and store.is_run(folder / _KEPT):
        shutil.rmtree(folder / _KEPT, ignore_errors=True)
