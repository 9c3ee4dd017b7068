"""A stream made in Python, in a run and its folder."""

import numpy as np
import pytest

import dpmcl
from dpmcl.data.stream import Stream
from dpmcl.exceptions import DataError, FolderError


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
