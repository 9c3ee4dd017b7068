import gzip
from datetime import date
from decimal import Decimal
from pathlib import Path

import pandas
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

import conftest
import dpmcl
from dpmcl import DataError, SpecError
from dpmcl.data.readers import tables
from dpmcl.data.readers.tables import TableSettings
from dpmcl.streams.table import Table

SMALL = {"size": [1.5, 2.5, 0.5], "sweet": [True, False, True], "kind": ["pear", "apple", "pear"]}


def written(path: Path, content: str | bytes) -> Path:
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def read_table(source, **settings):
    return tables.read_table(source, TableSettings(**settings))


def refused(source, *parts: str, target: str = "y", error=DataError, **options) -> None:
    conftest.refused(lambda: read_table(source, target=target, **options), *parts, error=error)


# ---- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("my.csv", "size,sweet,kind\n1.5,true,pear\n2.5,false,apple\n0.5,true,pear\n"),
        (
            "my.csv",
            "\ufeffsize,sweet,kind\r\n1.5,true,pear\r\n\r\n2.5,false,apple\r\n0.5,true,pear",
        ),
        ("my.csv", '"size";"sweet";"kind"\n1.5;true;pear\n2.5;false;"apple"\n0.5;true;pear\n'),
        ("my.tsv.gz", "size\tsweet\tkind\n1.5\ttrue\tpear\n2.5\tfalse\tapple\n0.5\ttrue\tpear"),
    ],
)
def test_text_files(tmp_path, name, content):
    data = read_table(written(tmp_path / name, content), target="kind")
    assert (data.name, data.kind, data.columns) == ("my", "classification", ("size", "sweet"))
    assert data.x.dtype == torch.float32
    assert data.x.tolist() == [[1.5, 1.0], [2.5, 0.0], [0.5, 1.0]]
    assert data.y.tolist() == [1, 0, 1]
    assert data.classes == ("apple", "pear")
    assert data.scaled.tolist() == [True, False]
    assert data.task is None


def test_parquet(tmp_path):
    folder = tmp_path / "year=2024"  # would be a column to pyarrow's read_table
    folder.mkdir()
    columns = {"a.b": [1, 2], "a": [3, 4], "text": [[1], [2]], "y": ["p", "q"]}
    parquet.write_table(pa.table(columns), folder / "my.parquet")
    data = read_table(str(folder / "my.parquet"), target="y", ignore=["text"])
    assert (data.columns, data.x.tolist()) == (("a.b", "a"), [[1, 3], [2, 4]])


def test_odd_headers(tmp_path):
    path = written(tmp_path / "my.csv", '"a,b";y\n1;2\n')
    assert read_table(path, target="y").columns == ("a,b",)
    written(path, ",a,y\n0,7,2\n1,8,3\n")
    assert read_table(path, target="y", ignore=[""]).x.tolist() == [[7], [8]]
    written(path, "a, b, kind\n1, 2, x\n")
    assert read_table(path, target=" kind").columns == ("a", " b")
    refused(path, "No target column 'kind'. Did you mean ' kind'?", "'a', ' b', ' kind'.",
        target="kind")  # fmt: skip
    refused(written(path, "a|y\n1|2\n"), "Columns of", "'a|y'.")


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("a,y\n1,2\n\n3,4\n5,6,7\n8\n", ["Expected 2 columns, got 3: 5,6,7"]),
        (b"a,y\n1,x\n2,caf\xe9\n", ["Row #3", "invalid UTF8", "text is UTF-8"]),
        ("a,y\n1,2\n".encode("utf-16"), ["must be UTF-8", "has NUL, as UTF-16"]),
        ("y,y\n1,2\n", ["different names", "'y' twice"]),
        ("a,y\n2024-01-01,1\n", ["'a'", "'2024-01-01' in row 0", "put the column in ignore"]),
        ('a,y\n1,"2\n3,4\n', ["'y'", "one line", "row 0", "quotes"]),
        ("a,y\n1,x\n,z\n,x\n", ["'a'", "row 1 lacks one", "2 in all", "put the column in ignore"]),
        ("a,y\n1,x\n2,\n", ["'y'", "row 1 lacks one", "1 in all", "name another target"]),
        ("a,y\n1,x\n1e39,z\n1e39,x\n", ["'a'", "row 1 has 1e+39 (2 in all)"]),
    ],
)
def test_refused_text(tmp_path, content, parts):
    refused(written(tmp_path / "my.csv", content), "my.csv", *parts)


