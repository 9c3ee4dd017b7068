"""Files, figures, settings and tests that the documentation names exist."""

import re
from pathlib import Path

import pytest

import dpmcl

ROOT = Path(__file__).parents[1]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md"), ROOT / "benchmarks/README.md"])
THEORY = ("theory", "theory_results")
TESTS = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^def test_(\w+)", path.read_text("utf-8"), re.MULTILINE)
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_figures_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8")):
        assert "://" in target or (page.parent / target).exists(), target


def test_every_statement_of_the_theory_names_a_test_that_is_there():
    text = "".join((ROOT / "docs" / f"{page}.md").read_text("utf-8") for page in THEORY)
    cited = {name for name in re.findall(r"`([a-z0-9_]+)`", text) if name.count("_") > 3}
    assert len(cited) > 5
    assert cited <= TESTS, cited - TESTS
    for file in re.findall(r"`(?:tests/)?(test_\w+\.py)`", text):
        assert list((ROOT / "tests").rglob(file)), file
    for script in re.findall(r"(benchmarks/\w+\.(?:py|json))", text):
        assert (ROOT / script).exists(), script


def test_the_reference_has_every_public_name():
    page = (ROOT / "docs/api.md").read_text("utf-8")
    named = set(re.findall(r"^\.\. auto\w+:: dpmcl\.(\w+)$", page, re.MULTILINE))
    assert named == set(dpmcl.__all__)
