"""The user's own data, from a raw file to the table: by command line, by spec and in Python."""

import json
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

import dpmcl
from dpmcl import cli
from dpmcl.data.stream import Stream
from dpmcl.exceptions import DataError, FolderError, SpecError

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
        found = capsys.readouterr()
        return status, found.out, found.err

    return run


@pytest.fixture
def wine(tmp_path):
    """The README's table, written by the README's own script."""
    (script,) = re.findall(r"```python\n(# wine\.py\n.*?)```", README.read_text("utf-8"), re.S)
    path = tmp_path / "wine.csv"
    exec(script.replace("wine.csv", str(path)), {})
    return path


def test_wine_is_learned_from_the_command_line(command, wine):
    status, out, err = command("run", "wine.csv", "--set", "stream.target=cultivar", *SMALL)
    assert status == 0, err
    assert out.split("\n")[2].split()[:3] == ["wine", "er", "2"]
    assert "folder: runs/wine" in out
    stored = json.loads(Path("runs/wine/stream.json").read_text())
    assert stored["classes"] == ["class_0", "class_1", "class_2"]
    result = dpmcl.load("runs/wine")
    assert result.rows()[0]["cme_mean"] < 0.3
    status, out, _ = command("table", "runs/wine", "--by-task")
    assert status == 0
    assert [line.split()[2:4] for line in out.strip().split("\n")[2:]] == [
        ["0:", "class_0"], ["1:", "class_1"], ["2:", "class_2"]
    ]  # fmt: skip


