"""The README's code runs as printed."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def code(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text("utf-8"), re.DOTALL)


def test_a_method_of_ones_own(tmp_path):
    (source,) = [block for block in code("python") if "class Replay" in block]
    (tmp_path / "replay.py").write_text(source)
    (command,) = [line for line in "".join(code("sh")).split("\n") if "replay:Replay" in line]
    arguments = command.split("#")[0].split()[1:]
    small = ["--replicas", "1", "--tasks", "2", "--set", "training.updates=3"]
    main = "import sys; from dpmcl.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", main, *arguments, *small],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "replay:Replay" in done.stdout


def test_files_that_it_names_are_there():
    for target in re.findall(r"\]\(([^)#]+)\)", README.read_text("utf-8")):
        assert (README.parent / target).exists(), target
