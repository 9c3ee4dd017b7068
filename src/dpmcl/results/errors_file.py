"""errors.parquet: method, seed, after, task, split, error and examples, a row for each value."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpmcl.core.atomic import atomic
from dpmcl.core.errors import Errors
from dpmcl.results.parquet import read_columns
from dpmcl.results.record import Record

FILE = "errors.parquet"
_COLUMNS = {
    "method": pa.string(),
    "seed": pa.int64(),
    "after": pa.int64(),
    "task": pa.int64(),
    "split": pa.string(),
    "error": pa.float64(),
    "examples": pa.int64(),
}


def save(folder: Path, records: Mapping[str, Record]) -> None:
    """Write the errors of all records.

    Args:
        folder: The run folder.
        records: Results by method.
    """
    with atomic(folder / FILE) as temporary:
        pq.write_table(table(records), temporary)


def table(records: Mapping[str, Record]) -> pa.Table:
    """Return errors in the form of the file, a row for each value.

    Args:
        records: Results by method.
    """
    schema = pa.schema(_COLUMNS)
    tables = [
        pa.table(_columns_of(name, split, errors), schema=schema)
        for name, record in sorted(records.items())
        for split, errors in sorted(record.errors.items())
    ]
    return pa.concat_tables([schema.empty_table(), *tables]).combine_chunks()


def read(path: Path, tasks: int) -> dict[str, dict[str, Errors]]:
    """Return the errors by method and split; an empty mapping if the file does not exist.

    Args:
        path: The file.
        tasks: Number of tasks of the stream.

    Raises:
        ValueError: The file does not have the expected form.
        KeyError: A column is missing.
    """
    if not path.exists():
        return {}
    column = read_columns(path, _COLUMNS)
    for name, least in {"seed": 0, "after": -1, "task": 0, "examples": 0}.items():
        beyond = name in ("after", "task") and (column[name] >= tasks).any()
        if beyond or (column[name] < least).any():
            raise ValueError(f"{name} in {FILE} is out of range")
    out: dict[str, dict[str, Errors]] = {}
    for method, split in sorted(set(zip(column["method"], column["split"], strict=True))):
        rows = (column["method"] == method) & (column["split"] == split)
        if tasks > rows.sum():  # checked before arrays of this size are allocated
            raise ValueError(f"{FILE} has too few rows for {tasks} tasks")
        seeds, replica = np.unique(column["seed"][rows], return_inverse=True)
        values = np.full((len(seeds), 1 + tasks, tasks), np.nan)
        examples = np.zeros((len(seeds), tasks), dtype=np.int64)
        after, task = column["after"][rows], column["task"][rows]
        values[replica, after + 1, task] = column["error"][rows]
        examples[replica, task] = column["examples"][rows]
        errors = Errors(tuple(int(s) for s in seeds), values, examples)
        out.setdefault(method, {})[split] = errors
    for method, splits in out.items():
        if not method or "test" not in splits or len({e.seeds for e in splits.values()}) > 1:
            raise ValueError(f"{FILE} lacks test errors of a seed of method '{method}'")
    return out


def _columns_of(method: str, split: str, errors: Errors) -> dict[str, np.ndarray]:
    """Return the columns for one split, with a row for each evaluated value."""
    evaluated = ~np.isnan(errors.values).all(0)
    replica, a, k = np.nonzero(np.broadcast_to(evaluated, errors.values.shape))
    return {
        "method": np.full(len(replica), method, dtype=object),
        "seed": np.asarray(errors.seeds)[replica],
        "after": a - 1,
        "task": k,
        "split": np.full(len(replica), split, dtype=object),
        "error": errors.values[replica, a, k],
        "examples": errors.examples[replica, k],
    }
