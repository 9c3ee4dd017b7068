"""Names of users in every output: shown as they are, obeyed by nothing, stored exactly."""

import json
import re
import warnings
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from markdown_it import MarkdownIt
from rich.cells import cell_len
from test_theory_figures import readings

import dpmcl
from conftest import random_record
from dpmcl.data.stream import Stream
from dpmcl.exceptions import DataError
from dpmcl.results import figures, sheet, theory_figures
from dpmcl.results.names import displayed
from dpmcl.results.store import StreamInfo
from dpmcl.results.summary import rows, rows_by_task
from dpmcl.results.table import render
from nasty import NAMES

SMALL = {"training.updates": 2, "evaluation.evaluate_every": 50}


def stream_info(name: str, tasks=NAMES) -> StreamInfo:
    return StreamInfo(name, "classification", tuple(tasks), NAMES)


METHODS = {name: random_record(replicas=2, tasks=2) for name in NAMES}
BY_TASK = {"er": random_record(replicas=2, tasks=len(NAMES))}
TABLES = [
    table
    for name in (NAMES[0], "[x]", "*", "")
    for table in (
        rows(METHODS, stream_info(name, NAMES[:2])),
        rows_by_task(BY_TASK, stream_info(name)),
    )
]
tables = pytest.mark.parametrize("table", TABLES)


def cell(row):
    """A name, as the table shows it."""
    return f"{row['task']}: {displayed(row['name'])}" if "task" in row else displayed(row["method"])


@tables
def test_a_table_of_text_has_a_line_a_row_and_its_columns_are_aligned(table):
    header, rule, *body = render(table, "text").split("\n")
    assert all(line.isprintable() for line in body)
    assert {cell_len(line) for line in (header, *body)} == {len(rule)}
    for line, row in zip(body, table, strict=True):
        assert cell(row) in line


@tables
def test_markdown_is_rendered_as_the_names_are(table):
    tokens = MarkdownIt("commonmark").enable("table").parse(render(table, "markdown"))
    texts = [
        "".join(child.content for child in token.children)
        for token in tokens
        if token.type == "inline"
    ]
    assert {c.type for t in tokens for c in t.children or ()} <= {"text", "text_special"}
    first_number = texts.index("replicas")
    columns = len(texts) // (len(table) + 1)
    assert texts[columns + first_number - 1 :: columns] == [cell(row) for row in table]
    assert texts[columns::columns] == [displayed(row["stream"]) for row in table]


@tables
def test_no_character_of_latex_is_left_that_means_more_than_itself(table):
    lines = render(table, "latex").split("\n")
    body = [line.removesuffix(r" \\").split(" & ") for line in lines[4:-2]]
    assert len({len(line) for line in body}) == 1
    assert not any(line.startswith(("[", "*")) for line in lines)
    named = {"backslash": "\\", "asciicircum": "^", "asciitilde": "~", "less": "<",
             "greater": ">", "bar": "|", "asciigrave": "`"}  # fmt: skip
    for line, row in zip(body, table, strict=True):
        assert not re.search("--|`", " ".join(line))
        text = line[2 if "task" in row else 1].replace(r"-\/-", "--")
        plain = re.sub(r"\\text(\w+)\{\}", "", text)
        assert re.fullmatch(r"(\\[{}$&#_%]|[^\\{}$&#_%^~<>|])*", plain)
        text = re.sub(r"\\(?:text(\w+)\{\}|(.))", lambda m: named.get(m[1]) or m[2], text)
        assert text == cell(row)


@pytest.fixture
def words(tmp_path, monkeypatch):
    """The texts of a figure, by its file; matplotlib warns of nothing."""
    matplotlib = pytest.importorskip("matplotlib")
    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")

    def texts(figure):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            figures.save(figure, tmp_path / "figure.svg")
        nodes = ElementTree.parse(tmp_path / "figure.svg").iter("{http://www.w3.org/2000/svg}text")
        return ["".join(text.itertext()) for text in nodes]

    return texts


@pytest.mark.parametrize("start", range(0, len(NAMES), figures.NAMED))
def test_figures_show_names_to_the_letter(start, words):
    names = NAMES[start : start + figures.NAMED]
    drawn = figures.curves(
        {name: random_record(replicas=2, tasks=len(names)) for name in names},
        stream_info(names[0], names),
    )
    texts = words(drawn)
    for name in names:
        assert texts.count(figures.shortened(name, 18)) >= 2  # both axes
        assert figures.shortened(name, 60) in texts  # the legend
    assert sum(text.startswith(displayed(names[0])) and "2 replicas" in text for text in texts) == 1


