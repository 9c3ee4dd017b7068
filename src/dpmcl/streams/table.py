"""Your own table: a CSV or Parquet file."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from dpmcl.data.labelled import Labelled
from dpmcl.data.readers.table_sources import SUFFIXES
from dpmcl.data.readers.tables import Roles, read_table
from dpmcl.data.scenario import check_task_column
from dpmcl.streams._settings import LabelledSettings, Text


@dataclass(frozen=True, kw_only=True)
class Table(LabelledSettings):
    """Your own table, in a CSV or Parquet file: predicts one column from the others.

    Classes and tasks keep their text: 007 and 7 are two.

    Inputs are in the table's order of columns: a column of numbers is one input, true/false is one
    of 0 and 1, text is one of 0 and 1 for each category (100 at most), in alphabetical order. Whole
    numbers with a zero before them (007) are text. `dpmcl stream` lists what each column is read
    as. Inputs are float32, or float64 where that would lose digits, until they are scaled.

    Refused, with the row: missing values (in text files: empty, NA, N/A, #N/A, <NA>, NaN, nan,
    NULL, null); text of which most is a number, a date or a time in another form (5%, $5.50, 5 kg,
    1,5, 31/01/2024) or begins with a digit (2WD, 1st), which to convert or to ignore, or as
    categories to begin with a letter; and identifiers, dates, lists and binary columns. Rows are
    counted from 0, without the header.

    Attributes:
        path: A .csv, .tsv (either gzipped, as .csv.gz) or .parquet file; ~ is your home folder.
            Text files are UTF-8 with a header; a .csv whose header has no comma is split at
            semicolons or tabs.
        target: The column to predict.
        task: A column that says which task each row belongs to, as text, whole numbers or
            true/false; it is no input.
        kind: None for classification if the target is text, true/false or whole numbers (more than
            100 different ones need `kind`, for they may be amounts), and for regression if it is
            other numbers.
        ignore: Columns to leave out, such as identifiers.
        scale: Whether to bring each column of numbers to mean 0 and deviation 1, which are fitted
            on the first task's training rows of each seed alone, so that nothing is known of tasks
            to come. A column that is constant there is only shifted. Scaled inputs are limited to
            10 deviations either side. In regression the targets are scaled likewise, but not
            limited: errors are then in units of the first task's variance.
    """

    places: ClassVar[tuple[str, ...]] = ("path",)
    suffixes: ClassVar[tuple[str, ...]] = SUFFIXES

    path: Text
    target: Text
    task: str | None = None
    kind: Literal["classification", "regression"] | None = None
    ignore: tuple[str, ...] = ()
    scale: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        Roles(target=self.target, task=self.task, ignore=self.ignore)  # which checks them
        check_task_column(self.task, self.scenario)

    def read(self) -> Labelled:
        return read_table(
            Path(self.path),
            target=self.target,
            task=self.task,
            kind=self.kind,
            ignore=self.ignore,
            scale=self.scale,
        )


plugin = Table
