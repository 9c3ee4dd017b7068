"""Settings are checked at the door, with one line that says the rule and what came."""

import dataclasses
import sys
from dataclasses import dataclass
from typing import Literal

import pytest

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
class Nothing(Settings):
    pass


def complaint(**settings) -> str:
    with pytest.raises(SpecError) as caught:
        Example(**settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"steps": 0}, "steps must be greater than or equal to 1, got 0."),
        ({"extra": -1}, "extra must be greater than or equal to 0, got -1."),
        ({"lr": 0}, "lr must be greater than 0, got 0."),
        ({"lr": -0.1}, "lr must be greater than 0, got -0.1."),
        ({"lr": float("nan")}, "lr must be a finite number, got nan."),
        ({"lr": float("inf")}, "lr must be a finite number, got inf."),
        ({"decay": 1.0}, "decay must be less than 1, got 1.0."),
        ({"decay": -0.5}, "decay must be greater than or equal to 0, got -0.5."),
        ({"term": "exakt"}, "term must be 'exact' or 'detached', got 'exakt'."),
    ],
)
def test_a_broken_rule_is_said_in_one_line(settings, line):
    assert complaint(**settings) == line


@pytest.mark.parametrize(
    ("settings", "start", "came"),
    [
        ({"steps": 1.5}, "steps must be a valid integer", "1.5"),
        ({"steps": "many"}, "steps must be a valid integer", "'many'"),
        ({"steps": None}, "steps must be a valid integer", "None"),
        ({"lr": "fast"}, "lr must be a valid number", "'fast'"),
        ({"lr": [0.1]}, "lr must be a valid number", "[0.1]"),
        ({"name": 3}, "name must be a valid string", "3"),
        ({"on": "perhaps"}, "on must be a valid boolean", "'perhaps'"),
        ({"shares": 1}, "shares must be a list", "1"),
    ],
)
def test_a_wrong_type_is_said_in_one_line(settings, start, came):
    line = complaint(**settings)
    assert line.startswith(start)
    assert line.endswith(f"got {came}.")


def test_a_wrong_item_of_a_list_is_pointed_at():
    line = complaint(shares=(0.5, "half"))
    assert line.startswith("shares[1] must be a valid number")
    assert line.endswith("got 'half'.")


@pytest.mark.parametrize(
    "settings",
    [{"steps": 1}, {"extra": 0}, {"lr": 1e-300}, {"decay": 0.0}, {"decay": 0.999}],
)
def test_a_value_on_the_bound_is_taken(settings):
    (name, value), *_ = settings.items()
    assert getattr(Example(**settings), name) == value


def test_a_whole_number_is_taken_for_a_real_one():
    lr = Example(lr=1).lr
    assert lr == 1
    assert isinstance(lr, float)


def test_a_toml_list_is_taken_for_a_tuple():
    assert Example.from_table({"shares": [0.2, 0.8]}, "[x]").shares == (0.2, 0.8)


def test_settings_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Example().steps = 3


def test_the_errors_are_the_packages_own_and_value_errors():
    with pytest.raises(ValueError) as caught:
        Example(steps=0)
    assert isinstance(caught.value, DpmclError)


def test_a_table_with_an_unknown_key_names_the_close_one():
    with pytest.raises(SpecError) as caught:
        Example.from_table({"step": 3}, "[training]")
    assert str(caught.value) == (
        "No setting 'step'. Did you mean 'steps'? In [training]. "
        "It has: steps, extra, lr, decay, term, name, shares, on."
    )


def test_a_table_with_a_key_like_no_other_gets_no_guess():
    with pytest.raises(SpecError) as caught:
        Example.from_table({"zzz": 3}, "[training]")
    assert "Did you mean" not in str(caught.value)
    assert "It has: steps" in str(caught.value)


def test_a_table_without_settings_says_so():
    with pytest.raises(SpecError, match="It has no settings"):
        Nothing.from_table({"steps": 3}, "[metrics]")


