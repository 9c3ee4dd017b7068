"""The same data make the same stream, whatever they come in."""

import csv

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from dpmcl import Stream
from dpmcl.streams.arrays import Arrays

pandas = pytest.importorskip("pandas")
datasets = pytest.importorskip("datasets")

ROWS = 12
MANY = {"max_examples": 30, "deadline": None, "derandomize": True}
HUES = ["red", "Blue", "007", "7", "é"]
CODES = st.sampled_from(
    ["007", "7", "0007", "01001", "1.0", "1", "1e3", "1000", "+1", "10", "9", "-0", "-3", " 1",
     "9" * 25, "2024-01-31", "true", "True", "TRUE", "A1", "x", "é", "1,5", "50%"]
)  # fmt: skip
LABELS = st.one_of(
    st.lists(CODES, min_size=1, max_size=4, unique=True),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4, unique=True),
    st.lists(st.integers(0, 12), min_size=1, max_size=4, unique=True),
    st.just([True, False]),
)
NUMBERS = st.one_of(
    st.floats(-1e12, 1e12, allow_subnormal=False),
    st.floats(1.7e9, 1.7e9 + 100),
    st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False),
)
INPUTS = st.fixed_dictionaries(
    {
        "size": st.lists(NUMBERS, min_size=ROWS, max_size=ROWS),
        "count": st.lists(st.integers(-(2**40), 2**40), min_size=ROWS, max_size=ROWS),
        "ripe": st.lists(st.booleans(), min_size=ROWS, max_size=ROWS),
        "hue": st.lists(st.sampled_from(HUES), min_size=ROWS, max_size=ROWS),
    }
)


def tables(folder, columns):
    """The columns in every form in which a table may come."""
    frame = pandas.DataFrame(columns)
    yield "arrays", {name: np.array(values) for name, values in columns.items()}
    yield "pandas", frame
    nullable = {"i": "Int64", "f": "Float64", "b": "boolean"}
    yield (
        "its own types",
        frame.astype({c: nullable.get(frame[c].dtype.kind, "string") for c in columns}),
    )
    yield "objects", frame.astype(object)
    yield "pyarrow", pa.table(columns)
    parquet.write_table(pa.table(columns), folder / "my.parquet")
    yield "Parquet", folder / "my.parquet"
    frame.to_csv(folder / "my.csv", index=False)
    yield "CSV by pandas", folder / "my.csv"
    with (folder / "my.tsv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, delimiter="\t", quoting=csv.QUOTE_ALL)
        rows.writerows([list(columns), *zip(*columns.values(), strict=True)])
    yield "TSV, all quoted", folder / "my.tsv"


def seen(stream):
    """All that a stream of a table delivers."""
    names = (stream.kind, stream.tasks, stream.classes, stream.columns, stream.notes)
    numbers = (stream.x.dtype, stream.x.tolist(), stream.y.tolist(), stream.row.tolist())
    return names, numbers, stream.digest()


@given(INPUTS, LABELS, LABELS, st.data())
@settings(**MANY)
def test_a_table_is_one_stream_from_every_source(tmp_path_factory, inputs, labels, tasks, data):
    folder = tmp_path_factory.mktemp("same")
    drawn = st.lists(st.sampled_from(labels), min_size=ROWS, max_size=ROWS)
    columns = {
        **inputs,
        "y": data.draw(drawn),
        "part": [tasks[i % len(tasks)] for i in range(ROWS)],
    }
    options = {"target": "y", "task": "part", "kind": "classification", "name": "my"}
    first = seen(Stream.from_table(columns, **options))
    assert len(first[0][2]) == len(set(columns["y"]))
    assert len(first[0][1]) == len(tasks)
    for source, table in tables(folder, columns):
        assert seen(Stream.from_table(table, **options)) == first, source
    saved = datasets.Dataset.from_dict(columns)
    stream = Stream.from_dataset(saved, y="y", task="part", kind="classification", name="my")
    assert seen(stream) == first


@given(st.lists(st.lists(NUMBERS, min_size=2, max_size=2), min_size=ROWS, max_size=ROWS), LABELS)
@settings(**MANY)
def test_so_are_arrays(tmp_path_factory, x, labels):
    y = [labels[i % len(labels)] for i in range(ROWS)]
    folder = tmp_path_factory.mktemp("same")
    np.savez(folder / "my.npz", x=np.array(x), y=np.array(y))
    np.save(folder / "x.npy", np.array(x))
    np.save(folder / "y.npy", np.array(y))

    first = Stream.from_arrays(x, y)
    items = [(torch.tensor(row, dtype=torch.float64), k) for row, k in zip(x, y, strict=True)]
    others = {
        "NumPy": Stream.from_arrays(np.array(x), np.array(y)),
        "objects": Stream.from_arrays(np.array(x), np.array(y, object)),
        "tensor": Stream.from_arrays(torch.tensor(x, dtype=torch.float64), y),
        "pandas": Stream.from_arrays(pandas.DataFrame(x), pandas.Series(y)),
        "npz": Arrays(path=str(folder / "my.npz")).build([0]),
        "npy": Arrays(path=str(folder)).build([0]),
        "items": Stream.from_dataset(items),
        "Hugging Face": Stream.from_dataset(
            datasets.Dataset.from_dict({"x": x, "label": y}), x="x"
        ),
    }
    for source, stream in others.items():
        assert stream.classes == first.classes, source
        assert stream.digest() == first.digest(), source