def test_figures_of_theory_and_sheets_show_names_to_the_letter(words):
    names = ("$x$", "two\nlines", "\x1b[31m猫", "_5$")
    info = StreamInfo("_$", "classification", names, names)
    drawn = theory_figures.draw({names[3]: readings()}, info, "terms")
    assert {displayed(name) for name in names} <= {*words(drawn)}

    x = np.random.default_rng(0).uniform(size=(24, 3))
    texts = words(sheet.draw(Stream.from_arrays(x, [*names] * 6, name="a_$ \\")))
    assert {displayed(min(names)), displayed(max(names))} <= {*texts}
    assert any(text.startswith("a_$ \\: the mean") for text in texts)
    images = Stream.from_arrays(np.zeros((24, 1, 4, 4), np.uint8), [*names] * 6, name="$$")
    titles = {f"{k}: {displayed(name)}" for k, name in enumerate(sorted(names))}
    assert titles <= {*words(sheet.draw(images))}
    columns = {"$a$": x[:, 0], "_b\t": x[:, 1], "y": ["$5", "b"] * 12}
    table = Stream.from_table(columns, target="y", name="$")
    assert {"$a$", r"_b\t", "$5", "b"} <= {*words(sheet.draw(table))}


def test_the_command_line_shows_names_and_obeys_none(command):
    names = sorted(name for name in NAMES if not {"\n", "\r", "\0"} & {*name})  # of a table
    stem, method, metric = "_$w$ [red]\x1b[31m|:cat:", "_$m$[red]:A_b", "m|x:half"
    Path("_$m$[red].py").write_text("from dpmcl.methods.er import ER\nclass A_b(ER): pass\n")
    Path("m|x.py").write_text("def half(errors): return errors.after[:, -1, -1] / 2\n")
    targets = [name for name in names for _ in range(5)]
    inputs = np.random.default_rng(0).uniform(size=len(targets))
    pq.write_table(pa.table({"x": inputs, "t[red]|": targets}), f"{stem}.parquet")
    target = ["--set", "stream.target=t[red]|"]

    _, out, _ = command("stream", f"{stem}.parquet", *target)
    assert out.replace("\n", "").isprintable()
    assert f"{displayed(stem)}: classification" in out
    labels = ", ".join(f"{k} = {displayed(name)}" for k, name in enumerate(names))
    assert f"labels: {labels}\n" in out
    for k, name in enumerate(names):
        (line,) = re.findall(rf"^{k}  .*$", out, re.MULTILINE)
        assert line[6:].startswith(displayed(name))

    sets = [part for key, value in SMALL.items() for part in ("--set", f"{key}={value}")]
    few = ["--replicas", 1, "--tasks", 9, *sets]
    _, out, err = command("run", f"{stem}.parquet", *target, "--method", method, *few)
    assert out.replace("\n", "").isprintable()
    assert method in out
    assert method in err
    (folder,) = (path for path in Path("runs").iterdir() if path.name != "streams")

    _, out, _ = command("table", folder, "--by-task", "--format", "json")
    assert [row["name"] for row in json.loads(out)] == names[:9]
    assert {row["stream"] for row in json.loads(out)} == {stem}
    _, out, _ = command("table", folder, "--by-task")
    assert out.replace("\n", "").isprintable()
    _, out, _ = command("table", folder, "--metric", metric, "--format", "markdown")
    assert r"| m\|x:half |" in out


def test_names_are_stored_and_read_as_they_are(tmp_path):
    x = np.random.default_rng(0).uniform(size=(5 * len(NAMES), 2))
    stream = Stream.from_arrays(x, [name for name in NAMES for _ in range(5)], name=NAMES[0])
    ran = dpmcl.run(stream, methods=["naive"], replicas=1, settings=SMALL, out=tmp_path / "a\x1bb")
    stored = dpmcl.load(tmp_path / "a\x1bb")
    assert stored.stream.classes == stored.stream.tasks == tuple(sorted(NAMES))
    assert stored.rows() == ran.rows()


def test_a_name_that_no_file_can_hold_is_refused_before_training(tmp_path):
    stream = Stream.from_arrays(np.zeros((10, 2)), ["a", "b"] * 5, name="caf\udce9")
    with pytest.raises(DataError, match=r"'caf\\udce9' cannot be stored as UTF-8; rename it"):
        dpmcl.run(stream, methods=["er"], replicas=1, settings=SMALL, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
