"""Your own arrays, in NumPy's files."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from dpmcl.data.labelled import Labelled
from dpmcl.data.readers.arrays import read_arrays
from dpmcl.streams._settings import LabelledSettings, Text


@dataclass(frozen=True, kw_only=True)
class Arrays(LabelledSettings):
    """Your own arrays, in NumPy's files: x, y and perhaps task.

    The array x holds inputs (rows, ...), uint8 for 0 to 255 (brought to [0, 1] in a batch), other
    numbers (as they are; nothing is scaled, so numbers that float32 cannot tell apart are refused),
    or true/false (1 and 0). y holds a label a row, whole numbers, text or true/false; for
    regression, numbers (rows,) or (rows, outputs). task holds a label a row, which says the tasks.
    Arrays of Python objects are not loaded, for that can run code.

    Inputs in .npy files may be larger than memory. uint8 and floats stay in the file, unless they
    are stored by columns or in foreign byte order: arrays that must be converted and do not fit go
    to a temporary file, in $TMPDIR or /var/tmp. An .npz file is read into memory.

    Attributes:
        path: An .npz file with arrays of these names (np.savez(path, x=x, y=y)), or a folder with
            x.npy, y.npy and perhaps task.npy; ~ is your home folder.
        kind: None for regression if y is floats, else classification.
    """

    places: ClassVar[tuple[str, ...]] = ("path",)
    suffixes: ClassVar[tuple[str, ...]] = (".npz",)
    inside: ClassVar[tuple[str, ...]] = ("x.npy",)

    path: Text
    kind: Literal["classification", "regression"] | None = None

    def read(self) -> Labelled:
        return read_arrays(Path(self.path), kind=self.kind)


plugin = Arrays
