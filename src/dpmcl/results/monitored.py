"""monitor.parquet: a row for each method, seed and reading, a column for each quantity."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpmcl.core.atomic import atomic
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
_EARLIER = {"drift": "increase"}  # columns of version 0.2 and before, by today's names


def save(folder: Path, records: Mapping[str, Record]) -> None:
    """Writes the readings of all records; no file where nothing was watched."""
    columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    for method, record in sorted(records.items()):
        found = record.readings
        if found is None:
            continue
        replica, place = np.nonzero(~np.isnan(found.values).all(2))
        columns["method"].append(np.full(len(replica), method, dtype=object))
        columns["seed"].append(np.asarray(found.seeds)[replica])
        where = np.asarray(found.places, dtype=np.int64).reshape(-1, 3)[place]
        for i, key in enumerate(_KEYS):
            columns[key].append(where[:, i])
        for i, name in enumerate(Reading._fields):
            columns[name].append(found.values[replica, place, i])
    if not columns["method"]:
        return
    arrays = [pa.array(np.concatenate(columns[c]), type=t) for c, t in _COLUMNS.items()]
    with atomic(folder / FILE) as temporary:
        pq.write_table(pa.table(arrays, names=list(_COLUMNS)), temporary)


def read(path: Path, tasks: int, seeds: Mapping[str, tuple[int, ...]]) -> dict[str, Readings]:
    """The readings by method. seeds: by method, those that have results; others are left out.

    Raises ValueError or KeyError for a file that is not of this form.
    """
    if not path.exists():
        return {}
    if not path.is_file():
        raise ValueError(f"{FILE} is no file")
    with pq.ParquetFile(path) as file:
        table = file.read()
    table = table.rename_columns([_EARLIER.get(name, name) for name in table.column_names])
    for name, kind in _COLUMNS.items():
        if table[name].type != kind or (name not in Reading._fields and table[name].null_count):
            raise ValueError(f"{name} in {FILE} is not {kind} in every row")
    column = {name: table[name].to_numpy() for name in _COLUMNS}
    if ((column["task"] < 0) | (column["task"] >= tasks)).any():
        raise ValueError(f"task in {FILE} is out of range")
    out = {}
    for method, known in seeds.items():
        mine = (column["method"] == method) & np.isin(column["seed"], known)
        if not mine.any():
            continue
        where = np.stack([column[key][mine] for key in _KEYS], 1)
        places, place = np.unique(where, axis=0, return_inverse=True)
        order = {seed: i for i, seed in enumerate(known)}
        replica = [order[int(seed)] for seed in column["seed"][mine]]
        values = np.full((len(known), len(places), len(Reading._fields)), np.nan)
        for i, name in enumerate(Reading._fields):
            values[replica, place.reshape(-1), i] = column[name][mine]
        listed = tuple((int(t), int(p), int(u)) for t, p, u in places)
        out[method] = Readings(tuple(known), listed, values)
    return out
