"""The code of the tutorials runs as printed, from top to bottom."""

import re
from pathlib import Path

import pytest

from python_process import PythonProcess

TUTORIALS = sorted((Path(__file__).parents[1] / "docs/tutorials").glob("*.md"))


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_runs(page, tmp_path):
    pytest.importorskip("sklearn")
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    (tmp_path / f"{page.stem}_tutorial.py").write_text("\n".join(blocks))
    ended = PythonProcess(f"{page.stem}_tutorial.py", folder=tmp_path).end(600)
    assert ended.status == 0, ended.err
