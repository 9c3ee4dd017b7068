"""The command line: what it prints, what it writes, and one line for every bad input."""

import io
import json
import logging
import os
import subprocess
import sys
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
import tomli_w
import torch

import dpmcl
from conftest import TINY_SPEC
from dpmcl import cli, plugins, presets
from dpmcl.study import result
from dpmcl.training.spec import Spec, parse_toml
from python_process import PythonProcess

TINY = tomli_w.dumps({**TINY_SPEC, "replicas": 2, "methods": ["naive", "er"]})


@pytest.fixture
def command(command, tmp_path):
    """The command line in a new folder with tiny.toml."""
    (tmp_path / "tiny.toml").write_text(TINY)
    return command


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Path:
    """A run folder, shared by tests: they may read it and draw into it."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "tiny.toml").write_text(TINY)
    dpmcl.run(folder / "tiny.toml", out=folder / "run")
    return folder / "run"


def error_line(err: str) -> str:
    """Return the only line that a refused command prints."""
    assert "Traceback" not in err
    (line,) = [line for line in err.splitlines() if line.strip()]
    assert line.startswith("dpmcl: ")
    return line


# list, show, help


def test_list_mentions_everything(command):
    ran = command("list")
    assert (ran.status, ran.err) == (0, "")
    lines = {tuple(line.split(maxsplit=1)) for line in ran.out.splitlines()}
    for kind, plural in plugins.KINDS.items():
        assert (plural,) in lines or not plugins.names(kind)
        for name in plugins.names(kind):
            assert (name, plugins.summary(kind, name)) in lines
    assert {(name, presets.summary(name)) for name in presets.names()} <= lines
    assert {"adagrad", "exponential"} <= {line[0] for line in lines}
    origins = {"oml": "FTML (Finn", "cml": "the OML of Javed and White", "anml": "Beaulieu",
               "er": "the paper's ER",
               "replay": "the usual ER (not the paper's `er`)"}  # fmt: skip
    assert all(origin in plugins.summary("method", name) for name, origin in origins.items())


@pytest.mark.parametrize("preset", presets.names())
def test_show_prints_the_complete_spec_of_a_preset(preset, command):
    ran = command("show", preset)
    assert ran.status == 0
    assert ran.out.startswith(f"# {presets.summary(preset)}\n")
    table = tomllib.loads(ran.out)
    assert table == Spec.parse(parse_toml(presets.text(preset), preset)).to_table()
    assert {"monitor", "evaluation", "network", "training", "device", "threads"} <= set(table)


def test_show_prints_the_complete_spec_of_a_file_with_its_changes(command, tmp_path):
    (tmp_path / "mine.toml").write_text('stream = "digits"\nmethods = ["er"]\n')
    table = tomllib.loads(command("show", "mine.toml", "--set", "training.lr=0.5").out)
    assert table["training"]["lr"] == 0.5
    assert set(table["methods"]) == {"er"} and table["stream"]["classes_per_task"] == 1


def test_help_names_commands_options_and_choices_and_does_not_import_torch(command, tmp_path):
    code = (
        "import sys; sys.argv = ['dpmcl', '--help']\n"
        "from dpmcl.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = ('torch', 'numpy', 'pyarrow', 'matplotlib', 'sklearn', 'pydantic')\n"
        "print('heavy:', *(m for m in heavy if m in sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0
    assert ran.stdout.splitlines()[-1].strip() == "heavy:"
    for name in ("list", "show", "run", "table", "plot", "stream"):
        assert f"  {name} " in ran.stdout
    text = command("run", "--help").out
    for words in ("--method", "--set", "--out", "auto|cpu|cuda", "auto|batched|looped"):
        assert words in text


# run


def test_run_prints_the_table_and_writes_the_figure(command, tmp_path):
    ran = command("run", "tiny.toml", "--watch", "terms,stability")
    assert ran.status == 0
    assert "er: discount: gamma by age has no finite sum" in ran.err
    lines = ran.out.splitlines()
    assert [line.split()[:3] for line in (lines[0], *lines[2:4])] == [
        ["stream", "method", "replicas"], ["digits", "naive", "2"], ["digits", "er", "2"],
    ]  # fmt: skip
    assert lines[4:] == ["figure: runs/tiny/figures/errors.png", "folder: runs/tiny"]
    assert (tmp_path / "runs/tiny/figures/errors.png").read_bytes().startswith(b"\x89PNG")
    assert dpmcl.load(tmp_path / "runs/tiny").table() == "\n".join(lines[:4])
    assert {"naive", "er"} <= set(ran.err.split())
    before = (tmp_path / "runs/tiny/errors.parquet").read_bytes()
    again = command("run", "tiny.toml", "--watch", "terms,stability")
    assert (again.out, again.err.strip()) == (ran.out, "")
    for what in ("terms", "stability"):
        assert command("plot", "runs/tiny", "--what", what).status == 0
        drawn = tmp_path / "runs/tiny/figures" / f"{what}.png"
        assert drawn.read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "runs/tiny/errors.parquet").read_bytes() == before


def test_options_of_run(command, tmp_path):
    ran = command(
        "run", "tiny.toml", "--method", "er", "--method", "dpmcl", "--tasks", "3", "--seed", "5",
        "--replicas", "1", "--set", "training.lr=0.25", "--set", "methods.dpmcl.kappa=2",
        "--engine", "looped", "--device", "cpu", "--on-divergence", "stop", "--out", "here",
    )  # fmt: skip
    assert ran.status == 0
    result = dpmcl.load(tmp_path / "here")
    assert list(result.records) == ["er", "dpmcl"]
    assert result.errors["er"].seeds == (5,)
    assert result.errors["er"].tasks == result.spec["stream"]["tasks"] == 3
    assert result.spec["training"]["lr"] == 0.25
    assert result.spec["methods"]["dpmcl"]["kappa"] == 2
    settings = [result.spec[key] for key in ("engine", "device", "on_divergence")]
    assert settings == ["looped", "cpu", "stop"]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (dpmcl.DpmclError("The rule."), "The rule."),
        (MemoryError(), "This needs more memory than there is."),
        (OSError(28, "No space", "a/b"), "a/b: reading or writing failed (No space)."),
    ],
)
def test_log_lines_and_errors_are_shown(error, line, command, monkeypatch):
    def load(_: object) -> None:
        logging.getLogger("dpmcl").info("[red]two%slines", "\n")
        raise error

    before = (logging.getLogger("dpmcl").level, [*logging.getLogger("dpmcl").handlers])
    monkeypatch.setattr(result, "load", load)
    ran = command("table", "anywhere")
    assert (ran.status, ran.out) == (2, "")
    assert ran.err == f"[red]two\\nlines\ndpmcl: {line}\n"
    assert (logging.getLogger("dpmcl").level, logging.getLogger("dpmcl").handlers) == before


# table, plot, stream


def test_tables_and_figures_in_each_format(command, stored):
    for style in ("text", "json", "csv", "markdown", "latex"):
        ran = command("table", str(stored), "--format", style)
        assert ran == (0, dpmcl.load(stored).table(style) + "\n", "")
    words = ["--format", "json", "--metric", "backward_transfer"]
    rows = json.loads(command("table", str(stored), *words).out)
    assert [row["method"] for row in rows] == ["naive", "er"]
    assert all("backward_transfer_se" in row for row in rows)
    words = ["--format", "json", "--columns", "method,flops"]
    rows = json.loads(command("table", str(stored), "--cost", *words).out)
    assert [(row["method"], row["flops"] > 0) for row in rows] == [("naive", True), ("er", True)]
    rows = json.loads(command("table", str(stored), "--against", "er", "--format", "json").out)
    assert [(row["method"], row["error"], row["verdict"]) for row in rows] == [
        ("naive", "CME", "too few replicas"), ("naive", "NTE", "too few replicas"),
    ]  # fmt: skip
    ran = command("plot", str(stored), "--format", "svg", "--smooth", "0.5")
    assert ran == (0, f"{stored / 'figures' / 'errors.svg'}\n", "")


# bad inputs


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("run tiny.toml --method err", ["No method 'err'", "Did you mean 'er'"]),
        ("run tiny.toml --tasks 11", ["tasks", "at most 10", "got 11"]),
        ("run tiny.toml --watch terms,cost", ["must be 'terms' or 'stability', got 'cost'"]),
        ("run tiny.toml --device cuda", ["needs a CUDA GPU"]),
        ("run tiny.toml --out tiny.toml/run", ["run cannot be written", "another folder"]),
        ("run tiny.toml --out broken", ["broken is damaged"]),
        ("run broken.toml", ["broken.toml must be TOML", "line 2"]),
        ("run EMPTY", ["A run starts from", "''"]),
        ("run STORED/errors.parquet", ["give the folder"]),
        ("show digitz", ["No preset, stream or spec file 'digitz'", "Did you mean 'digits'"]),
        ("table unfinished", ["no results yet"]),
        ("table STORED --metric os:getcwd", ["metric 'os:getcwd'", "fails"]),
        ("table STORED --rename x", ["--rename takes NAME=TEXT"]),
        ("table STORED --rename dpmlc=DPMCL", ["No method or column 'dpmlc'", "'CME'"]),
        ("table STORED --rename CME=error --format json", ["column 'CME'", "'cme_mean'"]),
        ("plot STORED --what terms --ylim 0,1 --log", ["figure of errors takes log, ylim"]),
        ("plot STORED --smooth nan", ["smooth", "finite", "nan"]),
        ("stream digits --tasks 2 --out sheet.bmp", ["sheet.bmp"]),
    ],
)  # fmt: skip
def test_bad_inputs_are_one_line_and_status_2(
    arguments, words, command, stored, tmp_path, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (tmp_path / "broken.toml").write_text('replicas = 2\nstream = "digits\n')
    for folder in ("broken", "unfinished"):
        (tmp_path / folder).mkdir()
    (tmp_path / "broken" / "spec.toml").write_text("stream = \n")
    for name in ("spec.toml", "stream.json"):
        (tmp_path / "unfinished" / name).write_bytes((stored / name).read_bytes())
    files = {*tmp_path.rglob("*")}
    meant = {"EMPTY": ""}
    ran = command(*(meant.get(a, a.replace("STORED", str(stored))) for a in arguments.split()))
    assert ran.status == 2
    assert ran.out == "" or "stream digits" in arguments
    line = error_line(ran.err)
    for word in words:
        assert word in line
    assert {path for path in tmp_path.rglob("*") if path.name != ".lock"} == files


@pytest.mark.parametrize("arguments", ["run", "run tiny.toml --device tpu", "table -x", "paint"])
def test_wrong_usage_is_status_2(arguments, command):
    ran = command(*arguments.split())
    assert ran.status == 2
    assert "Usage:" in ran.err
    assert "Traceback" not in ran.err


# outputs other than a UTF-8 terminal


def printed(monkeypatch, stdout, *arguments):
    """Return the status of a command that prints to the given output."""
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(sys, "argv", ["dpmcl", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code


def test_names_that_the_encoding_lacks_are_escaped(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{i % 7},{('żółw', '猫', 'plain')[i % 3]}\n" for i in range(60))
    Path("pets.csv").write_text(f"a,k\n{rows}", "utf-8")
    written = io.BytesIO()
    output = io.TextIOWrapper(written, encoding="cp1252")
    assert printed(monkeypatch, output, "stream", "pets.csv", "--set", "stream.target=k") == 0
    for name in ("plain", r"\u017c\xf3\u0142w".replace(r"\xf3", "ó"), r"\u732b"):
        assert name in written.getvalue().decode("cp1252")


def test_a_stream_is_shown_without_methods(command):
    Path("stream.toml").write_text("[stream]\nname = 'digits'\ntasks = 2\n")
    ran = command("stream", "stream.toml")
    assert ran.status == 0 and "digits: classification, 2 tasks" in ran.out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_output_is_one_line(stored, monkeypatch, capsys):
    with suppress(OSError), Path("/dev/full").open("w") as full:
        assert printed(monkeypatch, full, "table", str(stored)) == 2
    assert "No space left" in error_line(capsys.readouterr().err)


def test_a_reader_that_has_gone_is_quiet(stored, monkeypatch, capsys):
    reading, writing = os.pipe()
    os.close(reading)
    with suppress(OSError), os.fdopen(writing, "w") as pipe:
        assert printed(monkeypatch, pipe, "table", str(stored)) == 1
    assert capsys.readouterr().err == ""


# as a process of its own


@pytest.mark.skipif(os.name == "nt", reason="needs a limit on the size of files")
@pytest.mark.parametrize(
    ("limit", "file"), [(2_000, "00000001.safetensors"), (20_000, "errors.png")]
)
def test_a_full_disk_is_one_line_and_what_is_stored_stays(limit, file, tmp_path):
    code = (
        "import resource, sys; from dpmcl.cli import main\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        "sys.argv = 'dpmcl run tiny.toml --method er --checkpoint 0 --out run'.split()\n"
        "sys.argv += ['--set', 'training.memory=9']; main()"
    )
    (tmp_path / "tiny.toml").write_text(TINY)
    ended = PythonProcess("-c", code, folder=tmp_path).end()
    assert ended.status == 2
    line = ended.err.strip().splitlines()[-1]
    assert line.startswith("dpmcl: run/")
    assert f"{file} cannot be written" in line
    assert "File too large" in line
    assert "Traceback" not in ended.err
    assert list(dpmcl.load(tmp_path / "run").records) == (["er"] if file == "errors.png" else [])
    assert not list(tmp_path.rglob("*.tmp-*"))
