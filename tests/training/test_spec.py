"""Specs: short forms, completeness, overrides, and one line for whatever is wrong."""

import tomllib
from typing import Any

import pytest
import tomli_w

from conftest import complaint, refused
from dpmcl import presets
from dpmcl.exceptions import SpecError
from dpmcl.methods._method import Method
from dpmcl.study.api import Request
from dpmcl.training.spec import (
    Spec,
    nested_entry,
    normalised,
    parse_assignment,
    parse_toml,
    with_changes,
)

BASE: dict[str, Any] = {"stream": "digits", "methods": ["er"]}


def override(table: dict[str, Any], text: str) -> dict[str, Any]:
    return with_changes(table, parse_assignment(text))


def test_a_name_is_short_for_a_table():
    assert normalised(BASE) == {"stream": {"name": "digits"}, "methods": {"er": {}}}
    assert BASE == {"stream": "digits", "methods": ["er"]}
    text = '[stream]\nname="digits"\n[network]\nname="mlp"\n[methods.naive]\n[methods.er]\n'
    short = {"stream": "digits", "network": "mlp", "methods": ["naive", "er"]}
    spec = Spec.parse(parse_toml(text, "the test"))
    assert Spec.parse(short) == spec
    assert (spec.stream_name, spec.network_name) == ("digits", "mlp")
    assert list(spec.methods) == ["naive", "er"]
    assert list(Spec.parse({**BASE, "methods": ["er", "naive"]}).methods) == ["er", "naive"]
    assert list(Spec.parse({**BASE, "methods": "er"}).methods) == ["er"]
    assert Spec.parse({**BASE, "seed": 7, "replicas": 3}).seeds == (7, 8, 9)
    assert Spec.parse({**BASE, "stream": "mnist"}).network_name == "lenet"


def test_to_table_is_complete_and_reads_back():
    spec = Spec.parse(
        {
            "stream": {"name": "digits", "tasks": 3},
            "training": {"lr": 0.5, "optimiser": {"name": "sgd", "momentum": 0.9}},
            "methods": {"naive": {}, "er": {"lr": 0.1}, "joint": {"budget": "task", "updates": 7}},
        }
    )
    table = spec.to_table()
    unset = {"passes", "cost"}  # None, which TOML cannot say
    assert list(table["training"]) == [name for name in Method.names() if name not in unset]
    assert table["training"]["memory_policy"] == "reservoir"
    assert table["evaluation"] == {
        "train": False, "future": False, "evaluate_every": 1, "predictions": False,
        "confusion": False, "arriving": False,
    }  # fmt: skip
    assert table["network"] == {"name": "mlp", "hidden": 100}
    assert table["stream"]["split"] == [0.6, 0.2, 0.2]
    assert table["methods"] == {
        "naive": {}, "er": {"lr": 0.1}, "joint": {"budget": "task", "updates": 7},
    }  # fmt: skip
    assert [spec.methods[name].lr for name in table["methods"]] == [0.5, 0.1, 0.5]
    again = Spec.parse(tomllib.loads(tomli_w.dumps(table)))
    assert (again.methods, again.stream, again.network) == (
        spec.methods, spec.stream, spec.network,
    )  # fmt: skip
    assert again.to_table() == table
    assert again.methods["joint"].rule.momentum == 0.9


@pytest.mark.parametrize("name", presets.names())
def test_presets_hold_what_differs_from_the_defaults(name):
    text = presets.text(name)
    assert text.startswith(f"# {presets.summary(name)}\n")
    assert presets.summary(name).endswith(".")
    table = parse_toml(text, name)
    assert not {"monitor", "evaluation", "device", "engine"} & set(table)
    complete = Spec.parse(table).to_table()
    assert list(complete["methods"]) == list(normalised(table)["methods"])
    if not name.startswith("paper-"):  # these name what the paper states, defaults too
        for part in ("training", "network"):
            for key in table.get(part, {}):
                less = {**table, part: {k: v for k, v in table[part].items() if k != key}}
                assert Spec.parse(less).to_table() != complete, key


def test_a_setting_that_is_none_is_read_back_as_none():
    methods = {
        "la_maml": {"clip": None},
        "er": {"passes": None, "cost": None},
        "ewc": {"fisher_rows": "none"},
    }
    table = {
        "stream": {"name": "lorenz", "tasks": None},
        "training": {"passes": 2, "cost": "huber"},
    }
    spec = Spec.parse({**table, "methods": methods})
    again = Spec.parse(spec.to_table())
    assert (again.stream, again.methods) == (spec.stream, spec.methods)
    got = again.methods
    assert (got["la_maml"].clip, got["er"].passes, got["er"].cost) == (None, None, None)
    assert (got["ewc"].fisher_rows, got["ewc"].passes, again.stream.tasks) == (None, 2, None)


