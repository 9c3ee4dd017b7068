"""Arrays in NumPy's files as labelled data; those in .npy files may be larger than memory."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dpmcl.core.model import Kind
from dpmcl.data.damaged import whole
from dpmcl.data.labelled import Labelled, from_arrays
from dpmcl.data.pools import mapped
from dpmcl.data.sources import at_home
from dpmcl.exceptions import DataError, listed, reason

_AGAIN = "save or fetch it again"


def read_arrays(path: Path, kind: Kind | None = None) -> Labelled:
    """Read x, y and perhaps task from an .npz file, or from .npy files in a folder.

    Arrays in .npy files stay there, mapped copy-on-write, if they are uint8 or floats of this
    machine's byte order, stored by rows; others are converted once. An .npz file is read into
    memory. Objects, which would need pickle, are never loaded.

    Args:
        path: The file or the folder. x is (rows, ...), uint8, another number type, or bool; y is
            labels, or numbers (rows,) or (rows, outputs) for regression; task is a label a row.
        kind: "classification", "regression", or None as for `from_arrays`.

    Returns:
        The labelled data.

    Raises:
        DataError: Files are missing, damaged, or hold something else.
    """
    path = Path(at_home(str(path)))
    with whole(str(path), _AGAIN):
        if path.is_dir():
            name = path.resolve().name
            files = {file.stem: file for file in sorted(path.glob("*.npy")) if file.is_file()}
            arrays = _read(files, path)
        elif path.is_file() and zipfile.is_zipfile(path):  # a pipe would be waited for
            name = path.stem
            with np.load(path, allow_pickle=False) as members:
                arrays = _read(members, path)
        else:
            state = "is neither, or is damaged" if path.is_file() else "is not there"
            raise DataError(
                f"Arrays must be an .npz file or a folder with x.npy and y.npy, and {path} "
                f"{state}; correct the path, or save it with np.savez(path, x=..., y=...)."
            )
    return from_arrays(arrays["x"], arrays["y"], arrays.get("task"), name=name, kind=kind)


def _read(files: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """Return x, y and, if it is there, task of an open .npz file or of .npy files by name."""
    arrays = {}
    for part in ("x", "y", "task"):
        if part not in files and part != "task":
            raise DataError(
                f"There must be arrays named 'x' and 'y', and {where} has no '{part}', but "
                f"{listed(files)}; rename what is meant, as in np.savez(path, x=..., y=...)."
            )
        if part not in files:
            continue
        try:
            file = files[part]
            array = mapped(file) if isinstance(file, Path) else file
        except Exception as error:  # NumPy evaluates the header as a literal, which can raise any
            raise DataError(
                f"'{part}' in {where} must be an array of numbers or text, without Python objects, "
                f"and cannot be read ({reason(error)}); save it again, text as np.array(labels, "
                "dtype='U')."
            ) from None
        if not isinstance(array, np.ndarray) or array.dtype.itemsize == 0:
            raise DataError(f"'{part}' in {where} must be an array, and is none; {_AGAIN}.")
        arrays[part] = array
    return arrays
