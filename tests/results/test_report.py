"""The report, as text and in a browser without a network."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from test_theory_figures import readings

from conftest import random_record
from dpmcl.core.gradients import Work
from dpmcl.exceptions import DpmclError, SpecError
from dpmcl.results.record import Divergence, Record, select_seeds
from dpmcl.results.store import Protocol, Rule, Stored, StreamInfo

pytest.importorskip("matplotlib")

from dpmcl.results import report
from dpmcl.results.report import html, markdown

TASKS, SEEDS = 4, tuple(range(9))
NASTY = "<script>alert('er')</script> & $x_1$"


def record(entropy: int, level: float) -> Record:
    base = random_record(entropy, replicas=9, tasks=TASKS, low=level, high=level + 0.1)
    work = dict.fromkeys(SEEDS, Work(12, 3_456, 7, 8, 90_000))
    return replace(base, work=work, diverged={3: Divergence(1, 0, 5)} if level > 0.5 else {})


PROTOCOL = Protocol(
    "rows=320", [Rule("Same test rows", []), Rule("Within rows=320", ["er: it took 800 rows."])]
)


def stored(lr: float, *, stream: str = "toy", **records: Record) -> Stored:
    spec = {"replicas": 9, "seed": 0, "stream": {"name": stream}, "training": {"lr": lr}}
    spec["methods"] = {name: {} for name in records}
    names = tuple("0123")
    info = StreamInfo(stream, "classification", names, names)
    return Stored(spec, info, records, [{"torch": "2.11"}], PROTOCOL if lr == 0.1 else None)


@pytest.fixture(scope="module")
def page() -> str:
    first = stored(0.1, er=record(0, 0.1), naive=record(1, 0.8), **{NASTY: record(2, 0.4)})
    runs = {"runs/a": first, "runs/b": stored(0.5, er=record(3, 0.3))}
    return html(runs)


def test_a_report_says_what_was_asked_what_came_out_and_what_it_cost(page: str) -> None:
    for part in (
        "dpmcl run runs/b/spec.toml --out again/b",
        "er (lr 0.5)",
        "Wilcoxon",
        "3,456",
        "90,000",
        ">2.11</td>",
        "er: it took 800 rows.",
        "Not checked: runs/b",
        "<svg",
    ):
        assert part in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "<script>alert" not in page


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the figures of reports, which take most of the time."""
    monkeypatch.setattr(report, "_figures", lambda entries: None)


@pytest.mark.usefixtures("without_figures")
def test_a_report_repeats_the_seeds_of_each_method() -> None:
    """A run that was extended or merged has the spec of its last call."""
    run = stored(0.1, er=record(0, 0.1), naive=record(1, 0.2))
    page = markdown({"a": run})["report.md"]
    assert "er, naive on toy, 4 tasks, 9 replicas from seed 0. Repeat it with: dpmcl run" in page
    assert "--method" not in page
    few = {"er": run.records["er"], "naive": select_seeds(run.records["naive"], {2, 5, 6})}
    last = replace(run, spec={**run.spec, "seed": 2, "replicas": 1}, records=few)
    page = markdown({"a": last})["report.md"]
    assert "a: naive on toy, 4 tasks, 1 replica from seed 2." in page
    assert "run a/spec.toml --method naive --seed 5 --replicas 2 --out again/a" in page
    for spec in ({"stream": {"name": "python"}}, {"methods": {"strong": {"method": "__main__:A"}}}):
        in_python = replace(run, spec={**run.spec, **spec})
        assert "made in Python" in markdown({"a": in_python})["report.md"]


def test_what_cannot_be_reported_is_refused() -> None:
    with pytest.raises(DpmclError, match="no results to report"):
        html({"a": stored(0.1)})
    runs = {"a": stored(0.1, er=record(0, 0.1), naive=record(1, 0.8))}
    with pytest.raises(SpecError, match="method to compare with"):
        html(runs, against="dpmcl")


def test_a_page_of_markdown_has_the_same_and_its_figures():
    runs = {"a": stored(0.1, er=record(0, 0.1), naive=record(1, 0.8))}
    runs["a"].records["er"] = replace(runs["a"].records["er"], readings=readings())
    files = markdown(runs, stem="results")
    page = files["results.md"]
    assert list(files) == ["results.md", *(f"results-{k}.svg" for k in range(1, 5))]
    assert "![toy: stability as monitored](results-4.svg)" in page
    assert "CME on test rows:" in page
    assert "| toy | er | 9 | 0 | 0.1" in page and "](results-1.svg)" in page
    assert "| a | Same test rows | held | - |" in page
    assert "| a | Within rows=320 | not held | er: it took 800 rows. |" in page
    runs["a"].records["er"] = replace(runs["a"].records["er"], readings=None)
    runs["a"].spec["evaluation"] = {"held_out": 0.25}
    again = markdown(runs, stem="results")  # draws the first two figures to the same bytes
    assert len(again) == 3
    assert "CME on rows held out:" in again["results.md"]
    assert all(files[f"results-{k}.svg"] == again[f"results-{k}.svg"] for k in (1, 2))


@pytest.mark.usefixtures("without_figures")
def test_results_on_the_papers_streams_stand_beside_the_papers():
    ours = {
        name: record(i, level) for i, (name, level) in enumerate({"er": 0.1, "dpmcl": 0.4}.items())
    }
    page = markdown({"a": stored(0.1, stream="mnist", **ours)})["report.md"]
    assert "| mnist | dpmcl | CME | 0.020(0.001) | 0.45" in page
    assert "| mnist: DPMCL has the lowest CME | no | er 0.1" in page
    zetas = {}
    for zeta in (0, 2, 20):
        run = stored(0.1, stream="omniglot", dpmcl=record(zeta, 0.5 - zeta / 50))
        run.spec["methods"]["dpmcl"] = {"zeta": zeta, "kappa": 200}
        zetas[f"zeta={zeta}"] = run
    page = markdown(zetas)["report.md"]
    assert "| omniglot: CME is best with zeta = 20 | yes | zeta 20 0.1" in page
    assert "| omniglot: CME falls as kappa grows | not run |" in page


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = os.environ.get("DPMCL_CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        reason = "needs chromium: install it, or name it in DPMCL_CHROMIUM"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


def test_a_browser_shows_sorts_and_prints_it(page: str, browser, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page, "utf-8")
    for width in (1400, 400):
        tab = browser.new_page(viewport={"width": width, "height": 900}, offline=True)
        messages: list[str] = []
        tab.on("console", lambda message, messages=messages: messages.append(message.text))
        tab.on("pageerror", lambda error, messages=messages: messages.append(str(error)))
        tab.goto(file.as_uri())
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert tab.locator("svg").first.bounding_box()["width"] <= width
        table = tab.get_by_role("table", name="CME on test rows")
        table.get_by_role("button", name="mean").focus()
        for key, order in (("Enter", 1), ("Enter", -1)):  # by the keyboard
            tab.keyboard.press(key)
            means = [float(text) for text in table.locator("td:nth-child(5)").all_inner_texts()]
            assert means == sorted(means, reverse=order < 0) and len(means) == 4
        assert table.locator("th[aria-sort=descending]").count() == 1
        assert not messages
    assert tab.pdf().startswith(b"%PDF")
