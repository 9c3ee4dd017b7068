"""Reader of arrays in .npz and .npy files; arrays in .npy files may be larger than memory."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dpmcl.core.model import Kind
from dpmcl.data.labelled import Labelled, from_arrays
from dpmcl.data.pools import load_mapped
from dpmcl.data.read_errors import reading
from dpmcl.data.sources import expand_home
from dpmcl.exceptions import DataError, listed

_WAY_OUT = "save or fetch it again"


def read_arrays(path: Path, kind: Kind | None = None) -> Labelled:
    """Read the arrays x, y and optionally task from an .npz file or from .npy files in a folder.

    Arrays of uint8 or floats in .npy files are memory-mapped if they are in C order and in this
    machine's byte order; others are converted once. An .npz file is read into memory. Arrays of
    Python objects, which need pickle, are never loaded.

    Args:
        path: Path of the file or folder. x is (rows, ...), numbers or bool; y is labels, or numbers
            (rows,) or (rows, outputs) for regression; task is the task label of each row.
        kind: "classification", "regression", or None to infer it as `from_arrays` does.

    Returns:
        The labelled data.

    Raises:
        DataError: Files are missing or damaged, or hold something else.
    """
    path = Path(expand_home(str(path)))
    with reading(str(path), _WAY_OUT):
        if path.is_dir():
            name = path.resolve().name
            files = {file.stem: file for file in sorted(path.glob("*.npy")) if file.is_file()}
            arrays = _read(files, path)
        elif path.is_file() and zipfile.is_zipfile(path):  # opening a pipe could block
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
    """Return the arrays x, y and, if it exists, task of an open .npz file or of .npy files."""
    arrays = {}
    for part in ("x", "y", "task"):
        if part not in files and part != "task":
            raise DataError(
                f"There must be arrays named 'x' and 'y', and {where} has no '{part}', but "
                f"{listed(files)}; rename what is meant, as in np.savez(path, x=..., y=...)."
            )
        if part not in files:
            continue
        rule = "must be an array of numbers or text, without Python objects, and"
        way_out = "save it again, text as np.array(labels, dtype='U')"
        # NumPy evaluates the header, which can raise any exception.
        with reading(f"'{part}' in {where} {rule}", way_out, anything=True):
            file = files[part]
            array = load_mapped(file) if isinstance(file, Path) else file
        if not isinstance(array, np.ndarray) or array.dtype.itemsize == 0:
            raise DataError(f"'{part}' in {where} must be an array, and is none; {_WAY_OUT}.")
        arrays[part] = array
    return arrays
