"""Your own arrays, in NumPy's files."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from dpmcl.data.labelled import Labelled
from dpmcl.data.readers.arrays import read_arrays
from dpmcl.exceptions import SpecError
from dpmcl.streams._settings import LabelledSettings


@dataclass(frozen=True, kw_only=True)
class Arrays(LabelledSettings):
    """Your own arrays, in NumPy's files: x, y and perhaps task.

    path: an .npz file with arrays of these names (np.savez(path, x=x, y=y)), or a folder with
    x.npy, y.npy and perhaps task.npy; ~ is your home folder.

    x: inputs (rows, ...), uint8 for 0 to 255 (brought to [0, 1] in a batch), other numbers (as they
    are; nothing is scaled, so what float32 cannot tell apart is refused), or true/false (1 and 0).
    y: a label a row, whole numbers, text or true/false; for regression, numbers (rows,) or (rows,
    outputs). task: a label a row, which says the tasks. kind: "classification" or "regression";
    None for regression where y is floats, else classification. Arrays of Python objects are not
    loaded, for that can run code.

    Inputs may be larger than memory. uint8 and floats stay in the file, unless it is compressed
    (np.savez_compressed: read, if it fits), stored by columns or in foreign byte order; floats
    should then be in .npy files, for in an .npz they mostly start at odd addresses. What must be
    converted and does not fit goes to a temporary file, in $TMPDIR or /var/tmp.
    """

    places: ClassVar[tuple[str, ...]] = ("path",)

    path: str = ""
    kind: Literal["classification", "regression"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.path:
            raise SpecError("stream 'arrays' needs a path, as in stream.path = 'my.npz'.")

    def read(self) -> Labelled:
        return read_arrays(Path(self.path), kind=self.kind)


plugin = Arrays
