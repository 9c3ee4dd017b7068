"""The documentation's notebooks run from top to bottom, and a progress bar is one output."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from dpmcl.study import bars

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs/notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path):
    pytest.importorskip("sklearn")
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "stored without outputs"
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=600, resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert len(outputs) < 20
    stderr = "".join(output["text"] for output in outputs if output.get("name") == "stderr")
    assert stderr == "" or stderr.endswith("learner.undo() takes it back.\n")


def test_a_notebook_without_widgets_is_told_so_once(monkeypatch, caplog):
    monkeypatch.setattr(bars.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(bars, "console", lambda: SimpleNamespace(is_jupyter=True))
    with bars.bars() as report:
        report("er", 1, 2)
        report("er", 2, 2)
    assert [record.message for record in caplog.records] == [
        "A progress bar in a notebook needs ipywidgets: pip install ipywidgets"
    ]
