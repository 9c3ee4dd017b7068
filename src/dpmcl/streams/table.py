"""Stream of your own table, in a CSV or Parquet file."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from dpmcl.data.labelled import Labelled
from dpmcl.data.readers.table_sources import SUFFIXES
from dpmcl.data.readers.tables import TableSettings, read_table
from dpmcl.data.scenario import check_task_column
from dpmcl.streams._settings import LabelledSettings, Text


@dataclass(frozen=True, kw_only=True)
class Table(TableSettings, LabelledSettings):
    """Your own table, in a CSV or Parquet file; predicts one column from the others.

    Inputs are in the table's order of columns. A column of numbers becomes one input, true/false
    one input of 0 and 1, and text one input of 0 and 1 for each category (at most 100), in
    alphabetical order. Whole numbers with a leading zero (007) are text. `dpmcl stream` shows how
    each column is read. Inputs are float32, or float64 if float32 would lose digits, until they are
    scaled. Classes and tasks keep their text, so 007 and 7 differ.

    Errors, which name a row (counted from 0, without the header) if one is to blame:

        - missing values (in text files: empty, NA, N/A, #N/A, <NA>, NaN, nan, NULL, null);
        - text that is mostly numbers, dates or times in another form (5%, $5.50, 5 kg, 1,5,
          31/01/2024) or mostly begins with a digit (2WD, 1st): convert it to numbers, ignore the
          column, or let each category begin with a letter;
        - columns of identifiers, dates, lists or binary data.

    Attributes:
        path: A .csv, .tsv (either may be gzipped, as .csv.gz) or .parquet file; ~ is your home
            folder. Text files are UTF-8 with a header. A .csv whose header has no comma is split at
            semicolons or tabs.
        target: Column to predict.
        task: Column with the task of each row, as text, whole numbers or true/false, which is then
            not an input; None if the scenario makes the tasks.
        kind: "classification" or "regression". None for classification if the target is text,
            true/false or whole numbers (more than 100 different ones need `kind`, because they may
            be amounts), and for regression if it is other numbers.
        ignore: Columns to leave out, such as identifiers.
        scale: Whether to scale each column of numbers to mean 0 and standard deviation 1. Both are
            fitted for each seed on the first task's training rows only, so that no later task leaks
            in. A column that is constant there is only shifted. Scaled inputs are clipped to 10
            standard deviations. Targets of regression are scaled too, but not clipped; errors are
            then in units of the first task's variance.
    """

    places: ClassVar[tuple[str, ...]] = ("path",)
    suffixes: ClassVar[tuple[str, ...]] = SUFFIXES

    path: Text

    def __post_init__(self) -> None:
        super().__post_init__()
        check_task_column(self.task, self.scenario)

    def read(self) -> Labelled:
        return read_table(Path(self.path), self)


plugin = Table
