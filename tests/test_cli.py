"""The command line: what it prints, what it writes, and one line for every bad input."""

import csv
import io
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import pytest
import torch

import dpmcl
from dpmcl import cli, plugins, presets
from dpmcl.study import study

TINY = """
replicas = 2
[stream]
name = "digits"
tasks = 2
[network]
name = "mlp"
hidden = 8
[training]
updates = 3
batch = 8
lr = 0.05
[methods.naive]
[methods.er]
"""
BAD_STREAM = '''
"""A stream with a value that is not a number."""

from dataclasses import dataclass

import torch

from dpmcl.labelled import from_arrays
from dpmcl.stream_settings import LabelledSettings


@dataclass(frozen=True, kw_only=True)
class Bad(LabelledSettings):
    """Twenty rows, one of them bad."""

    def read(self):
        x = torch.zeros(20, 3)
        x[7, 2] = float("nan")
        return from_arrays(x, torch.arange(20) % 2, name="bad")
'''


@dataclass
class Ran:
    """What a command left behind."""

    status: int
    out: str
    err: str


Command = Callable[..., Ran]


@pytest.fixture
def command(tmp_path, monkeypatch, capsys) -> Command:
    """Runs the command line in a folder of its own, where tiny.toml is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "tiny.toml").write_text(TINY)

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["dpmcl", *arguments])
        capsys.readouterr()
        status: object = 0
        try:
            cli.main()
        except SystemExit as end:
            status = end.code or 0
        assert isinstance(status, int)
        return Ran(status, *capsys.readouterr())

    return run


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Path:
    """A run folder. Read it, and draw into it."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "tiny.toml").write_text(TINY)
    dpmcl.run(folder / "tiny.toml", out=folder / "run")
    return folder / "run"