def test_a_table_with_a_broken_rule_is_named():
    with pytest.raises(SpecError) as caught:
        Example.from_table({"lr": 0}, "[training]")
    assert str(caught.value) == "[training] lr must be greater than 0, got 0."


def test_a_table_comes_back_as_it_was():
    table = {"steps": 3, "extra": 2, "lr": 0.2, "decay": 0.1, "term": "detached"}
    table |= {"name": "x", "shares": [0.1, 0.9], "on": True}
    assert Example.from_table(table, "[x]").to_table() == table


def test_none_is_left_out_of_a_table():
    assert "name" not in Example().to_table()
    assert Example.from_table(Example().to_table(), "[x]") == Example()


def test_a_settings_error_of_a_method_names_its_own_settings():
    with pytest.raises(SpecError, match=r"zeta must be .*got -1\."):
        plugins.find("method", "dpmcl")(zeta=-1)


def test_every_kind_finds_what_its_folder_holds():
    assert {"dpmcl", "er", "joint", "naive"} <= set(plugins.names("method"))
    assert {"digits", "mnist"} <= set(plugins.names("stream"))
    assert {"lenet", "mlp", "omninet", "sinenet"} <= set(plugins.names("network"))
    assert {"cme", "nte"} <= set(plugins.names("metric"))


@pytest.mark.parametrize("kind", list(plugins.KINDS))
def test_every_plugin_is_found_and_says_in_one_line_what_it_is(kind):
    for name in plugins.names(kind):
        assert callable(plugins.find(kind, name))
        assert len(plugins.summary(kind, name)) > 10


def test_an_unknown_name_gets_a_guess():
    with pytest.raises(SpecError) as caught:
        plugins.find("method", "dpmc")
    assert str(caught.value) == ("No method 'dpmc'. Did you mean 'dpmcl'? `dpmcl list` shows all.")


def test_a_name_of_another_kind_is_unknown():
    with pytest.raises(SpecError, match="No stream 'er'"):
        plugins.find("stream", "er")


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    name = "a_module_of_somebody_else"
    (tmp_path / f"{name}.py").write_text("class Mine:\n    pass\n")
    yield name
    sys.modules.pop(name, None)


def test_a_thing_in_any_module_is_found(own_module):
    found = plugins.find("metric", f"{own_module}:Mine")
    assert (found.__name__, found.__module__) == ("Mine", own_module)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("method", "math:pi"),
        ("method", "dpmcl.methods._method:Method"),
        ("method", "dpmcl.streams.digits:Digits"),
        ("stream", "dpmcl.methods.er:ER"),
        ("network", "math:pi"),
        ("metric", "math:pi"),
    ],
)
def test_a_thing_of_the_wrong_kind_is_refused(kind, name):
    with pytest.raises(SpecError, match=rf"{kind} '{name}' must be a "):
        plugins.find(kind, name)


def test_a_relative_module_is_refused():
    with pytest.raises(SpecError, match="cannot be imported"):
        plugins.find("method", ".x:Y")


def test_a_switch_is_no_number():
    with pytest.raises(SpecError, match="updates must be a number, got True"):
        plugins.find("method", "er")(updates=True)


def test_a_name_that_a_module_lacks_is_said(own_module):
    with pytest.raises(SpecError) as caught:
        plugins.find("stream", f"{own_module}:Yours")
    assert str(caught.value).startswith(f"stream '{own_module}:Yours' cannot be imported: ")
    assert "Yours" in str(caught.value).split("imported: ")[1]


@pytest.mark.parametrize("name", ["no_such_module_anywhere:X", ":X", "math:"])
def test_a_module_that_cannot_be_imported_is_said(name):
    with pytest.raises(SpecError) as caught:
        plugins.find("network", name)
    assert str(caught.value).startswith(f"network '{name}' cannot be imported: ")


def test_nothing_is_imported_before_it_is_asked_for(own_module):
    plugins.names("method")
    assert own_module not in sys.modules
