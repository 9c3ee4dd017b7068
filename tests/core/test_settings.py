"""Settings are checked when they are made, with one line that says the rule and what came."""

import dataclasses
import sys
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

import pytest

from conftest import complaint
from dpmcl import plugins
from dpmcl.core.settings import NonNegative, Positive, Rate, Settings, Share
from dpmcl.exceptions import DpmclError, SpecError


@dataclass(frozen=True, kw_only=True)
class Example(Settings):
    steps: Positive = 10
    extra: NonNegative = 0
    lr: Rate = 0.1
    decay: Share = 0.5
    term: Literal["exact", "detached"] = "exact"
    name: str | None = None
    shares: tuple[float, ...] = (0.5, 0.5)
    on: bool = False


@dataclass(frozen=True, kw_only=True)
class Needing(Settings):
    path: str
    made: int = dataclasses.field(default=3, init=False)


@dataclass(frozen=True, kw_only=True)
class Nothing(Settings):
    pass


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"steps": 0}, "steps must be greater than or equal to 1, got 0."),
        ({"lr": 0}, "lr must be greater than 0, got 0."),
        ({"lr": float("nan")}, "lr must be a finite number, got nan."),
        ({"decay": 1.0}, "decay must be less than 1, got 1.0."),
        ({"term": "exakt"}, "term must be 'exact' or 'detached', got 'exakt'."),
        ({"steps": 1.5}, "steps must be a valid integer*, got 1.5."),
        ({"steps": True}, "steps must be a number, got True."),
        ({"name": 3}, "name must be text in quotes ('\"...\"' in a shell), got 3."),
        ({"shares": 1}, "shares must be a list*, got 1."),
        ({"shares": (0.5, "half")}, "shares[1] must be a valid number*, got 'half'."),
        ({"step": 3}, "No setting 'step'. Did you mean 'steps'? In [x] there are: steps, extra, *"),
    ],
)
def test_a_broken_rule_is_one_line(settings, line):
    message = complaint(Example.from_table, settings, "[x]", error=SpecError)
    assert fnmatchcase(message.removeprefix("[x] "), line.replace("[", "[[]"))
    assert issubclass(SpecError, ValueError) and issubclass(SpecError, DpmclError)


class Longer(Example):
    steps: Positive = 20


@dataclass(frozen=True, kw_only=True)
class Slower(Example):
    lr = 0.01


@dataclass(frozen=True, kw_only=True)
class Shorter(Example):
    steps: Positive = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Slotted(Example):
    steps: Positive = 5


class Unchanged(Shorter):
    pass


@pytest.mark.parametrize(("cls", "name"), [(Longer, "steps"), (Slower, "lr")])
def test_a_default_that_would_have_no_effect_is_refused(cls, name):
    message = complaint(cls, error=SpecError)
    assert message.startswith(f"{name} of class {cls.__name__} must be a field")
    assert [other().steps for other in (Shorter, Slotted, Unchanged)] == [5, 5, 5]


def test_other_tables():
    for cls, table, message in (
        (Nothing, {"steps": 3}, "there are: none"),
        (Needing, {}, "needs the setting 'path', got none"),
        (Needing, {"made": 3}, "No setting 'made'"),
    ):
        assert message in complaint(cls.from_table, table, "[x]", error=SpecError)


def test_values_are_taken_and_converted():
    bounds = {"steps": 1, "extra": 0, "lr": 1e-300, "decay": 0.0}
    assert Example(**bounds).to_table().items() >= bounds.items()
    assert type(Example(lr=1).lr) is float
    assert Example.from_table({"shares": [0.2, 0.8]}, "[x]").shares == (0.2, 0.8)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Example().steps = 3  # type: ignore[misc]
    table = {"steps": 3, "extra": 2, "lr": 0.2, "decay": 0.1, "term": "detached"}
    table |= {"name": "x", "shares": [0.1, 0.9], "on": True}
    assert Example.from_table(table, "[x]").to_table() == table
    assert "name" not in Example().to_table()
    assert Example.from_table(Example().to_table(), "[x]") == Example()


def test_a_thing_in_any_module_is_found_and_imported_when_asked_for(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "somebody_else.py").write_text("class Mine:\n    pass\n")
    plugins.names("method")
    assert "somebody_else" not in sys.modules
    metric = plugins.find("metric", "somebody_else:Mine")
    assert (metric.__name__, metric.__module__) == ("Mine", "somebody_else")
    with pytest.raises(SpecError, match=r"Yours. cannot be imported: .*Yours"):
        plugins.find("stream", "somebody_else:Yours")
    del sys.modules["somebody_else"]