@pytest.mark.parametrize(("own", "kappa"), [({}, 17), ({"updates": 9}, 9), ({"kappa": 4}, 4)])
def test_kappa_is_updates_where_it_is_not_given(own, kappa):
    table = {"stream": "digits", "training": {"updates": 17}, "methods": {"dpmcl": own}}
    assert Spec.parse(table).methods["dpmcl"].kappa == kappa


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("training.lr = 1e-3", {"training": {"lr": 1e-3}}),
        ("training.optimiser=sgd", {"training": {"optimiser": "sgd"}}),
        ('training.optimiser={name="sgd"}', {"training": {"optimiser": {"name": "sgd"}}}),
        ("stream.root=~/a b/c=d", {"stream": {"root": "~/a b/c=d"}}),
        (r'stream.root=C:\"data"', {"stream": {"root": r'C:\"data"'}}),
        ('methods."pkg.mod:Name".zeta=2', {"methods": {"pkg.mod:Name": {"zeta": 2}}}),
        ('methods."lr=1".lr = 1.0', {"methods": {"lr=1": {"lr": 1.0}}}),
    ],
)
def test_an_assignment_is_a_toml_key_and_a_value_or_a_plain_string(text, change):
    assert parse_assignment(text) == change
    (value,) = change.values()
    assert type(parse_assignment(text).popitem()[1]) is type(value)


@pytest.mark.parametrize("text", ["", "training.lr", "=3", "a b=3", "training..lr=3", "# foo=3"])
def test_an_assignment_needs_key_and_value(text):
    assert "--set takes KEY=VALUE" in complaint(parse_assignment, text, error=SpecError)


def test_changes_merge_and_the_last_one_counts():
    table = override(override(override(BASE, "training.lr=0.5"), "training.batch=4"), "seed=1")
    assert override(table, "training.lr=0.25")["training"] == {"lr": 0.25, "batch": 4}
    assert with_changes(table, nested_entry("stream.tasks", 2))["stream"] == {
        "name": "digits",
        "tasks": 2,
    }
    assert BASE == {"stream": "digits", "methods": ["er"]}
    assert Spec.parse(override(BASE, "stream=mnist")).stream_name == "mnist"
    specs = [Spec.parse(override(BASE, f"training.lr={lr}")) for lr in ("0.5", "'0.5'")]
    assert specs[0].to_table() == specs[1].to_table()


def test_changes_that_mean_nothing_are_refused():
    line = complaint(override, BASE, "methods.naive.lr=0.5", error=SpecError)
    assert "methods.naive is set" in line
    assert "--method naive" in line
    line = complaint(override, BASE, "methods.naife.lr=0.5", error=SpecError)
    assert "No method 'naife'. Did you mean 'naive'" in line
    assert "dotted" in complaint(nested_entry, "training lr", 0.5, error=SpecError)


# names that reset their tables

FULL: dict[str, Any] = {
    "stream": {"name": "mnist", "tasks": 4, "classes_per_task": 2, "split": [0.8, 0.1, 0.1]},
    "network": {"name": "mlp", "hidden": 9},
    "training": {
        "lr": 0.5,
        "optimiser": {"name": "adagrad", "eps": 0.25},
        "discount": {"name": "power", "p": 3, "by": "time"},
    },
    "methods": {"er": {"optimiser": {"name": "adam", "eps": 0.5}}, "naive": {}},
}
MOMENTUM, SGD = "training.optimiser.momentum=0.5", "training.optimiser=sgd"


@pytest.mark.parametrize(
    ("texts", "where", "expected"),
    [
        (["network.hidden=5", "network=lenet"], "network", {"name": "lenet", "hidden": 5}),
        (["network=lenet", "network.hidden=5"], "network", {"name": "lenet", "hidden": 5}),
        (["stream.tasks=2", "stream=digits"], "stream", {"name": "digits", "tasks": 2}),
        (["stream=my.csv"], "stream", {"name": "table", "path": "my.csv"}),
        ([MOMENTUM, SGD], "training.optimiser", {"name": "sgd", "momentum": 0.5}),
        ([SGD], "methods.er.optimiser", {"name": "adam", "eps": 0.5}),
        (["methods.er.optimiser.name=adagrad"], "methods.er.optimiser", {"name": "adagrad"}),
        (['methods=["er"]', "methods.er.lr=0.25"], "methods", {"er": {
            **FULL["methods"]["er"], "lr": 0.25}}),
    ],
)  # fmt: skip
def test_a_new_name_starts_from_its_own_defaults(texts, where, expected):
    entry: Any = Request(FULL).set(texts).table
    for part in where.split("."):
        entry = entry[part]
    assert entry in (expected, {"name": expected})