def subprocess_of(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def the_line(err: str) -> str:
    """The only line of a refused command."""
    assert "Traceback" not in err
    (line,) = [line for line in err.splitlines() if line.strip()]
    assert line.startswith("dpmcl: ")
    return line


# list, show, help


def test_list_mentions_everything(command):
    ran = command("list")
    assert (ran.status, ran.err) == (0, "")
    words = ran.out.split()
    for kind, plural in plugins.KINDS.items():
        assert plural in words
        for name in plugins.names(kind):
            assert name in words
            assert plugins.summary(kind, name)[:30] in ran.out
    for name in [*presets.names(), "adagrad", "sgd", "adam"]:
        assert name in words


@pytest.mark.parametrize("preset", presets.names())
def test_show_is_the_presets_text(preset, command):
    ran = command("show", preset)
    assert ran.status == 0
    assert ran.out == presets.text(preset)
    assert set(tomllib.loads(ran.out)["methods"]) <= set(plugins.names("method"))


def test_a_shown_preset_runs_from_a_file(command, tmp_path):
    (tmp_path / "mine.toml").write_text(command("show", "digits").out)
    small = ["training.updates=2", "methods.dpmcl.kappa=2", "network.hidden=4"]
    sets = [word for setting in small for word in ("--set", setting)]
    ran = command("run", "mine.toml", "--tasks", "2", "--replicas", "1", *sets)
    assert ran.status == 0
    assert "folder: runs/mine" in ran.out
    found = dpmcl.load(tmp_path / "runs" / "mine")
    assert list(found.records) == list(tomllib.loads(presets.text("digits"))["methods"])


def test_help(command):
    ran = command("--help")
    assert ran.status == 0
    for name in ("list", "show", "run", "table", "plot"):
        assert f"  {name} " in ran.out
    ran = command("run", "--help")
    for option in ("--method", "--replicas", "--seed", "--tasks", "--set", "--out", "--device"):
        assert option in ran.out


def test_help_does_not_import_torch(tmp_path):
    code = (
        "import sys; sys.argv = ['dpmcl', '--help']\n"
        "from dpmcl.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = ('torch', 'numpy', 'pyarrow', 'matplotlib', 'sklearn', 'pydantic')\n"
        "print('heavy:', *(m for m in heavy if m in sys.modules))"
    )
    ran = subprocess_of(tmp_path, "-c", code)
    assert ran.returncode == 0
    assert "Commands:" in ran.stdout
    assert ran.stdout.splitlines()[-1].strip() == "heavy:"


# run


def test_run_prints_the_table_and_writes_the_figure(command, tmp_path):
    ran = command("run", "tiny.toml")
    assert ran.status == 0
    lines = ran.out.splitlines()
    assert lines[0].split()[:3] == ["stream", "method", "replicas"]
    assert [line.split()[:3] for line in lines[2:4]] == [
        ["digits", "naive", "2"],
        ["digits", "er", "2"],
    ]
    assert lines[4:] == ["figure: runs/tiny/figures/errors.png", "folder: runs/tiny"]
    assert (tmp_path / "runs/tiny/figures/errors.png").read_bytes().startswith(b"\x89PNG")
    assert dpmcl.load(tmp_path / "runs/tiny").table() == "\n".join(lines[:4])
    assert "naive" in ran.err
    assert "er" in ran.err
    was = (tmp_path / "runs/tiny/errors.parquet").read_bytes()
    again = command("run", "tiny.toml")
    assert again.out == ran.out
    assert again.err.strip() == ""
    assert (tmp_path / "runs/tiny/errors.parquet").read_bytes() == was


def test_options_of_run(command, tmp_path):
    ran = command(
        "run", "tiny.toml", "--method", "er", "--method", "dpmcl", "--tasks", "3", "--seed", "5",
        "--replicas", "1", "--set", "training.lr=0.25", "--set", "methods.dpmcl.kappa=2",
        "--set", "training.optimiser=sgd", "--engine", "looped", "--device", "cpu",
        "--out", "here",
    )  # fmt: skip
    assert ran.status == 0
    found = dpmcl.load(tmp_path / "here")
    assert list(found.records) == ["er", "dpmcl"]
    assert found.errors["er"].seeds == (5,)
    assert found.errors["er"].tasks == found.spec["stream"]["tasks"] == 3
    assert found.spec["training"]["lr"] == 0.25
    assert found.spec["training"]["optimiser"] == "sgd"
    assert found.spec["methods"]["dpmcl"]["kappa"] == 2
    assert (found.spec["engine"], found.spec["device"]) == ("looped", "cpu")
    assert not (tmp_path / "runs").exists()


def test_run_extends_its_folder(command, tmp_path):
    assert command("run", "tiny.toml", "--method", "er", "--replicas", "1").status == 0
    ran = command("run", "tiny.toml", "--replicas", "2")
    assert ran.status == 0
    found = dpmcl.load(tmp_path / "runs" / "tiny")
    assert found.errors["er"].seeds == found.errors["naive"].seeds == (0, 1)
    refused = command("run", "tiny.toml", "--set", "training.lr=0.5")
    assert refused.status == 2
    line = the_line(refused.err)
    for word in ("runs/tiny", "training.lr", "0.05", "0.5", "--out"):
        assert word in line


# table, plot


def test_table_in_each_format(command, stored):
    result = dpmcl.load(stored)
    for style in ("text", "json", "csv", "markdown", "latex"):
        ran = command("table", str(stored), "--format", style)
        assert (ran.status, ran.err) == (0, "")
        assert ran.out == result.table(style) + "\n"
    assert command("table", str(stored)).out == result.table("text") + "\n"


def test_table_of_two_folders_with_a_metric(command, stored):
    ran = command(
        "table", str(stored), str(stored), "--format", "json", "--metric", "backward_transfer"
    )
    rows = json.loads(ran.out)
    assert [row["method"] for row in rows] == ["naive", "er", "naive", "er"]
    assert all("backward_transfer_se" in row for row in rows)
    text = command("table", str(stored), "--format", "csv", "--metric", "backward_transfer").out
    assert float(
        next(csv.DictReader(text.splitlines()))["backward_transfer_mean"]
    ) == pytest.approx(rows[0]["backward_transfer_mean"])


def test_what_is_watched_is_stored_and_drawn(command, tmp_path):
    ran = command("run", "tiny.toml", "--out", "run", "--watch", "terms,stability")
    assert ran.status == 0, ran.err
    assert "er: discount: gamma by age has no finite sum" in ran.err
    assert (tmp_path / "run" / "monitor.parquet").exists()
    for what in ("terms", "stability"):
        ran = command("plot", "run", "--what", what)
        assert ran.status == 0, ran.err
        assert (tmp_path / ran.out.strip()).name == f"{what}.png"
        assert (tmp_path / ran.out.strip()).read_bytes().startswith(b"\x89PNG")


def test_nothing_watched_is_one_line(command, stored):
    ran = command("plot", str(stored), "--what", "terms")
    assert ran.status == 2
    assert "run with --watch terms" in the_line(ran.err)
    ran = command("run", "tiny.toml", "--watch", "terms,cost")
    assert ran.status == 2
    assert "must be 'terms' or 'stability', got 'cost'" in the_line(ran.err)


@pytest.mark.parametrize(
    ("style", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_plot_in_each_format(style, magic, command, stored):
    ran = command("plot", str(stored), "--format", style, "--smooth", "0.5")
    assert (ran.status, ran.err) == (0, "")
    path = Path(ran.out.strip())
    assert path == stored / "figures" / f"errors.{style}"
    assert path.read_bytes().startswith(magic)


# bad inputs


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("run tiny.toml --method err", ["No method 'err'", "Did you mean 'er'"]),
        ("run tiny.toml --method nowhere.to:Be", ["nowhere.to:Be", "cannot be imported"]),
        ("run tiny.toml --set stream.name=digit", ["No stream 'digit'", "'digits'"]),
        ("run tiny.toml --set network=mpl", ["No network 'mpl'", "'mlp'"]),
        ("run tiny.toml --set trainin.lr=1", ["No setting 'trainin'", "'training'"]),
        ("run tiny.toml --set training.ls=1", ["No setting 'ls'", "[training]"]),
        ("run tiny.toml --set methods.er.zeta=1", ["No setting 'zeta'", "methods.er"]),
        ("run tiny.toml --set methods.dpmcl.zeta=1", ["methods.dpmcl", "--method dpmcl"]),
        ("run tiny.toml --set training.lr", ["KEY=VALUE", "'training.lr'"]),
        ("run tiny.toml --set training.lr=-0.1", ["lr", "greater than 0", "-0.1"]),
        ("run tiny.toml --set training.lr=abc", ["lr", "number", "'abc'"]),
        ("run tiny.toml --set stream.split=[0.5,0.2,0.2]", ["split", "add up to 1"]),
        ("run tiny.toml --replicas 0", ["replicas", "got 0"]),
        ("run tiny.toml --seed -1", ["seed", "got -1"]),
        ("run tiny.toml --tasks 0", ["tasks", "got 0"]),
        ("run tiny.toml --tasks 11", ["tasks", "at most 10", "got 11"]),
        ("run tiny.toml --set network=lenet", ["lenet", "8x8", "mlp"]),
        ("run tiny.toml --out tiny.toml/run", ["tiny.toml/run", "cannot be written", "--out"]),
        ("run tiny.toml --out broken", ["broken is damaged"]),
        ("run broken.toml", ["broken.toml must be TOML", "line 2"]),
        ("run nowhere.toml", ["nowhere.toml", "not there"]),
        ("run some/where", ["some/where", "not there"]),
        ("run binary.toml", ["binary.toml", "cannot be read"]),
        ("run digitz", ["digitz", "Did you mean 'digits'"]),
        ("show digitz", ["No preset 'digitz'", "Did you mean 'digits'"]),
        (
            "run mnist --set stream.download=false --set stream.root=empty",
            ["MNIST is not in empty/MNIST/raw", "stream.root"],
        ),
        ("table .", ["not a run folder", "dpmcl run"]),
        ("table nowhere", ["nowhere", "does not exist", "dpmcl run"]),
        ("table broken", ["broken is damaged"]),
        ("plot .", ["not a run folder", "dpmcl run"]),
        ("plot nowhere --format svg", ["nowhere", "does not exist"]),
        ("table STORED --metric cma", ["No metric 'cma'", "'cme'"]),
        ("plot STORED --smooth -1", ["smooth", "at least 0", "-1"]),
    ],
)
def test_bad_inputs_are_one_line_and_status_2(arguments, words, command, stored, tmp_path):
    (tmp_path / "broken.toml").write_text('replicas = 2\nstream = "digits\n')
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "spec.toml").write_text("stream = \n")
    ran = command(*arguments.replace("STORED", str(stored)).split())
    assert ran.status == 2
    assert ran.out == ""
    line = the_line(ran.err)
    for word in words:
        assert word in line
    assert not (tmp_path / "runs").exists()


