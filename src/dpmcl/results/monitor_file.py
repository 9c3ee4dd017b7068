"""monitor.parquet: readings of the monitor, a row for each method, seed and reading."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpmcl.core.atomic import atomic
from dpmcl.results.parquet import read_columns
from dpmcl.results.record import Record
from dpmcl.theory.readings import Readings
from dpmcl.theory.stability import Reading

FILE = "monitor.parquet"
_KEYS = ("task", "phase", "update")
_COLUMNS = {
    "method": pa.string(),
    "seed": pa.int64(),
    **{key: pa.int64() for key in _KEYS},
    **{name: pa.float64() for name in Reading._fields},
}
_RENAMED = {"drift": "increase"}  # present names of columns that were renamed after version 0.2


def save(folder: Path, records: Mapping[str, Record]) -> None:
    """Write the readings of all records. There is no file if no record has readings.

    Args:
        folder: The run folder.
        records: Results by method.
    """
    parts = []
    for method, record in sorted(records.items()):
        if (readings := record.readings) is None:
            continue
        replica, reading = np.nonzero(~np.isnan(readings.values).all(2))
        positions = np.asarray(readings.positions, dtype=np.int64).reshape(-1, 3)[reading]
        values = readings.values[replica, reading]
        seeds = np.asarray(readings.seeds)[replica]
        columns = [np.full(len(seeds), method, dtype=object), seeds, *positions.T, *values.T]
        parts.append(pa.table(columns, schema=pa.schema(_COLUMNS.items())))
    if parts:
        with atomic(folder / FILE) as temporary:
            pq.write_table(pa.concat_tables(parts).combine_chunks(), temporary)


def read(path: Path, tasks: int, seeds: Mapping[str, tuple[int, ...]]) -> dict[str, Readings]:
    """Return the readings by method; an empty mapping if the file does not exist.

    Args:
        path: The file.
        tasks: Number of tasks of the stream.
        seeds: Seeds that have results, by method; readings of other seeds are ignored.

    Raises:
        ValueError: The file does not have the expected form.
        KeyError: A column is missing.
    """
    if not path.exists():
        return {}
    column = read_columns(path, _COLUMNS, nullable=Reading._fields, former_names=_RENAMED)
    if ((column["task"] < 0) | (column["task"] >= tasks)).any():
        raise ValueError(f"task in {FILE} is out of range")
    out = {}
    for method, method_seeds in seeds.items():
        rows = (column["method"] == method) & np.isin(column["seed"], method_seeds)
        if not rows.any():
            continue
        row_positions = np.stack([column[key][rows] for key in _KEYS], 1)
        positions, reading = np.unique(row_positions, axis=0, return_inverse=True)
        order = {seed: i for i, seed in enumerate(method_seeds)}
        replica = [order[int(seed)] for seed in column["seed"][rows]]
        values = np.full((len(method_seeds), len(positions), len(Reading._fields)), np.nan)
        quantities = np.stack([column[name][rows] for name in Reading._fields], 1)
        values[replica, reading.reshape(-1)] = quantities
        as_tuples = tuple((int(t), int(p), int(u)) for t, p, u in positions)
        out[method] = Readings(tuple(method_seeds), as_tuples, values)
    return out
