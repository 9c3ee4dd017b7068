"""Paths as streams: told by their suffix or by what a folder holds, after every name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpmcl
from dpmcl.data.sources import is_data, stream_for
from dpmcl.exceptions import DataError, DpmclError, SpecError
from dpmcl.study.api import METHODS, Request
from dpmcl.training.spec import Spec, assignment, changed, normalised, read

SUFFIXES = {
    "table": ("csv", "tsv", "csv.gz", "tsv.gz", "parquet"),
    "arrays": ("npz",),
    "images": ("zip", "tar", "tgz", "tar.gz", "tar.bz2", "tar.xz"),
}
FILES = [(f"my.{end}", name) for name, ends in SUFFIXES.items() for end in ends]
STREAMS = ("table", "arrays", "images")
"""Streams that no preset is named after."""


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """An empty working folder, which is the home folder too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def complaint(make, *args) -> str:
    with pytest.raises(DpmclError) as caught:
        make(*args)
    line = str(caught.value)
    assert "\n" not in line
    return line


# which stream reads a path


@pytest.mark.parametrize(("file", "stream"), FILES)
def test_a_suffix_tells_the_stream(file, stream):
    for path in (file, f"a/b.c/{file}", f"/tmp/{file}", f"~/{file}", file.upper(), f"x y {file}"):
        assert is_data(path)
        assert stream_for(path) == stream


@pytest.mark.parametrize(
    "text",
    ["mnist", "digits", "my.toml", "csv", "npz", "my.csv.toml", "my.xz", "my.gz", "my.npy",
     "my.txt", "module:Name", "", "no/such/folder", "a" * 5000, "a\0b"],
)  # fmt: skip
def test_what_is_no_path_of_data(here, text):
    assert not is_data(text)


def test_a_folder_is_data(here):
    (here / "photos").mkdir()
    assert is_data("photos")
    assert is_data("photos/")
    assert is_data(str(here / "photos"))
    assert is_data(".")


def test_a_file_without_a_known_suffix_is_not(here):
    (here / "photos").write_text("")
    assert not is_data("photos")


def test_a_folder_in_the_home_folder_is_data(here):
    (here / "photos").mkdir()
    assert is_data("~/photos")
    assert normalised({"stream": "~/photos"})["stream"] == {"path": "~/photos", "name": "images"}


@pytest.mark.parametrize(
    ("content", "stream"),
    [
        ("x.npy", "arrays"),
        ("dataset_info.json", "huggingface"),
        ("dataset_dict.json", "huggingface"),
        ("cat/1.png", "images"),
        ("y.npy", "images"),
        ("x.npy/1.png", "images"),
    ],
)
def test_a_folder_is_told_by_what_it_holds(here, content, stream):
    (here / "my" / content).parent.mkdir(parents=True)
    (here / "my" / content).write_text("")
    for path in ("my", "my/", str(here / "my"), "~/my"):
        assert stream_for(path) == stream


def test_arrays_come_before_a_folders_suffix(here):
    (here / "my.zip").mkdir()
    assert stream_for("my.zip") == "images"
    (here / "my.zip" / "x.npy").write_text("")
    assert stream_for("my.zip") == "arrays"


def test_an_empty_folder_or_none_is_taken_for_images(here):
    (here / "empty").mkdir()
    assert stream_for("empty") == stream_for("missing") == "images"


@pytest.mark.parametrize(
    "path",
    ["a" * 300 + ".csv", "a\0b.csv", "~nobody-of-that-name/my.csv"],
    ids=["long", "nul", "nobody"],
)
def test_a_path_that_cannot_be_is_no_crash(here, path):
    """The stream that reads it says what is wrong; or an error of the package does, here."""
    try:
        assert normalised({"stream": path})["stream"]["name"] == "table"
        Request(path)
    except DpmclError as error:
        assert "\n" not in str(error)


# specs


@pytest.mark.parametrize(("file", "stream"), FILES)
def test_a_path_is_short_for_a_table(file, stream):
    assert normalised({"stream": file})["stream"] == {"path": file, "name": stream}


