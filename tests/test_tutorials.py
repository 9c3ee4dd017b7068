"""The code of the tutorials runs as printed, from top to bottom."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("one_core")

TUTORIALS = sorted((Path(__file__).parents[1] / "docs/tutorials").glob("*.md"))


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_runs(page, tmp_path):
    pytest.importorskip("sklearn")
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    (tmp_path / f"{page.stem}_tutorial.py").write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, f"{page.stem}_tutorial.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
