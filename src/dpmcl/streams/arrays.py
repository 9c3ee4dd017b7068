"""Stream of your own arrays, in NumPy's files."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from dpmcl.data.labelled import Labelled
from dpmcl.data.readers.arrays import read_arrays
from dpmcl.streams._settings import LabelledSettings, Text


@dataclass(frozen=True, kw_only=True)
class Arrays(LabelledSettings):
    """Your own arrays, in NumPy's files: x, y and optionally task.

    The array x holds inputs (rows, ...): uint8, divided by 255 in a batch; true/false, read as 1
    and 0; or other numbers, which are not scaled, so numbers that float32 cannot tell apart are an
    error. y holds the label of each row, as whole numbers, text or true/false; for regression,
    numbers (rows,) or (rows, outputs). task holds the task label of each row. Arrays of Python
    objects are not loaded, because loading them can run code.

    Inputs in .npy files may be larger than memory. uint8 and floats are memory-mapped if they are
    in C order and in this machine's byte order. Other arrays are converted; what does not fit in
    memory goes to a temporary file in $TMPDIR or /var/tmp. An .npz file is read into memory.

    Attributes:
        path: An .npz file with arrays of these names (np.savez(path, x=x, y=y)), or a folder with
            x.npy, y.npy and optionally task.npy; ~ is your home folder.
        kind: "classification" or "regression"; None for regression if y is floats, else
            classification.
    """

    places: ClassVar[tuple[str, ...]] = ("path",)
    suffixes: ClassVar[tuple[str, ...]] = (".npz",)
    inside: ClassVar[tuple[str, ...]] = ("x.npy",)

    path: Text
    kind: Literal["classification", "regression"] | None = None

    def read(self) -> Labelled:
        return read_arrays(Path(self.path), kind=self.kind)


plugin = Arrays