def test_the_readmes_stream_is_what_the_command_prints(command, wine):
    status, out, err = command("stream", "wine.csv", "--set", "stream.target=cultivar")
    assert status == 0, err
    shown = "\n".join(line.rstrip() for line in out.rstrip().split("\n"))
    assert shown in README.read_text("utf-8")
    assert Path("runs/streams/wine.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_of_a_table_is_extended_and_run_again_from_its_folder(command, wine):
    command("run", "wine.csv", "--set", "stream.target=cultivar", *SMALL)
    status, out, err = command("run", "runs/wine", "--replicas", "3")
    assert status == 0, err
    assert out.split("\n")[2].split()[:3] == ["wine", "er", "3"]


def test_a_folder_is_not_extended_with_other_data(command, wine):
    command("run", "wine.csv", "--set", "stream.target=cultivar", *SMALL)
    before = Path("runs/wine/errors.parquet").read_bytes()
    wine.write_text(wine.read_text().replace("14.23,", "14.24,", 1))
    status, _, err = command(
        "run", "wine.csv", "--set", "stream.target=cultivar", *SMALL, "--replicas", "3"
    )
    assert status == 2
    assert err.rstrip().split("\n")[-1].startswith("dpmcl: runs/wine holds results on other data")
    assert Path("runs/wine/errors.parquet").read_bytes() == before


def test_a_spec_takes_a_path(command, wine):
    Path("mine.toml").write_text(
        'replicas = 1\nmethods = ["er"]\n[stream]\npath = "wine.csv"\ntarget = "cultivar"\n'
        "classes_per_task = [2, 1]\n[training]\nupdates = 5\n"
    )
    status, out, err = command("run", "mine.toml")
    assert status == 0, err
    stored = json.loads(Path("runs/mine/stream.json").read_text())
    assert stored["tasks"] == ["class_0, class_1", "class_2"]
    status, out, err = command("stream", "mine.toml")
    assert status == 0, err
    assert "scenario: class-incremental, 2, 1 classes a task" in out


def test_a_stream_without_a_spec_runs_by_name(command, tmp_path):
    status, _, err = command("run", "arrays", *SMALL)
    assert (status, err.strip().count("\n")) == (2, 0)
    assert "stream 'arrays' needs a path" in err


def write_tar(path):
    with tarfile.open(path, "w") as archive:
        info = tarfile.TarInfo("../out.png")
        archive.addfile(info)


BAD = {
    "no such file": (lambda p: None, "my.csv", ["stream.target=kind"], "my.csv"),
    "no target": (
        lambda p: (p / "my.csv").write_text("a,kind\n1,x\n"), "my.csv", [], "target must name"
    ),
    "unknown target": (
        lambda p: (p / "my.csv").write_text("a,kind\n1,x\n"), "my.csv", ["stream.target=kin"],
        "kind",
    ),
    "hole": (
        lambda p: (p / "my.csv").write_text("a,kind\n1,x\n,x\n"), "my.csv", ["stream.target=kind"],
        "row 1",
    ),
    "few rows": (
        lambda p: (p / "my.csv").write_text("a,kind\n1,x\n2,x\n3,x\n4,y\n"), "my.csv",
        ["stream.target=kind"], "class 'y' of task 1",
    ),
    "no table": (
        lambda p: (p / "my.parquet").write_bytes(b"PAR1 nothing"), "my.parquet",
        ["stream.target=kind"], "my.parquet",
    ),
    "no npz": (lambda p: (p / "my.npz").write_bytes(b"PK nothing"), "my.npz", [], "my.npz"),
    "empty folder": (lambda p: (p / "photos").mkdir(), "photos", [], "there are none"),
    "no image": (
        lambda p: [(p / "photos" / "cat").mkdir(parents=True),
                   (p / "photos" / "cat" / "a.png").write_bytes(b"x")],
        "photos", [], "a.png",
    ),
    "another suffix": (
        lambda p: (p / "iris.data").write_text("5.1,3.5,setosa\n"), "iris.data", [],
        "known by their suffix, one of .csv",
    ),
    "an array alone": (
        lambda p: (p / "x.npy").write_bytes(b"\x93NUMPY"), "x.npy", [], "suffix, one of .csv",
    ),
    "archive with ..": (lambda p: write_tar(p / "my.tar"), "my.tar", [], "../out.png"),
    "no archive": (lambda p: (p / "my.zip").write_bytes(b"x" * 99), "my.zip", [], "my.zip"),
    "scenario": (
        lambda p: (p / "my.csv").write_text("a,kind\n1,x\n2,x\n3,x\n"), "my.csv",
        ["stream.target=kind", "stream.scenario=domain-incremental"], "set stream.tasks",
    ),
    "unknown setting": (
        lambda p: (p / "my.csv").write_text("a,kind\n1,x\n"), "my.csv",
        ["stream.target=kind", "stream.class_per_task=2"], "Did you mean 'classes_per_task'?",
    ),
}  # fmt: skip


@pytest.mark.parametrize("verb", ["run", "stream"])
@pytest.mark.parametrize("case", sorted(BAD))
def test_bad_data_are_one_line_and_status_2(command, tmp_path, case, verb):
    make, source, sets, says = BAD[case]
    make(tmp_path)
    arguments = [part for pair in sets for part in ("--set", pair)]
    status, out, err = command(verb, source, *arguments)
    assert status == 2
    assert out == ""
    line = err.rstrip().split("\n")[-1]
    assert line.startswith("dpmcl: ")
    assert says in line
    assert "Traceback" not in err
    assert not (tmp_path / "runs").exists()


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


def test_a_stream_made_in_python_can_be_cut_and_split_otherwise():
    stream = Stream.from_arrays(*clouds())
    few = {"training.updates": 2, "stream.split": [0.5, 0.25, 0.25]}
    result = dpmcl.run(stream, methods=["naive"], replicas=1, tasks=2, settings=few)
    assert result.stream.tasks == ("left", "right")
    assert result.errors["naive"].examples.tolist() == [[8, 8]]


def test_the_default_methods_run_on_data_without_a_spec():
    result = dpmcl.run(Stream.from_arrays(*clouds()), replicas=1, settings={"training.updates": 2})
    assert list(result.records) == ["naive", "er", "dpmcl", "joint"]


def test_settings_of_a_scenario_are_checked_by_name():
    with pytest.raises(SpecError, match="Did you mean 'classes_per_task'"):
        Stream.from_arrays(*clouds(), class_per_task=2)


def test_both_a_task_column_and_a_scenario_that_makes_tasks_are_refused():
    table = {"a": [1.0] * 9, "kind": list("xyz") * 3, "month": [1, 2, 3] * 3}
    with pytest.raises(SpecError, match="both say what the tasks are"):
        Stream.from_table(table, target="kind", task="month", scenario="class-incremental")


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