def test_one_number_in_two_ways_is_no_two_labels(tmp_path):
    path = written(tmp_path / "my.csv", "a,y,p\n1,0,+2\n2,1.0,3\n3,1,2\n4,7,2\n")
    refused(path, "'y'", "in one way, got '1', '1.0';", kind="classification", ignore=["p"])
    refused(path, "'p'", "in one way, got '+2', '2';", target="y", task="p")


def test_what_is_ignored_may_be_anything(tmp_path):
    path = written(tmp_path / "my.csv", b"a,when,note,y\n1,2024-01-01,caf\xe9,2\n2,,,3\n")
    assert read_table(path, target="y", ignore=["when", "note"]).x.tolist() == [[1], [2]]


@pytest.mark.parametrize(
    "rows",
    ['1,x,"a\n2,z,b\n3,x,c"\n', '1,x,"a\n2,z,b\n3,x,"c\n', '1,x,"caf\xe9\n\n2,z,b\r\n\r\n3,x,c\n'],
)
def test_no_row_is_lost_in_an_ignored_cell(tmp_path, rows):
    path = written(tmp_path / "my.csv", f"a,y,note\n{rows}4,z,d\n".encode("latin-1"))
    refused(path, "'note'", "row 0", "close the quotes", ignore=["note"])
    path = written(tmp_path / "my.csv", 'a,y,note\n1,x,"several,\nlines"\n2,z,5" pipe\n')
    assert len(read_table(path, target="y", ignore=["note"]).x) == 2


def test_what_is_no_table(tmp_path):
    refused(written(tmp_path / "my.xlsx", "a,y\n"), ".csv, .tsv, .csv.gz, .tsv.gz or .parquet")
    refused(tmp_path / "none.csv", "file that exists", "none.csv")
    refused(written(tmp_path / "my.parquet", "a,y\n1,2\n"), "my.parquet cannot be read")
    (tmp_path / "no.csv.gz").write_bytes(b"a,y\n1,2\n")
    refused(tmp_path / "no.csv.gz", "no.csv.gz")
    refused([[1, 2]], "mapping of column names", "list")
    refused(pandas.Series([1, 2]), "mapping of column names", "Series")
    refused({"y": [1, 2]}, "none left")
    lines = "1,2\n" * 400_000  # more than one of the blocks that pyarrow reads at once
    refused(
        written(tmp_path / "my.csv", f"n,y\n{lines}1\n{lines}"),
        "Row #400002: Expected 2 columns, got 1",
    )


# ---- tables in memory ----------------------------------------------------------------------------


class ArrowsInterface:
    """A table of another library, as polars has them."""

    def __init__(self, table):
        self.columns, self.__arrow_c_stream__ = table.column_names, table.__arrow_c_stream__


def test_pandas_and_tables_of_other_libraries(tmp_path):
    hue = pandas.Categorical(["b", "a", "b"], categories=["b", "unused", "a"])
    frame = pandas.DataFrame({"hue": hue, 7: [1, 2, 3], "y": ["p", "q", "p"]}, index=[5, 6, 9])
    data = read_table(frame, target="y")
    assert data.columns == ("hue=a", "hue=b", "7")
    assert data.x.tolist() == [[0, 1, 1], [1, 0, 2], [0, 1, 3]]
    frame = frame.rename(columns=str).rename_axis("plot")
    frame.to_parquet(tmp_path / "my.parquet")
    table = pa.Table.from_pandas(frame)
    for source in (tmp_path / "my.parquet", table, ArrowsInterface(table)):
        assert torch.equal(read_table(source, target="y").x, data.x)
        assert read_table(source, target="y", task="plot").tasks == ("5", "6", "9")
    hues = pa.array(["b", "unused", "a"], pa.string_view())  # those of polars
    polars = pa.table({"hue": pa.DictionaryArray.from_arrays([0, 2, 0], hues), "7": [1, 2, 3]})
    polars = ArrowsInterface(polars.append_column("y", [["p", "q", "p"]]))
    assert torch.equal(read_table(polars, target="y").x, data.x)
    refused(frame.assign(gap=pandas.array([1, 2, None], "Int64")), "'gap'", "row 2")
    refused(frame.assign(mixed=[1, "x", 2]), "'mixed'", "one type")
    refused(frame[["7", "7", "y"]], "'7' twice")


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ([[1], [2]], ["list"]),
        ([date(2024, 1, 1), date(2024, 1, 2)], ["date32", "turn it into numbers"]),
        ([1, "q"], ["one type"]),
        ([None, None], ["all its cells are missing"]),
        ([1, 2, 3], ["expected length 3 but got length 2"]),
    ],
)
def test_refused_columns_in_memory(values, parts):
    refused({"a": values, "y": [0, 1]}, *parts)


