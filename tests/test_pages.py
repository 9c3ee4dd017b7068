"""Figures in the documentation are those of the results that are stored."""

from pathlib import Path

import pytest
from cogapp import Cog

from dpmcl.results import report, store

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("page", ["comparison.md", "reading-the-paper.md"])
def test_the_tables_of_a_page_are_those_of_the_results(
    page: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = ROOT / "docs" / page
    assert "[[[cog" in path.read_text("utf-8")
    monkeypatch.chdir(ROOT)
    words = ["--check", "--diff", "-P", "-I", ".", "-p", "from benchmarks import evidence"]
    status = Cog().main(["cog", *words, str(path)])
    assert status == 0, f"run `make pages`: {capsys.readouterr()}"


def test_the_page_of_results_is_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its figures, which are files of their own; test_report.py draws some."""
    monkeypatch.setattr(report, "_svg", lambda caption, figure: "")
    folders = sorted((ROOT / "results" / "table1").iterdir())
    runs = {str(folder.relative_to(ROOT)): store.load(folder) for folder in folders}
    page = report.markdown(runs, "dpmcl", stem="results")["results.md"]
    assert page == (ROOT / "docs" / "results.md").read_text("utf-8"), "run `make pages`"


def test_every_stored_run_kept_the_rules_of_a_fair_comparison() -> None:
    folders = [path.parent for path in (ROOT / "results").rglob("errors.parquet")]
    assert len(folders) > 2
    for folder in folders:
        protocol = store.load(folder).protocol
        assert protocol is not None, folder
        assert not [rule.rule for rule in protocol.rules if rule.violations], folder
