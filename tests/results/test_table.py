"""The table: its numbers by hand, and its formats."""

import csv
import io
import json
import re

import numpy as np
import pytest

from dpmcl.core.errors import Errors
from dpmcl.core.gradients import Work
from dpmcl.exceptions import SpecError
from dpmcl.results.record import Divergence, Record, merge
from dpmcl.results.store import StreamInfo
from dpmcl.results.table import render, rows

KEYS = [
    "stream",
    "method",
    "replicas",
    "cme_mean",
    "cme_se",
    "cme_micro_mean",
    "cme_micro_se",
    "nte_mean",
    "nte_se",
    "nte_path_mean",
    "accuracy_mean",
    "forgetting_mean",
    "gradient_evaluations",
    "rows_backpropagated",
    "diverged",
    "diverged_seeds",
]
TASKS = 3
STREAM = StreamInfo("toy", "classification", ("a", "b", "c"), ("a", "b", "c"))


def errors(seeds: tuple[int, ...], entropy: int) -> Errors:
    values = np.random.default_rng(entropy).uniform(size=(len(seeds), 1 + TASKS, TASKS))
    for after in range(TASKS):
        values[:, 1 + after, after + 1 :] = np.nan
    return Errors(seeds, values, np.full((len(seeds), TASKS), 5))


def record(seeds: tuple[int, ...], entropy: int = 0) -> Record:
    work = {seed: Work(6_000, 192_000) for seed in seeds}
    return Record({"test": errors(seeds, entropy)}, work)


RECORDS = {"er": record((0, 1, 2), 1), "my_method": record((0, 1, 2), 2)}


def test_numbers_by_hand():
    (row, other) = rows(RECORDS, STREAM)
    assert list(row) == KEYS
    e = RECORDS["er"].test.values
    cme, nte, path, forgetting = [], [], [], []
    for replica in range(3):
        last = e[replica, 3]
        cme.append((last[0] + last[1] + last[2]) / 3)
        nte.append(last[2])
        path.append((e[replica, 1, 0] + e[replica, 2, 1] + last[2]) / 3)
        first = last[0] - min(e[replica, 1, 0], e[replica, 2, 0])
        second = last[1] - e[replica, 2, 1]
        forgetting.append((first + second) / 2)

    def se(values):
        mean = sum(values) / 3
        return np.sqrt(sum((v - mean) ** 2 for v in values) / 2) / np.sqrt(3)

    assert row["stream"] == "toy"
    assert row["method"] == "er"
    assert row["replicas"] == 3
    assert row["cme_mean"] == pytest.approx(np.mean(cme), abs=1e-15)
    assert row["cme_se"] == pytest.approx(se(cme), abs=1e-15)
    assert row["nte_mean"] == pytest.approx(np.mean(nte), abs=1e-15)
    assert row["nte_se"] == pytest.approx(se(nte), abs=1e-15)
    assert row["nte_path_mean"] == pytest.approx(np.mean(path), abs=1e-15)
    assert row["accuracy_mean"] == pytest.approx(1 - np.mean(cme), abs=1e-15)
    assert row["forgetting_mean"] == pytest.approx(np.mean(forgetting), abs=1e-15)
    assert (row["gradient_evaluations"], row["rows_backpropagated"]) == (6_000, 192_000)
    assert other["cme_mean"] != row["cme_mean"]


def test_one_replica_has_no_standard_error():
    (row,) = rows({"er": record((4,))}, STREAM)
    assert row["replicas"] == 1
    assert row["cme_se"] is None
    assert row["nte_se"] is None
    assert row["cme_mean"] is not None