def test_a_gpu_that_is_not_there(command, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    ran = command("run", "tiny.toml", "--device", "cuda")
    assert ran.status == 2
    assert "needs a CUDA GPU" in the_line(ran.err)


def test_data_that_are_not_finite(command, tmp_path, monkeypatch):
    (tmp_path / "badstream.py").write_text(BAD_STREAM)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "bad.toml").write_text('stream = "badstream:Bad"\nmethods = ["er"]\n')
    ran = command("run", "bad.toml")
    sys.modules.pop("badstream", None)
    assert ran.status == 2
    line = the_line(ran.err)
    for word in ("finite", "row 7", "nan", "(2)"):
        assert word in line
    assert not (tmp_path / "runs").exists()


def test_a_run_folder_without_results(command, stored, tmp_path):
    (tmp_path / "fresh").mkdir()
    for name in ("spec.toml", "stream.json"):
        (tmp_path / "fresh" / name).write_bytes((stored / name).read_bytes())
    for what in ("table", "plot"):
        ran = command(what, "fresh")
        assert ran.status == 2
        assert "no results yet" in the_line(ran.err)


@pytest.mark.parametrize(
    "arguments",
    [
        "run",
        "run tiny.toml --replicas many",
        "run tiny.toml --device tpu",
        "run tiny.toml --engine fast",
        "run tiny.toml --colour red",
        "table",
        "table STORED --format word",
        "plot STORED --format bmp",
        "plot STORED --smooth much",
        "paint",
    ],
)
def test_wrong_usage_is_status_2(arguments, command, stored):
    ran = command(*arguments.replace("STORED", str(stored)).split())
    assert ran.status == 2
    assert "Usage:" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", ""], ["A run starts from", "''"]),
        (["run", "tiny.toml", "--out", ""], ["needs a path"]),
        (["run", "tiny.toml", "--out", "x" * 5000], ["cannot be a path", "too long"]),
        (["run", "tiny.toml", "--method", "er,naive"], ["alone", "--method er --method dpmcl"]),
        (
            ["run", "tiny.toml", "--replicas", "1000000000"],
            ["replicas", "less than or equal to 100000"],
        ),
        (["run", "tiny.toml", "--watch", ""], ["watch[0]", "'terms' or 'stability'", "''"]),
        (["run", "two\nlines"], [r"'two\nlines'"]),
        (["run", "STORED/errors.parquet"], ["give the folder"]),
        (["run", "STORED/figures"], ["give the folder"]),
        (["table", ""], ["needs a path"]),
        (["table", "STORED/errors.parquet"], ["give the folder"]),
        (["table", "tiny.toml"], ["is a file"]),
        (["table", "two\nlines"], [r"two\nlines is not a run folder"]),
        (["table", "STORED", "--metric", "os:getcwd"], ["metric 'os:getcwd'", "fails"]),
        (["plot", ""], ["needs a path"]),
        (["plot", "STORED", "--smooth", "1e9"], ["smooth", "at most 1000"]),
        (["plot", "STORED", "--smooth", "nan"], ["smooth", "nan"]),
        (["stream", "digits", "--out", ""], ["needs a path"]),
    ],
)
def test_odd_arguments_are_one_line_and_status_2(arguments, words, command, stored, tmp_path):
    ran = command(*(text.replace("STORED", str(stored)) for text in arguments))
    assert (ran.status, ran.out) == (2, "")
    line = the_line(ran.err)
    for word in words:
        assert word in line
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.toml"]


