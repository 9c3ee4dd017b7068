"""Which stream reads a path: told by its suffix, or by what is in the folder."""

import os

_SUFFIXES = {
    "table": (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet"),
    "arrays": (".npz",),
    "images": (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz"),
}


def is_data(text: str) -> bool:
    """Whether a text can only be the path of data: by its suffix, or because a folder is there.

    >>> is_data("my.csv"), is_data("mnist")
    (True, False)
    """
    return _by_suffix(text) is not None or os.path.isdir(  # noqa: PTH112 (any text will do)
        os.path.expanduser(text)  # noqa: PTH111
    )


def stream_for(path: str) -> str:
    """The name of the stream that reads a file or folder.

    >>> stream_for("my.tar.gz"), stream_for("photos/")
    ('images', 'images')
    """
    place = os.path.expanduser(path)  # noqa: PTH111 (pathlib fails on impossible names)
    if os.path.isfile(os.path.join(place, "x.npy")):  # noqa: PTH113, PTH118
        return "arrays"
    names = ("dataset_info.json", "dataset_dict.json")
    if any(os.path.isfile(os.path.join(place, name)) for name in names):  # noqa: PTH113, PTH118
        return "huggingface"
    return _by_suffix(path) or "images"


def _by_suffix(text: str) -> str | None:
    lower = text.lower()
    return next((name for name, ends in _SUFFIXES.items() if lower.endswith(ends)), None)
