"""Several runs in one table, and compared with one method."""

import json
import re
from dataclasses import replace

import pytest

from conftest import random_record
from dpmcl.core.gradients import Work
from dpmcl.exceptions import DpmclError, SpecError
from dpmcl.results.against import COLUMNS
from dpmcl.results.against import rows as comparison_rows
from dpmcl.results.comparison import entries
from dpmcl.results.record import Record
from dpmcl.results.store import StreamInfo
from dpmcl.results.table import Layout, render, table_text
from dpmcl.study.result import Result
from dpmcl.study.side_by_side import SideBySide

SEEDS = tuple(range(10))
NAMES = tuple("012")


def record(level: float, entropy: int = 0) -> Record:
    base = random_record(entropy, replicas=len(SEEDS), low=level, high=level + 0.01)
    return replace(base, work=dict.fromkeys(SEEDS, Work(6, 48, 9, 3, 1_000, 64, 8, 2)))


def result(lr: float, stream: str = "toy", **records: Record) -> Result:
    spec = {
        "stream": {"name": stream},
        "training": {"lr": lr},
        "methods": {name: {} for name in records},
    }
    return Result(spec, StreamInfo(stream, "classification", NAMES, NAMES), records)


def text_of(runs: dict[str, Result], style="text", **look) -> str:
    rows, layout = SideBySide(runs).rows(lambda run: run.rows(), Layout(**look))
    return render(rows, style, layout)


RUNS = {
    "a": result(0.1, er=record(0.3), my_naive=record(0.9, 1)),
    "b": result(0.5, er=record(0.2, 2)),
}


def test_a_setting_that_differs_is_a_column() -> None:
    lines = text_of(RUNS, columns=["method", "lr", "CME"]).split("\n")
    assert [line.split()[:2] for line in lines] == [
        ["method", "lr"],
        ["--------", "---"],
        ["er", "0.1"],
        ["my_naive", "0.1"],
        ["er", "0.5"],
    ]
    rows = json.loads(text_of(RUNS, "json"))
    assert [row["lr"] for row in rows] == [0.1, 0.1, 0.5]
    twins = {"x": result(0.1, er=record(0.3)), "y": result(0.1, er=record(0.3))}
    assert [row["run"] for row in json.loads(text_of(twins, "json"))] == ["x", "y"]
    assert "lr" not in json.loads(text_of({"a": RUNS["a"]}, "json"))[0]


def test_settings_may_have_the_names_of_columns() -> None:
    runs = {name: result(0.1, er=record(0.3)) for name in "ab"}
    runs["a"].spec["methods"]["er"].update(task=1, rows=2, name=3)
    side_by_side = SideBySide(runs)
    lines = render(*_render_arguments(side_by_side.rows(Result.rows_by_task, Layout()))).split("\n")
    header = ["task (setting)", "rows", "name (setting)", "task", "replicas"]
    assert [cell for cell in re.split("  +", lines[0]) if cell in header] == header
    assert lines[2].split()[2:7] == ["1", "2", "3", "0:", "0"]
    rows = json.loads(render(*_render_arguments(side_by_side.rows(Result.rows, Layout()), "json")))
    assert [row["rows (setting)"] for row in rows] == [2, None]


def _render_arguments(table, style="text"):
    rows, look = table
    return rows, style, look


def test_the_best_is_bold_where_a_test_says_so() -> None:
    text = text_of(RUNS, "latex", renamed={"my_naive": "Naive & co", "CME": r"$\downarrow$"})
    assert r"\toprule" in text and r"\bottomrule" in text
    bold = [line.count(r"\textbf") for line in text.split("\n") if "toy" in line]
    assert bold == [0, 0, 2]  # CME and NTE of the second run
    assert r"Naive \& co" in text and r"\$\textbackslash{}downarrow\$" in text
    close = {"a": result(0.1, er=record(0.3), naive=record(0.3, 7))}
    assert "textbf" not in text_of(close, "latex")


def test_every_method_is_compared_with_one() -> None:
    rows = comparison_rows(entries(RUNS), "er (lr 0.1)")
    assert [(row["stream"], row["error"], row["method"], row["verdict"]) for row in rows] == [
        ("toy", "CME", "my_naive", "higher"),
        ("toy", "CME", "er (lr 0.5)", "lower"),
        ("toy", "NTE", "my_naive", "higher"),
        ("toy", "NTE", "er (lr 0.5)", "lower"),
    ]
    text = table_text(rows, COLUMNS, "text", words=4).split("\n")
    assert text[0].split()[:4] == ["stream", "method", "against", "error"] and len(text) == 6
    assert json.loads(table_text(rows, COLUMNS, "json", words=4))[0]["p"] < 0.05
    assert r"my\_naive" in table_text(rows, COLUMNS, "latex", words=4)
    with pytest.raises(SpecError, match=r"There are: er \(lr 0.1\), my_naive, er \(lr 0.5\)"):
        comparison_rows(entries(RUNS), "er")


def test_streams_without_the_method_are_left_out() -> None:
    runs = {**RUNS, "c": result(0.1, "other", naive=record(0.1), dpmcl=record(0.2))}
    assert {row["stream"] for row in comparison_rows(entries(runs), "dpmcl")} == {"other"}
    with pytest.raises(SpecError, match="--against must name a method that has others"):
        comparison_rows(entries(runs), "nobody")


def test_costs_are_a_table() -> None:
    rows, look = SideBySide(RUNS).rows(Result.cost_rows, Layout())
    text = render(rows, "text", look).split("\n")
    assert text[0].split("  ")[-1].strip() == "of copies"
    assert text[2].split() == "toy er 0.1 10 6 48 9 3 1,000 64 8 2".split()  # noqa: SIM905


def test_several_runs_are_one_figure_of_any_kind(tmp_path) -> None:
    records, stream = SideBySide(RUNS).of_one_stream()
    assert list(records) == ["er (lr 0.1)", "my_naive", "er (lr 0.5)"]
    figure = Result({}, stream, records).plot()
    assert [t.get_text() for t in figure.legends[0].get_texts()] == list(records)
    with pytest.raises(DpmclError, match="Nothing was watched"):
        Result({}, stream, records).plot(what="terms")
    with pytest.raises(SpecError, match="A figure shows one stream"):
        SideBySide({**RUNS, "c": result(0.1, "other", er=record(0.1))}).of_one_stream()
    with pytest.raises(DpmclError, match="no results to draw yet"):
        SideBySide({"c": result(0.1), "d": result(0.2)}).of_one_stream()


def test_tasks_in_another_order_are_numbered_in_a_figure() -> None:
    def with_tasks(*tasks: str) -> Result:
        base = result(0.1, er=record(0.3))
        return replace(base, stream=StreamInfo("toy", "classification", tasks, NAMES))

    same = SideBySide({"a": with_tasks("0", "1"), "b": with_tasks("0", "1", "2")})
    assert same.of_one_stream()[1].tasks == ("0", "1", "2")
    reordered = SideBySide({"a": with_tasks("0", "1"), "b": with_tasks("2", "1", "0")})
    assert reordered.of_one_stream()[1].tasks == ("1", "2", "3")
