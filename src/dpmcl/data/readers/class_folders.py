"""Find the folders of images that are classes: the first below the source, as in ImageFolder.

Torchvision's `ImageFolder` takes the folders directly below its root, and files at any depth below
them. Archives often have one more folder around everything, which is passed over here.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NamedTuple

from dpmcl.data.labels import is_unicode
from dpmcl.exceptions import DataError

KINDS = (
    "bmp", "gif", "jfif", "jpe", "jpeg", "jpg", "pbm", "pgm", "png", "pnm", "ppm", "tif", "tiff",
    "webp",
)  # fmt: skip
"""Suffixes of image files."""

_PARTS = {"train", "training", "test", "testing", "val", "valid", "validation", "dev", "eval"}
_SHOWN = 3

Folders = tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """A file or folder of a source. path: inside the source. where: its name in errors."""

    path: PurePosixPath
    where: str
    is_folder: bool

    @property
    def folders(self) -> Folders:
        return self.path.parts if self.is_folder else self.path.parts[:-1]

    @property
    def hidden(self) -> bool:
        return any(part.startswith(".") or part == "__MACOSX" for part in self.path.parts)

    @property
    def is_image(self) -> bool:
        suffix = self.path.suffix.lower()[1:]
        return not (self.is_folder or self.hidden) and suffix in KINDS


class Classes(NamedTuple):
    """of: the class of each image, by its path. notes: what became of the source's files."""

    of: dict[PurePosixPath, str]
    notes: tuple[str, ...]


def class_folders(entries: Sequence[Entry], source: str, levels: int, innermost: bool) -> Classes:
    """Name the class of each image by the folders that it is in.

    Args:
        entries: All files and folders of a source.
        source: Its path, for errors.
        levels: How many folders make a name: 1 for "cat", 2 for "Latin/character03".
        innermost: Take the last folders above a file, instead of the first below the source.

    Raises:
        DataError: There is no image, an image is outside of a class folder, a class folder has no
            image, or the folders cannot be classes.
    """
    images = [entry for entry in entries if entry.is_image]
    others = [entry for entry in entries if not entry.is_image and not entry.hidden]
    if not images:
        shown = _suffixes(others)
        raise DataError(
            f"There must be images in {source}, and there are none ({', '.join(KINDS)}"
            f"{'; it has ' + shown if shown else ''}); correct the path, or convert them."
        )
    some = "folder" if levels == 1 else f"{levels} folders"
    for image in images:
        if len(image.folders) < levels:
            raise DataError(
                f"Every image must be in the {some} that its class is named by, and {image.where} "
                "is not; move it, or remove it."
            )
    if innermost:
        names = {image.path: "/".join(image.folders[-levels:]) for image in images}
        return Classes(names, _notes(entries, f"the last {some} above each file"))
    top = _shared(images, others, levels)
    folders = {image.path: image.folders[len(top) :][:levels] for image in images}
    _check_full(others, set(folders.values()), top, levels, source)
    _check_classes(images, set(folders.values()), top, levels)
    below = f"'{'/'.join(top)}'" if top else "the source"
    notes = _notes(entries, f"the first {some} below {below}")
    return Classes({path: "/".join(parts) for path, parts in folders.items()}, notes)


def _shared(images: Sequence[Entry], others: Sequence[Entry], levels: int) -> Folders:
    """Return the folders that everything is in, as far as they leave enough to name the classes."""
    depth = min(len(image.folders) for image in images) - levels
    every = {entry.folders for entry in (*images, *others)}
    top: Folders = ()
    while len(top) < depth and len({f[len(top)] for f in every if len(f) > len(top)}) == 1:
        top = images[0].folders[: len(top) + 1]
    return top


def _check_classes(
    images: Sequence[Entry], classes: set[Folders], top: Folders, levels: int
) -> None:
    """Refuse folders that torchvision would take for classes, and are likely to be something else.

    Raises DataError.
    """
    deepest = max(images, key=lambda image: len(image.folders))
    beside = min(images, key=lambda image: len(image.folders))
    deeper = len(deepest.folders) > len(top) + levels
    if len(classes) == 1 and deeper:  # or `top` would be longer
        raise DataError(
            f"The class folders cannot be told: {beside.where} is beside them, and {deepest.where} "
            "in a folder below it. Move the first into a class folder, or remove it."
        )
    first = {folders[0] for folders in classes}
    words = {name: _PARTS.intersection(re.findall("[a-z]+", name.lower())) for name in first}
    parts = sorted(name for name in first if words[name])
    several = len(set().union(*words.values())) > 1  # not "test cat" and "test dog"
    if several and 2 * len(parts) >= len(first) and (levels == 1 or deeper):
        raise DataError(
            f"The folders {_listed(parts)} look like the parts of a data set and not like its "
            "classes. Every seed splits the rows anew, so give one of them as the path, or put the "
            "class folders of all into one folder; if they are classes, rename one."
        )
    for folders in classes:
        name = "/".join(folders)
        if not is_unicode(name):
            raise DataError(f"Names of class folders must be UTF-8, got {name!r:.80}; rename it.")


def _check_full(
    others: Sequence[Entry], classes: set[Folders], top: Folders, levels: int, source: str
) -> None:
    """Refuse a folder in the place of a class that has no image. Raises DataError."""
    known = {folders[:n] for folders in classes for n in range(levels + 1)}
    empty = {e.folders[len(top) :][:levels] for e in others} - known
    if not empty:
        return
    folder = min(empty)
    inside = [e for e in others if e.folders[len(top) :][: len(folder)] == folder]
    more = f", nor have {len(empty) - 1} other folders" if len(empty) > 1 else ""
    raise DataError(
        f"Every class folder needs images ({', '.join(KINDS)}), and '{'/'.join((*top, *folder))}' "
        f"in {source} has none ({_suffixes(inside) or 'it is empty'}){more}; convert its files, or "
        "move the folder elsewhere."
    )


def _notes(entries: Sequence[Entry], how: str) -> tuple[str, ...]:
    """Return lines about where class names come from, and what was passed over."""
    notes = [f"class names: {how}"]
    passed = [e for e in entries if not (e.is_folder or e.is_image)]
    if passed:
        notes.append(f"files passed over: {_suffixes(passed)}")
    full = {e.folders[:n] for e in entries if e.is_image for n in range(len(e.folders) + 1)}
    bare = {e.folders for e in entries if not (e.hidden or e.is_image)} - full
    if bare:
        notes.append(f"folders without images: {_listed(sorted('/'.join(f) for f in bare))}")
    return tuple(notes)


def _suffixes(entries: Iterable[Entry]) -> str:
    """Return how many files there are of each suffix, as in "3 .txt, 1 hidden"."""
    files = [entry for entry in entries if not entry.is_folder]
    count = Counter(
        "hidden" if e.hidden else e.path.suffix.lower() or "without a suffix" for e in files
    )
    ordered = sorted(count.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{number} {suffix}" for suffix, number in ordered)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown
