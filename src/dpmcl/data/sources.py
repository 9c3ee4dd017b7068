"""Choice of the stream that reads a path, by its suffix or by the files in the folder."""

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from dpmcl import plugins


def is_data(text: str) -> bool:
    """Return True if a text is a path of data: it has a known suffix or is an existing folder.

    Args:
        text: Any text.

    >>> is_data("my.csv"), is_data("mnist")
    (True, False)
    """
    return _by_suffix(text) is not None or os.path.isdir(expand_home(text))  # noqa: PTH112 (any text)


def stream_for(path: str) -> str:
    """Return the name of the stream that reads a file or folder.

    Args:
        path: Path of the file or folder, which need not exist.

    >>> stream_for("my.tar.gz"), stream_for("photos/")
    ('images', 'images')
    """
    for name, stream in _streams():
        inside = (os.path.join(expand_home(path), file) for file in stream.inside)  # noqa: PTH118
        if any(os.path.isfile(file) for file in inside):  # noqa: PTH113
            return name
    return _by_suffix(path) or "images"


def suffixes() -> dict[str, tuple[str, ...]]:
    """Return the suffixes of the files that each stream reads, by the name of the stream."""
    return {name: stream.suffixes for name, stream in _streams() if stream.suffixes}


def expand_home(text: str) -> str:
    """Return a path with ~ expanded. Other texts, even invalid paths, are returned unchanged.

    Args:
        text: Any text.
    """
    try:
        return os.path.expanduser(text)  # noqa: PTH111 (pathlib fails on unknown users)
    except ValueError:  # a NUL in a user name
        return text


def _by_suffix(text: str) -> str | None:
    """Return the name of the stream that reads files with the suffix of a path, or None."""
    lower = text.lower()
    return next((name for name, ends in suffixes().items() if lower.endswith(ends)), None)


def _streams() -> Iterator[tuple[str, Any]]:
    """Yield the name and settings class of every stream."""
    for name in plugins.names("stream"):
        # Errors of a user's stream are reported when it is requested by name.
        with suppress(Exception):
            yield name, plugins.find("stream", name)
