"""Words in quotation marks are the paper's, to the letter.

    DPMCL_PAPER=FILE python -m pytest tests/test_quotations.py

FILE is the paper's LaTeX source. Skipped without it.
"""

import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
READ = ("reading-the-paper.md", "theory.md", "theory_results.md")
SOURCES = ROOT / "src" / "dpmcl"
PAGES = sorted(
    [
        *(ROOT / "docs" / name for name in READ),
        *SOURCES.glob("presets/paper-*.toml"),
        *(
            page
            for wing in ("methods", "theory", "discounts", "optimisers")
            for page in SOURCES.glob(f"{wing}/*.py")
        ),
        *SOURCES.glob("streams/[_os]*.py"),
        *SOURCES.rglob("gradients.py"),
        *SOURCES.rglob("step_size.py"),
        SOURCES / "metrics" / "cme.py",
    ]
)


def plain(latex: str) -> str:
    """Convert LaTeX to our pages' form: theta~_2 for a tilde over theta, no dollars, no braces."""
    text = re.sub(r"(?<!\\)%.*", " ", latex).replace("~", " ").replace("\\%", "%")
    text = re.sub(r"\\tilde\{\\vect\{\\theta\}\}", "theta~", text)
    text = re.sub(r"\\c([DTXY])(?![a-zA-Z])", r"\1", text).replace("\\in ", "in ")
    text = re.sub(r"\\(vect|hat|text\w*|emph|noindent)(?![a-zA-Z])", "", text)
    text = re.sub(r"\\([a-zA-Z]+)", r"\1", text)
    return normalised(re.sub(r"[${}]|\\[ ,;]?", "", text))


def normalised(text: str) -> str:
    return " ".join(text.casefold().split())


def quotations(text: str, code: bool) -> list[str]:
    """Texts with a space in double quotes; in code, only from docstrings and comments."""
    if code:
        docstrings = re.findall(r'"""(.*?)"""', text, re.DOTALL) + re.findall(r"#(.*)", text)
        text = "\n\n".join(docstrings)
    else:
        text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        text = re.sub(r"`[^`\n]*`|^    .*$", "", text, flags=re.MULTILINE)
    quoted = re.findall(r'"([^"\n]*(?:\n[^"\n]+)?)"', text)
    return [normalised(words) for words in quoted if " " in words.strip()]


def test_latex_is_read_as_our_pages_write_it():
    latex = r"Update~$\vect{\theta}(k)$ by  $\tilde{\vect{\theta}}_{2}$, $x_{N} \in \cD_N(k)$, 6 \%"
    assert plain(f"{latex} % not this") == "update theta(k) by theta~_2, x_n in d_n(k), 6 %"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_quotations_are_the_papers_words(page):
    if "DPMCL_PAPER" not in os.environ:
        pytest.skip("the paper's LaTeX source is not here: set DPMCL_PAPER")
    paper = plain(Path(os.environ["DPMCL_PAPER"]).read_text("utf-8"))
    quoted = quotations(page.read_text("utf-8"), page.suffix != ".md")
    assert len(quoted) > 3 or page.name != "reading-the-paper.md"
    for words in quoted:
        assert words in paper, words
