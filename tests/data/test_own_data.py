"""The user's own data, by command line and in Python."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import dpmcl
from dpmcl import cli
from dpmcl.data.stream import Stream
from dpmcl.exceptions import DataError, FolderError

TARGET = ["--set", "stream.target=kind"]
BAD = [  # a file, its content, settings, and what is said
    ("missing.csv", None, TARGET, "missing.csv"),
    ("my.csv", "a,kind\n1,x\n", [], "needs the setting 'target'"),
    ("my.csv", "a,kind\n1,x\n2,x\n3,x\n4,y\n", TARGET, "class 'y' of task 1"),
    ("photos/", None, [], "there are none"),
    ("my.csv", "a\n1\n", [*TARGET, "--set", "stream.class_per_task=2"], "'classes_per_task'?"),
]  # fmt: skip


@pytest.mark.parametrize("verb", ["run", "stream"])
@pytest.mark.parametrize(("file", "content", "sets", "says"), BAD)
def test_bad_data_are_one_line_and_status_2(
    tmp_path, monkeypatch, capsys, verb, file, content, sets, says
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    if content is not None:
        (tmp_path / file).write_text(content)
    elif file.endswith("/"):
        (tmp_path / file).mkdir()
    monkeypatch.setattr("sys.argv", ["dpmcl", verb, file, *sets])
    monkeypatch.setattr("sys.path", [*sys.path])
    with pytest.raises(SystemExit) as left:
        cli.main()
    out, err = capsys.readouterr()
    assert (left.value.code, out) == (2, "")
    assert "Traceback" not in err
    assert err.rstrip().split("\n")[-1].startswith("dpmcl: ")
    assert says in err
    assert not Path("runs").exists()


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
