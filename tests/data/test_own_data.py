"""The user's own data, by command line and in Python."""

import numpy as np
import pytest
import torch

import dpmcl
from dpmcl.data.stream import Stream
from dpmcl.exceptions import DataError, FolderError

# ---- in Python -----------------------------------------------------------------------------------


def clouds(seed=0):
    rng = np.random.default_rng(seed)
    y = np.repeat(["left", "right", "top"], 30)
    centre = {"left": (-2, 0), "right": (2, 0), "top": (0, 3)}
    return rng.normal(0, 0.3, (90, 2)) + np.array([centre[k] for k in y]), y


def test_a_stream_made_in_python_runs(tmp_path):
    x, y = clouds()
    stream = Stream.from_arrays(x, y, name="clouds")
    few = {"training.updates": 60}
    result = dpmcl.run(stream, methods=["er"], replicas=2, settings=few, out=tmp_path)
    assert result.stream.classes == ("left", "right", "top")
    assert result.rows()[0]["stream"] == "clouds"
    assert result.rows()[0]["cme_mean"] < 0.2
    more = dpmcl.run(stream, methods=["er"], replicas=3, settings=few, out=tmp_path)
    assert np.array_equal(more.errors["er"].values[:2], result.errors["er"].values, equal_nan=True)
    with pytest.raises(FolderError, match=r"stream\.digest"):
        other = Stream.from_arrays(*clouds(1), name="clouds")
        dpmcl.run(other, methods=["er"], replicas=3, settings=few, out=tmp_path)
    with pytest.raises(DataError, match="was made in Python"):
        dpmcl.run(tmp_path, replicas=4)


def test_task_incremental_errors_are_within_the_task():
    """With outputs that always favour class 3, task 0's answer is still looked for in {0, 1}."""
    x = torch.rand(80, 3)
    y = torch.arange(80) % 4
    runs = [
        dpmcl.run(
            Stream.from_arrays(x, y, scenario=scenario, classes_per_task=2),
            methods=["naive"], replicas=2, settings={"training.updates": 80},
        )
        for scenario in ("class-incremental", "task-incremental")
    ]  # fmt: skip
    open_, within = (run.errors["naive"].values[:, -1, 0] for run in runs)
    assert (open_ == 1).all()  # forgotten: every answer is one of the second task's classes
    assert (within < 1).all()
