"""The user's own data, from a raw file to the table: by command line, by spec and in Python."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import dpmcl
from dpmcl import cli
from dpmcl.data.stream import Stream
from dpmcl.exceptions import DataError, FolderError

README = Path(__file__).parents[2] / "README.md"
SMALL = ["--replicas", "2", "--method", "er", "--set", "training.updates=60"]


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs the command line in a folder of its own; returns status, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["dpmcl", *map(str, arguments)])
        monkeypatch.setattr("sys.path", list(__import__("sys").path))
        try:
            cli.main()
            status = 0
        except SystemExit as left:
            status = left.code or 0
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def wine(tmp_path):
    """The README's table, written by the README's own script."""
    (script,) = re.findall(r"```python\n(# wine\.py\n.*?)```", README.read_text("utf-8"), re.S)
    path = tmp_path / "wine.csv"
    exec(script.replace("wine.csv", str(path)), {})
    return path


def test_a_run_of_a_table_is_extended_from_its_folder_but_not_with_other_data(command, wine):
    command("run", "wine.csv", "--set", "stream.target=cultivar", *SMALL)
    status, out, err = command("run", "runs/wine", "--replicas", "3")
    assert status == 0, err
    assert out.split("\n")[2].split()[:3] == ["wine", "er", "3"]
    before = Path("runs/wine/errors.parquet").read_bytes()
    wine.write_text(wine.read_text().replace("14.23,", "14.24,", 1))
    status, _, err = command("run", "runs/wine", "--replicas", "4")
    assert status == 2
    assert err.rstrip().split("\n")[-1].startswith("dpmcl: runs/wine holds results on other data")
    assert Path("runs/wine/errors.parquet").read_bytes() == before


TARGET = ["stream.target=kind"]
BAD = [  # a file, its content, settings, and what is said
    ("missing.csv", None, TARGET, "missing.csv"),
    ("my.csv", "a,kind\n1,x\n", [], "target must name"),
    ("my.csv", "a,kind\n1,x\n,x\n", TARGET, "row 1"),
    ("my.csv", "a,kind\n1,x\n2,x\n3,x\n4,y\n", TARGET, "class 'y' of task 1"),
    ("photos/", None, [], "there are none"),
    ("my.csv", "a,kind\n1,x\n", [*TARGET, "stream.class_per_task=2"], "'classes_per_task'?"),
]  # fmt: skip


def one_line(command, verb, source, sets=()) -> str:
    """The one line with which the command line refuses a source."""
    status, out, err = command(verb, source, *[part for pair in sets for part in ("--set", pair)])
    assert (status, out) == (2, "")
    assert "Traceback" not in err
    assert not Path("runs").exists()
    line = err.rstrip().split("\n")[-1]
    assert line.startswith("dpmcl: ")
    return line


@pytest.mark.parametrize("verb", ["run", "stream"])
@pytest.mark.parametrize(("file", "content", "sets", "says"), BAD)
def test_bad_data_are_one_line_and_status_2(command, tmp_path, verb, file, content, sets, says):
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    if content is not None:
        (tmp_path / file).write_text(content)
    elif file.endswith("/"):
        (tmp_path / file).mkdir()
    assert says in one_line(command, verb, file.split("/")[0], sets)


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