@pytest.mark.parametrize(("file", "stream"), FILES)
def test_a_path_needs_no_name(file, stream):
    table = read(f'[stream]\npath = "{file}"\ntarget = "kind"\n', "a test")
    assert normalised(table)["stream"] == {"path": file, "name": stream, "target": "kind"}


def test_a_name_beside_a_path_stays(here):
    table = {"stream": {"path": "my.csv", "name": "images"}}
    assert normalised(table)["stream"] == {"path": "my.csv", "name": "images"}


def test_writing_out_twice_changes_nothing():
    once = normalised({"stream": "my.csv", "methods": ["er"]})
    assert normalised(once) == once


def test_what_was_given_is_left_alone():
    table: dict[str, Any] = {"stream": {"path": "my.csv"}, "methods": ["er"]}
    normalised(table)
    assert table == {"stream": {"path": "my.csv"}, "methods": ["er"]}


@pytest.mark.parametrize("name", ["digits", "mnist", *STREAMS])
def test_a_streams_name_wins_over_a_folder_of_that_name(here, name):
    (here / name).mkdir()
    assert normalised({"stream": name})["stream"] == {"name": name}


def test_a_folder_of_another_name_is_read(here):
    (here / "fotos").mkdir()
    assert normalised({"stream": "fotos"})["stream"] == {"path": "fotos", "name": "images"}


@pytest.mark.parametrize("name", ["mlp", "my.csv", "folder"])
def test_a_network_is_never_a_path(here, name):
    (here / "folder").mkdir()
    assert normalised({"network": name})["network"] == {"name": name}


def test_a_spec_of_a_table_is_parsed():
    found = Spec.parse({"stream": {"path": "my.csv", "target": "kind"}, "methods": ["er"]})
    assert found.stream_name == "table"
    assert found.stream.path == "my.csv"
    assert found.to_table()["stream"]["name"] == "table"
    assert Spec.parse(found.to_table()).to_table() == found.to_table()


def test_a_table_needs_its_target():
    line = complaint(Spec.parse, {"stream": "my.csv", "methods": ["er"]})
    assert "stream 'table': target must name the column" in line


@pytest.mark.parametrize("table", [{}, {"target": "kind"}, {"path": 3}, {"path": ["my.csv"]}])
def test_a_stream_without_name_and_path_is_refused(table):
    line = complaint(Spec.parse, {"stream": table, "methods": ["er"]})
    assert "[stream] needs a name" in line


def test_a_path_may_be_set():
    base = {"stream": "digits", "methods": ["er"]}
    assert changed(base, assignment("stream=my.csv"))["stream"] == {
        "path": "my.csv",
        "name": "table",
    }
    table = changed(changed(base, assignment("stream=my.csv")), assignment("stream.target=kind"))
    assert Spec.parse(table).stream.target == "kind"


def test_a_path_of_a_stream_that_reads_none_is_refused():
    table = changed({"stream": "digits", "methods": ["er"]}, assignment("stream.path=my.csv"))
    assert "No setting 'path'" in complaint(Spec.parse, table)


# requests


def test_a_preset_brings_its_own_methods():
    assert "training" in Request("digits").table
    assert list(Request("digits").table["methods"]) == ["naive", "er", "dpmcl", "joint"]


def test_a_preset_wins_over_a_folder_of_that_name(here):
    (here / "digits").mkdir()
    assert Request("digits").table["stream"]["name"] == "digits"


@pytest.mark.parametrize("name", STREAMS)
def test_a_streams_name_gets_the_usual_methods(here, name):
    found = Request(name).table
    assert found["stream"] == {"name": name}
    assert found["methods"] == {method: {} for method in METHODS}
    assert set(found) == {"stream", "methods"}


@pytest.mark.parametrize("name", STREAMS)
def test_a_requested_stream_wins_over_a_folder_of_that_name(here, name):
    (here / name).mkdir()
    assert Request(name).table["stream"] == {"name": name}


@pytest.mark.parametrize("name", STREAMS)
def test_a_folder_named_as_a_stream_is_read_by_its_path(here, name):
    (here / name).mkdir()
    expected = {"path": str(here / name), "name": "images"}
    assert Request(f"./{name}").table["stream"] == expected
    assert Request(Path(name).absolute()).table["stream"] == expected