# ---- columns -------------------------------------------------------------------------------------


def test_categories_are_one_hot_in_order():
    table = {"n": [1, 2, 3], "hue": ["red", "Blue", "red"], "m": [4, 5, 6], "y": [0, 1, 0]}
    data = read_table(table, target="y")
    assert data.columns == ("n", "hue=Blue", "hue=red", "m")
    assert data.x.tolist() == [[1, 0, 1, 4], [2, 1, 0, 5], [3, 0, 1, 6]]
    assert data.scaled.tolist() == [True, False, False, True]
    assert read_table(table, target="y", scale=False).scaled is None
    numbers = {"a": pa.array([10, 9, 10]).dictionary_encode(), "y": ["p", "q", "p"]}
    data = read_table(numbers, target="y")
    assert (data.columns, data.x.tolist()) == (("a=9", "a=10"), [[0, 1], [1, 0], [0, 1]])
    flags = {"b": [True, False], "y": [1, 2]}
    assert read_table(flags, target="y").scaled is None
    assert read_table(flags, target="y", kind="regression").scaled.tolist() == [False]


def test_a_hundred_categories_at_most_and_no_identifiers():
    names = [f"n{i:03}" for i in range(101)]
    assert read_table({"a": names[:100] * 2, "y": [0, 1] * 100}, target="y").x.sum() == 200
    refused({"a": names, "y": [0] * 101}, "'a'", "at most 100", "has 101", "'n000'", "ignore")
    refused({"a": names[:30], "y": [0] * 30}, "'a'", "30 in 30 rows", "identifier", "ignore")


def test_numbers_with_some_text_among_them_are_no_categories():
    table = {"a": ["?" if i == 7 else str(i) for i in range(40)], "y": [i % 2 for i in range(40)]}
    for options in ({}, {"target": "a"}, {"target": "a", "kind": "regression"}):
        refused(table, "'a'", "'?' in row 7", **options)
    assert len(read_table(table, target="a", kind="classification").classes) == 40


@pytest.mark.parametrize(
    "cells",
    [
        ["5%", "10%"], ["12.5 %"], ["$5.50", "$7"], ["5 €"], ["(5)", "7"], ["-$5", "$3"], ["#5"],
        ["5 kg", "500 g"], ["5kg", "10kg", "20kg"], ["3 doors", "5 doors"], ["5k", "10k", "21k"],
        ["1,5", "2,5"], ["1 000", "950"], ["1'000", "2'000"], ["1_000", "7"], ["1,234.50"],
        ["1.234,5"], ["31/01/2024"], ["31.01.2024"], ["2024-01-31"], ["2024-01-31T10:00:00Z"],
        ["2024-W05", "2024-W06"], ["2024-01"], ["31 Jan 2024", "28 Feb 2024"], ["Jan 5, 2024"],
        ["12:30"], ["1:30 PM"], ["1/2", "3/4"], ["0x1F"], ["9" * 25], ["\u0663", "\u0664"],
        ["1h 30m", "2h 5m"], ["340k", "950k", "1M", "7M", "19M", "20M"], ["5", "7\0"],
        ["1st", "2nd"], ["2WD", "4WD"], ["Jan 5, 2024", "May 7, 2024"], ["EUR 5", "EUR 7"],
    ],
    ids=lambda cells: ascii(cells[0]),
)  # fmt: skip
def test_numbers_and_dates_in_another_dress_are_no_categories(cells):
    columns = {"v": (cells * 30)[:30], "b": list(range(30)), "y": list("xyz" * 10)}
    refused(columns, "'v'", " in row ")
    if "\0" not in "".join(cells):
        lettered = ["v" + cell for cell in columns["v"]]
        for v in (lettered, pa.array(columns["v"]).dictionary_encode()):
            shape = read_table({**columns, "v": v}, target="y").x.shape
            assert shape == (30, len(set(columns["v"])) + 1)


