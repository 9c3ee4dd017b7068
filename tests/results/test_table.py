"""The table: its numbers by hand, and its formats."""

import copy
import csv
import io
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from conftest import random_record
from dpmcl.core.errors import Errors
from dpmcl.core.gradients import Work
from dpmcl.exceptions import SpecError
from dpmcl.results.record import Divergence, Record
from dpmcl.results.store import StreamInfo
from dpmcl.results.summary import cost_rows, rows, rows_by_task
from dpmcl.results.table import Layout, render

KEYS = [
    "stream", "method", "replicas", "cme_mean", "cme_se", "cme_micro_mean", "cme_micro_se",
    "nte_mean", "nte_se", "nte_path_mean", "accuracy_mean", "forgetting_mean",
    "gradient_evaluations", "rows_backpropagated", "diverged", "diverged_seeds",
]  # fmt: skip
STREAM = StreamInfo("toy", "classification", ("a", "b", "c"), ("a", "b", "c"))
REGRESSION = StreamInfo("sine", "regression", ("a", "b", "c"), ())
WORK = Work(6_000, 192_000)


def record(entropy: int = 0, replicas: int = 3, examples=(5, 5, 5)) -> Record:
    errors = random_record(entropy, replicas=replicas).test
    errors = replace(errors, examples=np.tile(examples, (replicas, 1)))
    return Record({"test": errors}, dict.fromkeys(errors.seeds, WORK))


RECORDS = {"er": record(1), "my_method": record(2)}
UNEQUAL = {"er": record(3, replicas=2, examples=(2, 3, 5))}


def one_task(*values: float) -> dict[str, Record]:
    tensor = np.array([[[0.5], [value]] for value in values])
    return {"er": Record({"test": Errors(tuple(range(len(values))), tensor, np.ones((1, 1)))})}


def test_numbers_by_hand():
    (row, other_row) = rows(RECORDS, STREAM, ("backward_transfer",))
    assert list(row) == [*KEYS, "backward_transfer_mean", "backward_transfer_se", "lacking"]
    e = RECORDS["er"].test.values
    last = e[:, 3]
    fell = np.stack([last[:, 0] - e[:, 1:3, 0].min(1), last[:, 1] - e[:, 2, 1]])
    transfer = (e[:, 1, 0] - last[:, 0] + e[:, 2, 1] - last[:, 1]) / 2
    by_hand = {
        "cme": last.mean(1),
        "cme_micro": last.mean(1),
        "nte": last[:, 2],
        "nte_path": (e[:, 1, 0] + e[:, 2, 1] + last[:, 2]) / 3,
        "accuracy": 1 - last.mean(1),
        "forgetting": fell.mean(0),
        "backward_transfer": transfer,
    }
    for name, values in by_hand.items():
        assert row[f"{name}_mean"] == pytest.approx(np.mean(values), abs=1e-15)
        if f"{name}_se" in row:
            error = np.sqrt(((values - values.mean()) ** 2).sum() / 2) / np.sqrt(3)
            assert row[f"{name}_se"] == pytest.approx(error, abs=1e-15)
    assert [row[key] for key in KEYS[:3]] == ["toy", "er", 3]
    assert (row["gradient_evaluations"], row["rows_backpropagated"]) == (6_000, 192_000)
    assert other_row["cme_mean"] != row["cme_mean"]


def test_what_has_no_number_is_none_and_a_dash():
    (row,) = rows({"er": record(replicas=1)}, REGRESSION)
    assert row["cme_se"] is row["nte_se"] is row["accuracy_mean"] is None
    assert row["cme_mean"] is not None
    assert json.loads(render([row], "json"))[0]["cme_se"] is None
    (cells,) = csv.DictReader(io.StringIO(render([row], "csv")))
    assert cells["cme_se"] == ""
    (row,) = rows(one_task(0.25, 0.75), STREAM)
    assert row["forgetting_mean"] is row["gradient_evaluations"] is None
    assert row["cme_mean"] == 0.5
    assert "| - |" in render([row], "markdown")


@pytest.mark.parametrize("stream", [STREAM, REGRESSION])
def test_macro_and_micro_means_are_both_shown_where_they_differ(stream):
    (row,) = rows(UNEQUAL, stream)
    last = UNEQUAL["er"].test.values[:, 3]
    macro, micro = last.mean(1), last @ [0.2, 0.3, 0.5]
    assert row["cme_mean"] == pytest.approx(macro.mean(), abs=1e-15)
    assert row["cme_micro_mean"] == pytest.approx(micro.mean(), abs=1e-15)
    assert row["cme_micro_se"] == pytest.approx(abs(micro[0] - micro[1]) / 2, abs=1e-15)
    for style in ("text", "markdown", "latex"):
        assert re.search(r"CME\W+CME \(micro\)\W+NTE", render([row], style))
        assert f"{row['cme_micro_mean']:.3f} ({row['cme_micro_se']:.3f})" in render([row], style)
        chosen = render([row], style, Layout(columns=["CME", "NTE"], renamed={"CME": "error"}))
        assert re.search(r"error\W+NTE", chosen)
        assert f"{row['cme_mean']:.3f} ({row['cme_se']:.3f})" in chosen
        equal_rows = rows(RECORDS, STREAM)
        assert "micro" not in render(equal_rows, style)
        assert "method" in render([], style)
        assert "CME (micro)" in render([*equal_rows, row], style)
    small = copy.deepcopy(UNEQUAL)
    small["er"].test.values[:] *= 1e-14  # squares of errors in a small unit
    assert "CME (micro)" in render(rows(small, stream), "text")


