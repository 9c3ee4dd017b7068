"""Which stream reads a path: told by its suffix, or by what is in the folder."""

import os

SUFFIXES = {
    "table": (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet"),
    "arrays": (".npz",),
    "images": (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz"),
}
"""Suffixes of the files that each stream reads."""


def is_data(text: str) -> bool:
    """Whether a text can only be the path of data: by its suffix, or because a folder is there.

    >>> is_data("my.csv"), is_data("mnist")
    (True, False)
    """
    return _by_suffix(text) is not None or os.path.isdir(at_home(text))  # noqa: PTH112 (any text)


def stream_for(path: str) -> str:
    """The name of the stream that reads a file or folder.

    >>> stream_for("my.tar.gz"), stream_for("photos/")
    ('images', 'images')
    """
    place = at_home(path)
    if os.path.isfile(os.path.join(place, "x.npy")):  # noqa: PTH113, PTH118
        return "arrays"
    names = ("dataset_info.json", "dataset_dict.json")
    if any(os.path.isfile(os.path.join(place, name)) for name in names):  # noqa: PTH113, PTH118
        return "huggingface"
    return _by_suffix(path) or "images"


def at_home(text: str) -> str:
    """A path with ~ written out; any other text, impossible names included, as it is."""
    try:
        return os.path.expanduser(text)  # noqa: PTH111 (pathlib fails on names of nobody)
    except ValueError:  # a NUL in the name of a user
        return text


def _by_suffix(text: str) -> str | None:
    lower = text.lower()
    return next((name for name, ends in SUFFIXES.items() if lower.endswith(ends)), None)