@pytest.mark.parametrize(
    ("texts", "hidden"), [("network=mlp", 9), ("network=sinenet", 100), ("stream=sine", 100)]
)
def test_a_network_that_the_stream_names_is_reset_with_it(texts, hidden):
    table = {"stream": "digits", "network": {"hidden": 9}, "methods": ["er"]}
    assert Request(table).set([texts]).spec().network.hidden == hidden


def test_a_setting_of_ones_own_that_the_new_class_lacks_is_refused():
    request = Request({**FULL, "methods": ["naive"]}).set([MOMENTUM, "training.optimiser=adam"])
    assert "No setting 'momentum'" in complaint(request.spec, error=SpecError)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"methods": ["err"]}, ["No method 'err'", "Did you mean 'er'?", "dpmcl list"]),
        ({"methods": 3}, ["[methods]", "table", "3"]),
        ({"methods": []}, ["needs at least one method"]),
        ({"methods": [1]}, ["list of names", "[1]"]),
        ({"methods": {"er": {"zeta": 3}}}, ["No setting 'zeta'", "methods.er", "updates"]),
        ({"methods": {"dpmcl": {"zeta": -1}}}, ["zeta", "greater than or equal to 0", "-1"]),
        ({"stream": {"tasks": 2}}, ["stream", "name"]),
        ({"stream": {"name": "digits", "task": 2}}, ["'task'", "Did you mean 'tasks'?", "digits"]),
        ({"stream": {"name": "digits", "split": [0.5, 0.2, 0.2]}}, ["split", "add up to 1", "0.5"]),
        ({"seed": 2**63 - 1, "replicas": 2}, ["stay below 2^63"]),
        ({"engine": "fast"}, ["engine", "'looped'", "'fast'"]),
        *(({"methods": methods}, [part]) for methods, part in (
            (["dpmc"], "No method 'dpmc'. Did you mean 'dpmcl'? `dpmcl list` shows all."),
            (["math:pi"], "method 'math:pi' must be a "),
            (["dpmcl.methods._method:Method"], "Method'> without phases."),
            ({"er": {"method": "naive"}}, "must be 'er' itself"),
            ({"a/b": {"method": "er"}}, "own name has up to 60 letters"),
            ({"..": {"method": "er"}}, "own name has up to 60 letters"),
            ({"x": {"method": "nope"}}, "No method 'nope'"),
            ({"x": {"method": 3}}, "No method"),
            ({"x": {"lr": 1}}, "No method 'x'"),
        )),
        ({"stream": "dpmcl.methods.er:ER"}, ["must be a "]),
        ({"network": "no_such_module_anywhere:X"}, ["cannot be imported"]),
        ({"network": "math:"}, ["cannot be imported"]),
        *(({"training": {"discount": discount}}, [part]) for discount, part in (
            ("exponental", "No discount 'exponental'. Did you mean 'exponential'? `dpmcl list` sh"),
            ({"rate": 1}, "discount needs a name"),
            ({"name": "window", "width": 0}, "discount 'window': width must be greater than or"),
            ({"name": "power", "p": -200}, "not all 0, got inf at s ="),
            ("math:gamma", "must be a subclass of dpmcl.Discount with `weights`"),
        )),
        *(({"training": {"optimiser": optimiser}}, [part]) for optimiser, part in (
            ("adagard", "No optimiser 'adagard'. Did you mean 'adagrad'?"),
            ({"name": "sgd", "momentun": 0.9}, "No setting 'momentun'. Did you mean 'momentum'? In "
             "optimiser 'sgd' there are: lr, weight_decay, momentum."),
            ({"name": "adam", "lr": 1}, "The learning rate is lr, beside optimiser and not in"),
            ({"name": "theorem", "weight_decay": 0.1}, "weight_decay must be 0, got 0.1: the"),
            ("os:getcwd", "optimiser 'os:getcwd' must be a subclass of dpmcl.Optimiser with"),
            ({"momentum": 0.9}, "optimiser needs a name, as in optimiser = '...'; `dpmcl list`"),
        )),
        ({"training": {"schedule": "step"}}, ["schedule 'step': needs the setting 'every', got"]),
    ],
)  # fmt: skip
def test_errors_say_what_came_and_the_way_out(change, words):
    refused(lambda: Spec.parse({**BASE, **change}), *words, error=SpecError)