def test_a_regression_has_no_accuracy():
    names = ["accuracy", "accuracy_micro", "anytime_accuracy", "nte"]
    (row,) = rows({"er": RECORDS["er"]}, REGRESSION, names)
    assert [row[f"{name}_mean"] for name in names[:3]] == [None] * 3
    assert row["accuracy_se"] is None and row["nte_mean"] is not None
    assert "anytime_accuracy has no value for 3 of 3 replicas." in render([row], "text")


def test_means_are_over_the_replicas_that_did_not_diverge_and_say_so():
    broken = random_record().test
    broken.values[1, 3] = np.nan
    diverged = {1: Divergence(2, 0, 17)}
    (row,) = rows({"er": Record({"test": broken}, diverged=diverged)}, STREAM)
    survivors = broken.values[[0, 2], 3].mean(1)
    assert row["cme_mean"] == pytest.approx(survivors.mean())
    assert row["cme_se"] == pytest.approx(abs(survivors[0] - survivors[1]) / 2)
    assert (row["replicas"], row["diverged"], row["diverged_seeds"]) == (3, 1, "1")
    text = render([row], "text")
    assert "3, 1 diverged" in text
    assert text.endswith(
        "er on toy: seed 1 diverged; its means are over the survivors, 2 of 3 replicas."
    )
    broken.values[:, 3] = np.nan
    (row,) = rows({"er": Record({"test": broken})}, STREAM)
    assert row["cme_mean"] is row["cme_micro_mean"] is None
    for style in ("text", "json"):
        assert "nan" not in render([row], style).lower()


def test_rows_by_task_are_errors_when_new_and_at_last():
    e = RECORDS["er"].test.values
    table = rows_by_task(RECORDS, STREAM)
    assert [(row["method"], row["name"]) for row in table[:4]] == [
        ("er", "a"), ("er", "b"), ("er", "c"), ("my_method", "a"),
    ]  # fmt: skip
    assert table[1]["new_mean"] == pytest.approx(e[:, 2, 1].mean(), abs=1e-15)
    assert table[1]["last_mean"] == pytest.approx(e[:, 3, 1].mean(), abs=1e-15)
    assert table[1]["last_se"] == pytest.approx(e[:, 3, 1].std(ddof=1) / np.sqrt(3), abs=1e-15)
    assert "error when new" in render(table, "text").split("\n")[0]


def test_json_and_csv_have_every_digit():
    table = rows(RECORDS, STREAM)
    assert json.loads(render(table, "json")) == table
    assert [list(row) for row in json.loads(render(table, "json"))] == [KEYS, KEYS]
    cells = list(csv.DictReader(io.StringIO(render(table, "csv"))))
    assert list(cells[0]) == KEYS
    for text, row in zip(cells, table, strict=True):
        assert (text["stream"], text["method"]) == (row["stream"], row["method"])
        assert {k: float(text[k]) for k in KEYS[2:-1]} == {k: row[k] for k in KEYS[2:-1]}
    interval = (-1 / 3, 1e-7)
    (text,) = csv.DictReader(io.StringIO(render([{"method": "er", "interval": interval}], "csv")))
    assert tuple(map(float, text["interval"].split(", "))) == interval


def test_an_unknown_metric_or_format_is_refused():
    with pytest.raises(SpecError, match=r"No metric 'forgeting'\. Did you mean 'forgetting'"):
        rows(RECORDS, STREAM, ("forgeting",))
    with pytest.raises(SpecError, match="one of text, json, csv, markdown, latex, got 'word'"):
        render([], "word")


def test_work_that_earlier_versions_counted_is_not_averaged_with_that_of_now():
    """The first counted rows through the head alone among the others, and nothing else."""
    old, new = Work(30, 90), Work(30, 20, 70, 5, 1_000, 64)
    record = random_record(replicas=2)
    for work, expected in (
        ({0: old, 1: new}, [30, 20, 70, 5, 1_000, 64, 0, 0, 0]),
        ({0: replace(new, memory_bytes=0), 1: new}, [30, 20, 70, 5, 1_000, 64, 0, 0, 0]),
        ({0: old, 1: old}, [30, 90, *[None] * 7]),
        ({0: Work(30, 90, 0, 0, 500), 1: Work(30, 90, 0, 0, 500)}, [30, 90, 0, 0, 500, 0, 0, 0, 0]),
    ):
        (row,) = cost_rows({"er": replace(record, work=work)}, STREAM)
        assert list(row.values())[4:] == expected
        (row,) = rows({"er": replace(record, work=work)}, STREAM)
        assert row["rows_backpropagated"] == expected[1]


def shares(errors, predictions):
    """Share of rows that are predicted to be of class 1."""
    return (predictions["test"] == 1).mean(1)


def early(errors):
    """The error on the first task just after it, of all seeds but the first."""
    return np.where(np.arange(len(errors.seeds)) == 0, np.nan, errors.after[:, 0, 0])


def test_replicas_without_a_value_are_told():
    record = replace(random_record(replicas=4), diverged={3: Divergence(1, 0, 1)})
    name = f"{__name__}:early"
    (row,) = rows({"er": record}, STREAM, (name,))
    assert row[f"{name}_mean"] == record.test.after[1:3, 0, 0].mean()  # seed 3 diverged
    text = render([row], "text")
    assert f"er on {STREAM.name}: {name} has no value for 1 of 4 replicas; its mean" in text


def test_a_metric_may_read_predictions():
    name = f"{__name__}:shares"
    with pytest.raises(SpecError, match="reads predictions, and this run has kept none"):
        rows(RECORDS, STREAM, (name,))
    with_predictions = SimpleNamespace(**vars(RECORDS["er"]), test=RECORDS["er"].test)
    with_predictions.predictions = {"test": np.array([[0, 1], [1, 1], [0, 0]])}
    (row,) = rows({"er": with_predictions}, STREAM, (name,))
    assert row[f"{name}_mean"] == 0.5