# outputs that are not a terminal of UTF-8


@pytest.fixture(scope="module")
def named(tmp_path_factory) -> Path:
    """A run folder of classes whose names few encodings have, beside its table."""
    folder = tmp_path_factory.mktemp("named")
    rows = "".join(f"{i % 7},{('żółw', '猫', 'plain')[i % 3]}\n" for i in range(60))
    (folder / "pets.csv").write_text(f"a,k\n{rows}", "utf-8")
    few = {"stream.target": "k", "training.updates": 2, "workers": 1}
    dpmcl.run(folder / "pets.csv", methods="er", replicas=1, settings=few, out=folder / "run")
    return folder


def printed(monkeypatch, stdout: TextIO | None, *arguments: str) -> int:
    """The status of a command that prints to an output of its own."""
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(sys, "argv", ["dpmcl", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert isinstance(end.value.code, int)
    return end.value.code


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
@pytest.mark.parametrize("what", ["stream", "table"])
def test_names_that_the_encoding_lacks_are_escaped(what, encoding, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written = io.BytesIO()
    arguments = {
        "stream": ["stream", str(named / "pets.csv"), "--set", "stream.target=k"],
        "table": ["table", str(named / "run"), "--by-task"],
    }[what]
    assert printed(monkeypatch, io.TextIOWrapper(written, encoding=encoding), *arguments) == 0
    text = written.getvalue().decode(encoding, "replace")  # click writes UTF-8 where it is ASCII
    assert "plain" in text
    if encoding == "cp1252":
        assert r"\u017c" in text
        assert r"\u732b" in text


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")  # noqa: PTH110
def test_a_full_output_is_one_line(stored, monkeypatch, capsys):
    with suppress(OSError), open("/dev/full", "w") as full:  # noqa: PTH123
        assert printed(monkeypatch, full, "table", str(stored)) == 2
    assert "No space left" in the_line(capsys.readouterr().err)


def test_a_reader_that_has_gone_is_quiet(stored, monkeypatch, capsys):
    reading, writing = os.pipe()
    os.close(reading)
    with suppress(OSError), os.fdopen(writing, "w") as pipe:
        assert printed(monkeypatch, pipe, "table", str(stored)) == 1
    assert capsys.readouterr().err == ""


def test_closed_outputs_are_no_error(stored, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    assert printed(monkeypatch, None, "table", str(stored)) == 0


def test_memory_that_is_not_there_is_one_line(command, monkeypatch, stored):
    def load(_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(study, "load", load)
    ran = command("table", str(stored))
    assert ran.status == 2
    assert "memory" in the_line(ran.err)


# as a process of its own


@pytest.mark.skipif(os.name == "nt", reason="needs a limit on the size of files")
@pytest.mark.parametrize(
    ("limit", "file"), [(2_000, "00000001.safetensors"), (20_000, "errors.png")]
)
def test_a_full_disk_is_one_line_and_what_is_stored_stays(limit, file, tmp_path):
    code = (
        "import resource, sys; from dpmcl.cli import main\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        "sys.argv = 'dpmcl run tiny.toml --method er --checkpoint 0 --out run'.split(); main()"
    )
    (tmp_path / "tiny.toml").write_text(TINY)
    ran = subprocess_of(tmp_path, "-c", code)
    assert ran.returncode == 2
    line = ran.stderr.strip().splitlines()[-1]
    assert line.startswith("dpmcl: run/")
    assert f"{file} cannot be written" in line
    assert "File too large" in line
    assert "Traceback" not in ran.stderr
    assert list(dpmcl.load(tmp_path / "run").records) == (["er"] if file == "errors.png" else [])
    assert not list(tmp_path.rglob("*.tmp-*"))


def test_the_module_runs(tmp_path):
    (tmp_path / "tiny.toml").write_text(TINY)
    ran = subprocess_of(tmp_path, "-m", "dpmcl", "run", "tiny.toml", "--method", "er")
    assert ran.returncode == 0
    assert "Traceback" not in ran.stderr
    assert ran.stdout.splitlines()[-1] == "folder: runs/tiny"
    assert ran.stdout.splitlines()[2].split()[:3] == ["digits", "er", "2"]


def test_the_module_refuses(tmp_path):
    ran = subprocess_of(tmp_path, "-m", "dpmcl", "run", "digits", "--method", "err")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert (
        the_line(ran.stderr) == "dpmcl: No method 'err'. Did you mean 'er'? `dpmcl list` shows all."
    )


def test_a_stream_is_shown_and_drawn(command, tmp_path):
    ran = command("stream", "digits", "--tasks", "3", "--out", "sheet.png")
    assert ran.status == 0
    assert "classification, 3 tasks, 537 rows, inputs (1, 8, 8) float32, 10 outputs" in ran.out
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")


def test_an_unknown_stream_to_show(command):
    ran = command("stream", "digit")
    assert ran.status == 2
    assert "Did you mean 'digits'?" in the_line(ran.err)


@pytest.mark.parametrize("out", ["sheet.bmp", "tiny.toml/sheet.png"])
def test_a_picture_that_was_asked_for_and_cannot_be_is_status_2(out, command, tmp_path):
    ran = command("stream", "digits", "--tasks", "2", "--out", out)
    assert ran.status == 2
    assert "sheet" in the_line(ran.err)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.toml"]
