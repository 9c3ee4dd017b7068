"""Stream of your own Hugging Face data set, saved in a folder."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from dpmcl.data.labelled import Labelled
from dpmcl.data.read_errors import reading
from dpmcl.data.readers.datasets import DatasetSettings, read_dataset
from dpmcl.data.scenario import check_task_column
from dpmcl.data.sources import expand_home
from dpmcl.exceptions import DataError, needed_for
from dpmcl.streams._settings import LabelledSettings, Text


@dataclass(frozen=True, kw_only=True)
class HuggingFace(DatasetSettings, LabelledSettings):
    """Your own Hugging Face data set, in a folder that `save_to_disk` wrote.

    Classes have the names and the order that a ClassLabel column declares. Nothing is downloaded,
    and no code in the folder is run. Needs `datasets` (the extra `huggingface`) and, for images,
    Pillow (`vision`).

    Attributes:
        path: Folder of one split; ~ is your home folder.
        x: Column of the inputs: images of one size (grey if all are grey, else RGB), numbers, or
            lists of numbers of one length. None for the only image column or, if there is none, for
            all other columns, which are read as stream 'table' reads them.
        y: Column of the labels, or of numbers for regression; None for "label".
        task: Column with the task of each row; None if there is none.
        kind: "classification" or "regression"; None for regression if the labels are floats (for
            tables, if any is not whole), else classification.
    """

    places: ClassVar[tuple[str, ...]] = ("path",)
    inside: ClassVar[tuple[str, ...]] = ("dataset_info.json", "dataset_dict.json")

    path: Text

    def __post_init__(self) -> None:
        super().__post_init__()
        check_task_column(self.task, self.scenario)

    def read(self) -> Labelled:
        folder = Path(expand_home(self.path)).absolute()
        return read_dataset(_load(folder), self, folder.resolve().name)


def _load(folder: Path) -> Any:
    """Load the data set that is saved in a folder."""
    with needed_for("Stream 'huggingface'", "dpmcl[huggingface]", DataError):
        import datasets
    with reading(str(folder), "save it again with dataset.save_to_disk", anything=True):
        _check_folder(folder)
        return datasets.Dataset.load_from_disk(str(folder), keep_in_memory=False)


def _check_folder(folder: Path) -> None:
    """Check that a folder is one saved split and has all of its files.

    `datasets` itself accepts any path. Raises DataError, or the error of reading the folder.
    """
    if "::" in str(folder):  # `datasets` reads this as a file in an archive, perhaps remote
        raise DataError(f"A path may not have '::' in it, and {folder} has; rename the folder.")
    if not (folder / "state.json").is_file():
        splits = ", ".join(sorted(path.parent.name for path in folder.glob("*/state.json")))
        raise DataError(
            "stream.path must be the folder of one split that dataset.save_to_disk wrote, and "
            f"{folder} is none; correct the path{splits and ', as to one in it: '}{splits}."
        )
    state = json.loads((folder / "state.json").read_text("utf-8"))
    names = [file["filename"] for file in state["_data_files"]]
    missing = [n for n in names if Path(n).name != n or not (folder / n).is_file()]
    if missing:
        raise DataError(
            f"All files of a saved data set must be in its folder, and {missing[0]!r:.80} is not "
            f"in {folder}; save or copy it again."
        )


plugin = HuggingFace
