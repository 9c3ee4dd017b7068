"""Reading of a run folder's Parquet files."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def read_columns(
    path: Path,
    types: Mapping[str, pa.DataType],
    *,
    nullable: Collection[str] = (),
    former_names: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the columns of a file as arrays, by name.

    Args:
        path: The file.
        types: Type of each column.
        nullable: Columns in which values may be missing.
        former_names: Present name of each column that was renamed, by its former name.

    Raises:
        ValueError: A column has another type, or a value is missing.
        KeyError: A column is missing.
    """
    with pq.ParquetFile(path) as file:  # `read_table` takes a folder named a=1 for a column
        table = file.read(use_threads=False)  # files are small, and a study has many
    names = former_names or {}
    table = table.rename_columns([names.get(name, name) for name in table.column_names])
    for name, kind in types.items():
        if table[name].type != kind or (name not in nullable and table[name].null_count):
            raise ValueError(f"{name} in {path.name} is not {kind} in every row")
    return {name: table[name].to_numpy() for name in types}