@pytest.mark.parametrize(
    "cells",
    [
        ["A1", "B2"], ["3-door", "5-door"], ["10-20", "20-30"], ["<5", "5-10", ">10"], ["yes"],
        ["size 42", "size 44"], ["S", "M", "2XL"], ["0", "1", "2", "3+"], ["Q1", "Q2"],
        ["low", "5"], ["007", "7", "0007"],
    ],
    ids=lambda cells: cells[0],
)  # fmt: skip
def test_honest_categories_are_read(cells):
    columns = {"v": cells * 10, "y": [0, 1] * (5 * len(cells))}
    assert read_table(columns, target="y").columns == tuple(f"v={c}" for c in sorted(cells))


def test_notes_say_what_each_column_became():
    columns = {
        **{f"p{i}": [0.5, 1, 2] for i in range(120)}, "hue": ["red", "blue", "red"],
        "shape": ["round", "square", "round"], "ripe": [True, False, True], "id": [7, 8, 9],
        "when": ["2024", "2025", "2024"], "y": ["pear", "apple", "pear"],
    }  # fmt: skip
    stream = dpmcl.Stream.from_table(columns, target="y", task="when", ignore=["id"])
    assert stream.notes == (
        f"numbers, scaled: {', '.join(f'p{i}' for i in range(100))} and 20 more",
        "2 categories: hue, shape",
        "true/false: ripe",
        "target: y, 2 classes named by its values",
        "tasks: when, 2 named by its values",
        "ignored: id",
    )
    notes = read_table({"a": [1, 2], "b": [3, 4], "y": [0.5, 1]}, target="y", scale=False).notes
    assert notes == ("numbers: a, b", "target: y, a number")
    frame = pandas.DataFrame(
        {"a": [1, 2], "y": ["p", "q"]}, index=pandas.Index([5, 6], name="plot")
    )
    assert "ignored: plot" in read_table(pa.Table.from_pandas(frame), target="y").notes
    assert "ignored: index plot" in read_table(frame, target="y").notes
    refused(frame.set_index("a"), "frame.reset_index()")


# ---- targets and tasks ---------------------------------------------------------------------------


def test_a_kind_that_is_not_clear_must_be_said():
    data = read_table({"a": [1, 2], "y": [3.0, 1.0]}, target="y", kind="classification")
    assert data.classes == ("1", "3")
    for values, kind in (([Decimal("3"), Decimal("0.5")], None), ([1, 2], "regression")):
        data = read_table({"a": [1, 2], "y": values}, target="y", kind=kind)
        assert (data.kind, data.classes, data.y.dtype) == ("regression", (), torch.float32)
        assert data.y.tolist() == [[float(v)] for v in values]
    refused({"a": [1, 2], "y": [3.0, 1.5]}, "'y'", "1.5 at row 1", kind="classification")
    refused({"a": [1], "y": ["p"]}, "'y'", "numbers for regression", "'p'", kind="regression")
    table = {"a": list(range(101)), "y": list(range(101))}
    refused(table, "'y'", "101 different", "kind = 'regression'")
    assert len(read_table(table, target="y", kind="classification").classes) == 101


# ---- names of columns ----------------------------------------------------------------------------


def test_columns_that_do_not_exist_or_are_two_things():
    refused(SMALL, "No target column 'knd'", "'kind'?", "'size', 'sweet', 'kind'", target="knd")
    refused(SMALL, "No ignored column 'sizes'", "'size'?", target="kind", ignore=["sizes"])
    refused({f"column {i}": [1] for i in range(200)}, "'column 29' and 170 more")
    for options, parts in (
        ({"ignore": [None]}, ["ignore[0] must be text in quotes"]),
        ({"task": "kind"}, ["different columns", "'kind' twice"]),
        ({"ignore": ["kind"]}, ["different columns", "'kind' twice"]),
        ({"ignore": "size"}, ["ignore must be a list", "'size'"]),
        ({"kind": "regresion"}, ["kind must be", "'regresion'"]),
    ):
        refused(SMALL, *parts, error=SpecError, **{"target": "kind", **options})


# ---- the stream ----------------------------------------------------------------------------------


def test_tasks_of_a_column_and_of_a_scenario_exclude_each_other():
    table = {"path": "my.csv", "target": "y", "task": "t"}
    for scenario in (None, "given", "task-incremental"):
        Table(scenario=scenario, **table)
    with pytest.raises(SpecError, match=r"^\[stream\] .*both say what the tasks are"):
        Table.from_table({**table, "scenario": "class-incremental"}, "[stream]")
