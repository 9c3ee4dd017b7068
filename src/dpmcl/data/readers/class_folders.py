"""Classes of images, named by folders as in torchvision's `ImageFolder`.

`ImageFolder` takes the folders directly below its root as classes, with files at any depth below
them. Archives often have one more folder around everything, or a folder for each part of the set
(train, test). These are skipped here, because every seed splits all rows again.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from dpmcl.data.readers.entries import Entry
from dpmcl.data.readers.pil_images import SUFFIXES
from dpmcl.exceptions import DataError, listed

_PARTS = {"train", "training", "test", "testing", "val", "valid", "validation", "dev", "eval"}
_SHOWN = 3

Folders = tuple[str, ...]


class Classes(NamedTuple):
    """Classes of images.

    Attributes:
        by_path: Class of each image, by its path.
        notes: Lines about the origin of the class names, and about files that are skipped.
    """

    by_path: dict[PurePosixPath, str]
    notes: tuple[str, ...]


def class_folders(entries: Sequence[Entry], source: str, levels: int) -> Classes:
    """Name the class of each image by the folders that contain it.

    Args:
        entries: All files and folders of a source.
        source: Path of the source, for errors.
        levels: Number of nested folders whose names make a class name: 1 for "cat", 2 for
            "Latin/character03".

    Returns:
        The class of each image, and notes on how they were named.

    Raises:
        DataError: There is no image, an image is outside of the class folders, a class folder has
            no image, or the folders cannot be classes.
    """
    images = [entry for entry in entries if _is_image(entry)]
    others = [entry for entry in entries if not _is_image(entry) and not entry.hidden]
    if not images:
        suffixes = _suffixes(others)
        raise DataError(
            f"There must be images in {source}, and there are none ({', '.join(SUFFIXES)}"
            f"{'; it has ' + suffixes if suffixes else ''}); correct the path, or convert them."
        )
    folders_text = "folder" if levels == 1 else f"{levels} folders"
    for image in images:
        if len(image.folders) < levels:
            raise DataError(
                f"Every image must be in the {folders_text} that its class is named by, and "
                f"{image.where} is not; move it, or remove it."
            )
    top = _outer_folders(images, others, levels)
    parts = _parts(images, top, levels)
    start = len(top) + bool(parts)
    folders = {image.path: image.folders[start:][:levels] for image in images}
    classes = set(folders.values())
    _check_not_empty([e for e in others if len(e.folders) > start], classes, start, source)
    deepest, shallowest = (by(images, key=lambda image: len(image.folders)) for by in (max, min))
    if len(classes) == 1 and not parts and len(deepest.folders) > start + levels:
        raise DataError(  # `_outer_folders` could not skip the one folder because of this file
            f"The class folders cannot be told: {shallowest.where} is beside them, and "
            f"{deepest.where} in a folder below it. Move the first into a class folder, or remove "
            "it."
        )
    below = f"'{'/'.join(top)}'" if top else "the source"
    below = f"{listed(parts, _SHOWN)} of {below}, which are pooled" if parts else below
    notes = _notes(entries, f"the first {folders_text} below {below}")
    return Classes({path: "/".join(parts) for path, parts in folders.items()}, notes)


def _is_image(entry: Entry) -> bool:
    suffix = entry.path.suffix.lower()[1:]
    return not (entry.is_folder or entry.hidden) and suffix in SUFFIXES


def _outer_folders(images: Sequence[Entry], others: Sequence[Entry], levels: int) -> Folders:
    """Return the outer folders that contain everything, but leave `levels` to name the classes."""
    depth = min(len(image.folders) for image in images) - levels
    all_folders = {entry.folders for entry in (*images, *others)}
    top: Folders = ()
    while len(top) < depth and len({f[len(top)] for f in all_folders if len(f) > len(top)}) == 1:
        top = images[0].folders[: len(top) + 1]
    return top


def _parts(images: Sequence[Entry], top: Folders, levels: int) -> Sequence[str]:
    """Return the folders below `top` that are parts of a data set (train, test), or ().

    Raises DataError if only some folders are parts, or if images are beside the class folders.
    """
    first = sorted({image.folders[len(top)] for image in images})
    words = {name: _PARTS.intersection(re.findall("[a-z]+", name.lower())) for name in first}
    parts = [name for name in first if words[name]]
    depths = {len(image.folders) - len(top) for image in images}
    if len(set().union(*words.values())) < 2 or (levels > 1 and max(depths) <= levels):
        return ()  # not "test cat" and "test dog"
    if parts == first and min(depths) > levels:
        return parts
    raise DataError(
        f"The folders {listed(parts, _SHOWN)} look like the parts of a data set and not like its "
        "classes, and can only be pooled if they are alone and hold the class folders; if they are "
        "classes, rename one."
    )


def _check_not_empty(
    others: Sequence[Entry], classes: set[Folders], start: int, source: str
) -> None:
    """Raise DataError for a folder at the level of the classes that has no image."""
    levels = len(next(iter(classes)))
    known = {folders[:n] for folders in classes for n in range(levels + 1)}
    empty = {e.folders[start:][:levels] for e in others} - known
    if not empty:
        return
    folder = min(empty)
    inside = [e for e in others if e.folders[start:][: len(folder)] == folder]
    raise DataError(
        f"Every class folder needs images ({', '.join(SUFFIXES)}), and "
        f"'{'/'.join(inside[0].folders[: start + len(folder)])}' in {source} has none "
        f"({_suffixes(inside) or 'it is empty'}); convert its files, or move the folder elsewhere."
    )


def _notes(entries: Sequence[Entry], origin: str) -> tuple[str, ...]:
    """Return lines about the origin of the class names, and about the files that are skipped."""
    notes = [f"class names: {origin}"]
    skipped = [e for e in entries if not (e.is_folder or _is_image(e))]
    if skipped:
        notes.append(f"files passed over: {_suffixes(skipped)}")
    return tuple(notes)


def _suffixes(entries: Iterable[Entry]) -> str:
    """Return the number of files with each suffix, as in "3 .txt, 1 hidden"."""
    files = [entry for entry in entries if not entry.is_folder]
    count = Counter(
        "hidden" if e.hidden else e.path.suffix.lower() or "without a suffix" for e in files
    )
    ordered = sorted(count.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{number} {suffix}" for suffix, number in ordered)