def unequal(kind: str = "classification") -> list[dict]:
    """Rows of tasks with 2, 3 and 5 test rows."""
    found = errors((0, 1), 3)
    record = Record({"test": Errors((0, 1), found.values, np.array([[2, 3, 5]] * 2))})
    return rows({"er": record}, StreamInfo("toy", kind, ("a", "b", "c"), ()))


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_macro_and_micro_means_are_both_shown_where_they_differ(kind):
    (row,) = unequal(kind)
    last = errors((0, 1), 3).values[:, 3]
    macro, micro = last.mean(1), last @ [0.2, 0.3, 0.5]
    assert row["cme_mean"] == pytest.approx(macro.mean(), abs=1e-15)
    assert row["cme_micro_mean"] == pytest.approx(micro.mean(), abs=1e-15)
    assert row["cme_micro_se"] == pytest.approx(abs(micro[0] - micro[1]) / 2, abs=1e-15)
    for style in ("text", "markdown", "latex"):
        assert re.search(r"CME \(macro\)\W+CME \(micro\)\W+NTE", render([row], style))
        assert f"{row['cme_micro_mean']:.3f} ({row['cme_micro_se']:.3f})" in render([row], style)
    assert list(json.loads(render([row], "json"))[0])[:7] == KEYS[:7]


def test_a_macro_mean_that_is_the_micro_mean_too_is_shown_once():
    for style in ("text", "markdown", "latex"):
        table = render(rows(RECORDS, STREAM), style)
        assert "CME" in table
        assert "acro" not in table + render([], style)
        assert "CME (micro)" in render([*rows(RECORDS, STREAM), *unequal()], style)


def test_regression_has_no_accuracy():
    (row,) = rows({"er": record((0, 1))}, StreamInfo("sine", "regression", ("a", "b", "c"), ()))
    assert row["accuracy_mean"] is None
    assert row["cme_mean"] is not None


def test_one_task_has_no_forgetting():
    one = Errors((0, 1), np.array([[[0.5], [0.25]], [[0.5], [0.75]]]), np.ones((2, 1)))
    (row,) = rows({"er": Record({"test": one})}, StreamInfo("toy", "classification", ("a",), ()))
    assert row["forgetting_mean"] is None
    assert row["cme_mean"] == 0.5
    assert row["gradient_evaluations"] is None
    assert "| - |" in render([row], "markdown")


def test_means_are_over_the_replicas_that_did_not_diverge_and_say_so():
    broken = errors((0, 1, 2), 0)
    broken.values[1, 3] = np.nan
    lost = {1: Divergence(2, 0, 17)}
    (row,) = rows({"er": Record({"test": broken}, diverged=lost)}, STREAM)
    both = broken.values[[0, 2], 3].mean(1)
    assert row["cme_mean"] == pytest.approx(both.mean())
    assert row["cme_se"] == pytest.approx(abs(both[0] - both[1]) / 2)
    assert (row["replicas"], row["diverged"], row["diverged_seeds"]) == (3, 1, "1")
    text = render([row], "text")
    assert "3, 1 diverged" in text
    assert text.endswith(
        "er on toy: seed 1 diverged; its means are over the survivors, 2 of 3 replicas."
    )


def test_without_a_healthy_replica_there_is_no_mean():
    broken = errors((0, 1), 0)
    broken.values[:, 3] = np.nan
    (row,) = rows({"er": Record({"test": broken})}, STREAM)
    assert row["cme_mean"] is None
    for style in ("text", "json"):
        assert "nan" not in render([row], style).lower()
    assert json.loads(render([row], "json"))[0]["cme_mean"] is None
    assert row["cme_micro_mean"] is None


def test_json():
    found = json.loads(render(rows({"er": record((0,)), **RECORDS}, STREAM), "json"))
    assert [list(row) for row in found] == [KEYS, KEYS]
    assert found == rows({"er": RECORDS["er"], "my_method": RECORDS["my_method"]}, STREAM)
    text = render(rows({"er": record((0,))}, STREAM), "json")
    assert '"cme_se": null' in text
    assert "NaN" not in text
    assert json.loads(text)[0]["cme_se"] is None


def test_csv_parses_back_with_every_digit():
    table = rows(RECORDS, STREAM)
    found = list(csv.DictReader(io.StringIO(render(table, "csv"))))
    assert list(found[0]) == KEYS
    for text, row in zip(found, table, strict=True):
        assert (text["stream"], text["method"]) == (row["stream"], row["method"])
        assert {k: float(text[k]) for k in KEYS[2:-1]} == {k: row[k] for k in KEYS[2:-1]}


