"""A method has one bar, however often its jobs report that they begin."""

import io
import random
import sys

from rich.console import Console

from dpmcl.study import bars


def test_a_method_has_one_bar_until_it_is_full(monkeypatch):
    out = io.StringIO()
    console = Console(file=out, width=100)
    monkeypatch.setattr(bars, "console", lambda: console)
    with bars.bars() as report:
        for done in (0, 0, 3, 0, 6):  # two jobs; the second begins after reports of the first
            report("er", done, 6)
        report("er", 0, 6)  # the next run of a search
        report("none", 0, 0)
        report("none", 0, 0)
    lines = out.getvalue().splitlines()
    assert [line.split()[0] for line in lines if line] == ["er", "er", "none"]
    assert ["100%" in line for line in lines if line][:2] == [True, False]


def test_the_first_console_leaves_pythons_generator_alone(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    before = random.getstate()
    bars.console.__wrapped__()
    assert random.getstate() == before
