"""Paths as streams: told by their suffix or by what a folder holds, after every name."""

import re
from functools import partial
from pathlib import Path

import pytest

from conftest import refused
from dpmcl import plugins
from dpmcl.data.labelled import Labelled, from_arrays
from dpmcl.data.sources import is_data, stream_for, suffixes
from dpmcl.exceptions import SpecError
from dpmcl.streams._settings import LabelledSettings
from dpmcl.study.api import METHODS, Request
from dpmcl.training.spec import Spec, normalised, parse_assignment, parse_toml, with_changes

SUFFIXES = suffixes()
FILES = [(f"my{end}", name) for name, ends in SUFFIXES.items() for end in ends]


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """An empty working folder, which is the home folder too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


# which stream reads a path


def test_the_documentation_lists_all_suffixes_and_no_others():
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text("utf-8")
    listed = {
        row[1]: set(re.findall(r"`(\.[a-z.0-9]+)`", row[0]))
        for row in re.findall(r"^\| ([^|]+) \| `(\w+)` \|", page, re.MULTILINE)
        if row[1] in SUFFIXES
    }
    assert listed == {name: set(ends) for name, ends in SUFFIXES.items()}


@pytest.mark.parametrize(("file", "stream"), FILES)
def test_a_suffix_tells_the_stream(here, file, stream):
    for path in (file, f"a/b.c/{file}", f"~/{file}", file.upper(), f"x y {file}"):
        assert is_data(path)
        assert stream_for(path) == stream
    table = Request(file).table
    assert table["stream"] == {"path": str(here / file), "name": stream}
    assert table["methods"] == {method: {} for method in METHODS}


class Lines(LabelledSettings):
    """A stream from outside: one letter a line, and the number that it has."""

    suffixes = (".letters",)
    inside = ("letters.txt",)
    path: str = ""

    def read(self) -> Labelled:
        return from_arrays([[float(ord(c))] for c in Path(self.path).read_text()], ["a"] * 3)


def test_a_reader_from_outside_is_one_class(here, monkeypatch):
    names, find = plugins.names, plugins.find
    broken = {"lines": lambda: Lines, "broken": lambda: 1 / 0}
    monkeypatch.setattr(plugins, "names", lambda kind: [*broken, *names(kind)])
    monkeypatch.setattr(
        plugins, "find", lambda kind, name: broken[name]() if name in broken else find(kind, name)
    )
    assert is_data("my.letters")
    assert stream_for("my.letters") == "lines"
    assert stream_for("my.csv") == "table"
    (here / "letters.txt").write_text("abc")
    assert stream_for(str(here)) == "lines"


@pytest.mark.parametrize(
    ("content", "stream"),
    [
        ("x.npy", "arrays"),
        ("dataset_info.json", "huggingface"),
        ("cat/1.png", "images"),
        ("x.npy/1.png", "images"),
    ],
)
def test_a_folder_is_told_by_what_it_holds(here, content, stream):
    for folder in ("my", "my.zip"):
        (here / folder / content).parent.mkdir(parents=True)
        (here / folder / content).write_text("")
        for path in (folder, f"{folder}/", str(here / folder), f"~/{folder}"):
            assert is_data(path)
            assert stream_for(path) == stream


# names and specs


@pytest.mark.parametrize("name", ["digits", "table", "arrays", "images"])
def test_a_streams_name_wins_over_a_folder_of_that_name(here, name):
    (here / name).mkdir()
    assert normalised({"stream": name})["stream"] == {"name": name}
    assert normalised({"network": name})["network"] == {"name": name}  # which is never a path
    assert Request(name).table["stream"]["name"] == name
    assert Request(f"./{name}").table["stream"] == {"path": str(here / name), "name": "images"}


def test_a_spec_with_a_path():
    text = '[stream]\npath = "my.csv"\ntarget = "kind"\n'
    table = {**parse_toml(text, "a test"), "methods": ["er"]}
    once = normalised(table)
    assert once["stream"] == {"path": "my.csv", "name": "table", "target": "kind"}
    assert normalised(once) == once
    spec = Spec.parse(table)
    assert (spec.stream_name, spec.stream.path) == ("table", "my.csv")
    assert Spec.parse(spec.to_table()).to_table() == spec.to_table()
    base = with_changes({"stream": "digits", "methods": ["er"]}, parse_assignment("stream=my.csv"))
    assert base["stream"] == {"path": "my.csv", "name": "table"}
    assert (
        Spec.parse(with_changes(base, parse_assignment("stream.target=kind"))).stream.target
        == "kind"
    )
    for stream, message in (
        ({"path": 3}, "stream needs a name"), ("my.csv", "needs the setting 'target'")
    ):  # fmt: skip
        parse = partial(Spec.parse, {"stream": stream, "methods": ["er"]})
        refused(parse, message, error=SpecError)


# what is refused


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("missing.toml", "missing.toml is not there"),
        ("digit", "No preset, stream or spec file 'digit'. Did you mean 'digits'?"),
    ],
)
def test_sources_that_are_refused(here, source, message):
    refused(lambda: Request(source), message, error=SpecError)