@pytest.mark.parametrize("make", [str, Path])
@pytest.mark.parametrize(("file", "stream"), FILES)
def test_a_path_gets_the_usual_methods_and_is_absolute(here, file, stream, make):
    found = Request(make(file)).table
    assert found["stream"] == {"path": str(here / file), "name": stream}
    assert found["methods"] == {method: {} for method in METHODS}


def test_a_path_in_the_home_folder(here, monkeypatch):
    (here / "home").mkdir()
    monkeypatch.setenv("HOME", str(here / "home"))
    assert Request("~/my.csv").table["stream"]["path"] == str(here / "home" / "my.csv")


@pytest.mark.parametrize("make", [str, Path])
def test_a_folder_of_data(here, make):
    (here / "photos").mkdir()
    assert Request(make("photos")).table["stream"] == {
        "path": str(here / "photos"), "name": "images"
    }  # fmt: skip


@pytest.mark.parametrize("make", [str, Path])
def test_a_run_folder_is_its_spec_and_not_data(here, make):
    (here / "run").mkdir()
    (here / "run" / "spec.toml").write_text('stream = "digits"\nmethods = ["er"]\n')
    found = Request(make("run")).table
    assert found["stream"] == {"name": "digits"}
    assert found["methods"] == {"er": {}}


def test_a_toml_file_may_name_data(here):
    (here / "my.toml").write_text('stream = "my.csv"\nmethods = ["er"]\n')
    assert Request("my.toml").table["stream"] == {"path": "my.csv", "name": "table"}


def test_settings_complete_a_path(here):
    request = Request("my.csv").set(["stream.target=kind", "training.lr=0.5"])
    found = request.choose(["er"]).tasks(2).spec()
    assert found.stream.target == "kind"
    assert found.stream.tasks == 2
    assert found.methods["er"].lr == 0.5
    assert list(found.methods) == ["er"]


# what is missing


def test_a_missing_table_says_so_and_nothing_is_written(here):
    out = here / "run"
    with pytest.raises(DataError) as caught:
        dpmcl.run("missing.csv", settings={"stream.target": "kind"}, out=out)
    assert "missing.csv" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert sorted(here.iterdir()) == []


@pytest.mark.parametrize("file", ["missing.npz", "missing.zip", "missing.parquet"])
def test_other_missing_files_are_named(here, file):
    settings = {"stream.target": "kind"} if file.endswith("parquet") else {}
    with pytest.raises(DataError, match=file):
        dpmcl.run(file, settings=settings)
    assert sorted(here.iterdir()) == []


@pytest.mark.parametrize("source", ["missing.toml", "no/such/folder", Path("no/such/folder")])
def test_a_missing_file_is_no_misspelt_name(here, source):
    line = complaint(Request, source)
    assert str(source) in line
    assert "is not there" in line


@pytest.mark.parametrize(("name", "meant"), [("digit", "digits"), ("tabel", "table")])
def test_a_misspelt_name_is_guessed(here, name, meant):
    line = complaint(Request, name)
    assert f"No preset, stream or spec file '{name}'." in line
    assert f"Did you mean '{meant}'?" in line


@pytest.mark.parametrize(
    "source",
    ["", "\0", "a" * 5000, "my.npy", "x/" * 3000],
    ids=["empty", "nul", "long", "npy", "long path"],
)
def test_odd_sources_are_refused(here, source):
    with pytest.raises(SpecError):
        Request(source)


# a file from end to end


def test_a_table_is_run_by_its_path(here):
    generator = np.random.default_rng(0)
    rows = ["width,height,kind"]
    for kind in ("ant", "bee"):
        points = generator.normal(5 if kind == "bee" else 0, 1, (10, 2))
        rows += [f"{a:.3f},{b:.3f},{kind}" for a, b in points]
    (here / "my.csv").write_text("\n".join(rows) + "\n")
    settings = {"stream.target": "kind", "training.updates": 3}
    result = dpmcl.run("my.csv", replicas=2, settings=settings, device="cpu", engine="looped")
    assert list(result.records) == list(METHODS)
    assert result.stream.tasks == result.stream.classes == ("ant", "bee")
    assert result.errors["joint"].values.shape == (2, 3, 2)
    assert result.spec["stream"]["path"] == str(here / "my.csv")
