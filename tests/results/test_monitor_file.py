"""Readings in a run folder: they come back, from files of version 0.2 too."""

from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq

from dpmcl.results import monitor_file
from dpmcl.theory.readings import Readings
from dpmcl.theory.stability import Reading


def test_readings_come_back_and_so_does_the_drift_of_version_0_2(tmp_path):
    values = np.random.default_rng(0).random((2, 3, len(Reading._fields)))
    values[1, 2] = np.nan  # frozen before this reading
    readings = Readings((4, 7), ((0, 0, 0), (0, 0, 9), (1, 0, 0)), values)
    monitor_file.save(tmp_path, {"er": SimpleNamespace(readings=readings)})
    path = tmp_path / monitor_file.FILE
    table = pq.read_table(path)
    for name in ("increase", "drift"):
        columns = [name if column == "increase" else column for column in table.column_names]
        pq.write_table(table.rename_columns(columns), path)
        read = monitor_file.read(path, 2, {"er": (4, 7)})["er"]
        assert (read.seeds, read.positions) == (readings.seeds, readings.positions)
        np.testing.assert_array_equal(read.values, values)