def test_csv_leaves_missing_numbers_empty():
    (found,) = csv.DictReader(io.StringIO(render(rows({"er": record((0,))}, STREAM), "csv")))
    assert found["cme_se"] == ""


def test_markdown_is_well_formed():
    table = rows(RECORDS, STREAM)
    header, rule, *body = render(table, "markdown").split("\n")
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in (header, rule, *body)]
    assert len({len(line) for line in cells}) == 1
    assert cells[0][:5] == ["stream", "method", "replicas", "CME", "NTE"]
    assert set(cells[1]) <= {"---", "--:"}
    assert [line[1] for line in cells[2:]] == ["er", "my_method"]
    assert cells[2][3] == f"{table[0]['cme_mean']:.3f} ({table[0]['cme_se']:.3f})"
    assert cells[2][-2:] == ["6,000", "192,000"]


def test_latex_is_well_formed():
    lines = render(rows(RECORDS, STREAM), "latex").split("\n")
    assert lines[0].startswith(r"\begin{tabular}{ll")
    assert lines[-1] == r"\end{tabular}"
    columns = lines[0].removeprefix(r"\begin{tabular}{").removesuffix("}")
    body = [line for line in lines if line.endswith(r"\\")]
    assert len(body) == 3
    assert {line.count(" & ") for line in body} == {len(columns) - 1}
    assert r"my\_method" in body[2]
    assert lines.count(r"\hline") == 3


def test_text_lines_up():
    header, rule, *body = render(rows(RECORDS, STREAM), "text").split("\n")
    assert header.split()[:3] == ["stream", "method", "replicas"]
    assert set(rule) == {"-", " "}
    assert len(body) == 2
    assert {len(line) for line in (header, *body)} == {len(rule)}
    assert header.index("method") == body[0].index("er") == body[1].index("my_method")


def test_text_of_very_small_and_large_numbers_keeps_digits():
    values = np.zeros((1, 2, 1))
    for error, words in ((1.234e-5, "1.2e-05"), (123456.0, "1.2e+05"), (0.0, "0.000")):
        values[:, 1] = error
        one = {"er": Record({"test": Errors((0,), values.copy(), np.ones((1, 1)))})}
        table = rows(one, StreamInfo("sine", "regression", ("a",), ()))
        assert words in render(table, "text")


def test_a_further_metric_is_a_column():
    table = rows(RECORDS, STREAM, ("backward_transfer",))
    assert list(table[0]) == [*KEYS, "backward_transfer_mean", "backward_transfer_se"]
    e = RECORDS["er"].test.values
    by_hand = [(e[r, 1, 0] - e[r, 3, 0] + e[r, 2, 1] - e[r, 3, 1]) / 2 for r in range(3)]
    assert table[0]["backward_transfer_mean"] == pytest.approx(np.mean(by_hand), abs=1e-15)
    assert table[0]["backward_transfer_se"] == pytest.approx(
        np.std(by_hand, ddof=1) / np.sqrt(3), abs=1e-15
    )
    for style in ("text", "json", "csv", "markdown"):
        assert "backward_transfer" in render(table, style)
    assert r"backward\_transfer" in render(table, "latex")


def test_an_unknown_metric():
    with pytest.raises(SpecError, match=r"No metric 'forgeting'\. Did you mean 'forgetting'"):
        rows(RECORDS, STREAM, ("forgeting",))


def test_no_rows():
    assert json.loads(render([], "json")) == []
    for style in ("text", "markdown", "latex"):
        assert "method" in render([], style)


def test_merge_orders_seeds_and_keeps_what_was_there():
    first, second = record((0, 3), 1), record((1, 3), 2)
    both = merge(first, second)
    assert both.test.seeds == (0, 1, 3)
    np.testing.assert_array_equal(both.test.values[[0, 2]], first.test.values)
    np.testing.assert_array_equal(both.test.values[1], second.test.values[0])
    assert sorted(both.work) == [0, 1, 3]
