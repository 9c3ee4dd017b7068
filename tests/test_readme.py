"""The README's code runs as printed, and prints the README's output."""

import re
import shlex
from pathlib import Path

from python_process import PythonProcess

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")


def code(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def output_of(folder: Path, *arguments: str) -> str:
    ended = PythonProcess(*arguments, folder=folder).end()
    assert ended.status == 0, ended.err
    return ended.out


def test_a_method_of_ones_own(tmp_path):
    (source,) = [block for block in code("python") if "class Mine" in block]
    (tmp_path / "mine.py").write_text(source)
    commands = [line for line in "".join(code("sh")).split("\n") if "mine:Mine" in line]
    assert len(commands) == 2
    small = ["--replicas", "1", "--tasks", "2", "--set", "training.updates=3"]
    for command in commands:
        words = shlex.split(command, comments=True)[1:]
        assert "mine:Mine" in output_of(tmp_path, "-m", "dpmcl", *words, *small)


def test_data_of_ones_own(command, tmp_path):
    (source,) = [block for block in code("python") if "load_wine" in block]
    (tmp_path / "wine.py").write_text(source)
    output_of(tmp_path, "wine.py")
    (session,) = re.findall(r"^```\n(\$ .*?)^```$", README, re.DOTALL | re.MULTILINE)
    shown, ran = (part.split("\n", 1) for part in session.split("$ dpmcl ")[1:])
    assert command(*shown[0].split()).out == shown[1]
    out = command(*ran[0].split(), "--replicas", "1").out.split("\n")
    rows = [line.split() for line in ran[1].strip().split("\n")]
    assert out[0].split() == rows[0]
    for line, row in zip(out[2:6], rows[2:], strict=True):
        assert [line.split()[i] for i in (0, 1, -2, -1)] == [row[i] for i in (0, 1, -2, -1)]


def test_commands_and_options_that_it_names_exist(command):
    names = set(re.findall(r"^dpmcl (\w+)", "".join(code("sh")), re.MULTILINE))
    assert len(names) > 5
    for name in names:
        options = set(re.findall(rf"dpmcl {name}\b[^#\n]*", README))
        text = command(name, "--help").out
        assert set(re.findall(r"--[a-z][a-z-]+", " ".join(options))) <= {
            *re.findall(r"--[\w-]+", text)
        }


def test_the_picture_is_that_of_the_stored_results(command, tmp_path):
    """The command is that of results/README.md; another version of matplotlib moves a few dots."""
    from matplotlib.image import imread

    root = Path(__file__).parents[1]
    command("plot", root / "results/digits", "--out", tmp_path / "digits.png")
    drawn, expected = imread(tmp_path / "digits.png"), imread(root / "docs/figures/digits.png")
    assert drawn.shape == expected.shape
    assert abs(drawn - expected).mean() < 0.01
