"""Specs: short forms, completeness, overrides, and one line for whatever is wrong."""

import tomllib
from typing import Any

import pytest
import tomli_w

from dpmcl import presets
from dpmcl.exceptions import SpecError, unknown
from dpmcl.methods._method import Method
from dpmcl.study.api import Request
from dpmcl.training.spec import Spec, assigned, assignment, changed, normalised, read

LIST_BESIDE_TABLES = """
methods = ["naive", "er", "dpmcl"]
replicas = 5
seed = 0
[stream]
name = "digits"
[training]
optimiser = "adagrad"
lr = 1e-2
batch = 32
updates = 300
memory = 20000
[methods.dpmcl]
kappa = 300
zeta = 5
"""
BASE: dict[str, Any] = {"stream": "digits", "methods": ["er"]}


def override(table: dict[str, Any], text: str) -> dict[str, Any]:
    return changed(table, assignment(text))


def assign(table: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    return changed(table, assigned(path, value))


def parse(text: str) -> Spec:
    return Spec.parse(read(text, "the test"))


def complaint(table: dict[str, Any]) -> str:
    with pytest.raises(SpecError) as caught:
        Spec.parse(table)
    return one_line(caught.value)


def one_line(error: SpecError) -> str:
    line = str(error)
    assert "\n" not in line
    assert line.endswith((".", "?"))
    return line


# short forms


def test_a_name_is_short_for_a_table():
    short = parse('stream = "digits"\nnetwork = "mlp"\nmethods = ["naive", "er"]\n')
    long = parse('[stream]\nname="digits"\n[network]\nname="mlp"\n[methods.naive]\n[methods.er]\n')
    assert short == long
    assert (short.stream_name, short.network_name) == ("digits", "mlp")
    assert list(short.methods) == ["naive", "er"]


def test_methods_keep_the_order_of_the_list_and_of_the_tables():
    assert list(parse('stream="digits"\nmethods=["er","naive"]').methods) == ["er", "naive"]
    assert list(parse('stream="digits"\n[methods.er]\n[methods.dpmcl]\n').methods) == [
        "er",
        "dpmcl",
    ]


def test_one_method_may_be_a_string():
    assert list(Spec.parse({"stream": "digits", "methods": "er"}).methods) == ["er"]


def test_list_beside_tables():
    with pytest.raises(tomllib.TOMLDecodeError):
        tomllib.loads(LIST_BESIDE_TABLES)
    spec = parse(LIST_BESIDE_TABLES)
    assert list(spec.methods) == ["naive", "er", "dpmcl"]
    assert spec.replicas == 5
    assert spec.seeds == (0, 1, 2, 3, 4)
    assert spec.stream_name == "digits"
    assert (spec.methods["dpmcl"].kappa, spec.methods["dpmcl"].zeta) == (300, 5)
    assert {m.memory for m in spec.methods.values()} == {20000}
    assert {m.lr for m in spec.methods.values()} == {0.01}


def test_list_beside_tables_refuses_a_table_that_is_not_listed():
    with pytest.raises(SpecError, match="naive") as caught:
        read('methods = ["er"]\nstream = "digits"\n[methods.naive]\nlr = 0.5\n', "x.toml")
    assert one_line(caught.value).startswith("x.toml")


def test_normalised_leaves_its_argument_alone():
    table = {"stream": "digits", "methods": ["er"]}
    assert normalised(table) == {"stream": {"name": "digits"}, "methods": {"er": {}}}
    assert table == {"stream": "digits", "methods": ["er"]}


def test_the_stream_names_the_network_that_a_spec_leaves_out():
    assert Spec.parse({"stream": "digits", "methods": ["er"]}).network_name == "mlp"
    assert Spec.parse({"stream": "mnist", "methods": ["er"]}).network_name == "lenet"


# completeness


def test_to_table_is_complete_and_reads_back():
    spec = parse(LIST_BESIDE_TABLES)
    table = spec.to_table()
    unset = {"passes"}  # None, which TOML cannot say
    assert list(table["training"]) == [name for name in Method.names() if name not in unset]
    assert table["training"]["memory_policy"] == "reservoir"
    assert table["evaluation"] == {"train": False, "future": False, "evaluate_every": 1}
    assert table["network"] == {"name": "mlp", "hidden": 100}
    assert table["stream"] == {
        "name": "digits",
        "classes_per_task": 1,
        "order": "alphabetical",
        "order_seed": 0,
        "blur": 0.0,
        "split": [0.6, 0.2, 0.2],
    }
    assert table["methods"]["naive"] == table["methods"]["er"] == {}
    assert table["methods"]["dpmcl"] == {
        "kappa": 300,
        "zeta": 5,
        "third_term": "constant",
        "step": "alternating",
        "buffer_state": "fresh",
        "eta": 1.0,
        "guard": "none",
        "third_weight": 1.0,
        "fourth_term": "off",
        "fourth_weight": 1.0,
    }
    assert Spec.parse(table).methods == spec.methods
    assert Spec.parse(table).to_table() == table
    assert tomllib.loads(tomli_w.dumps(table)) == table


def test_a_written_spec_says_the_same_as_the_one_it_came_from():
    spec = Spec.parse(
        {
            "stream": {"name": "digits", "tasks": 3},
            "training": {"lr": 0.5, "optimiser": {"name": "sgd", "momentum": 0.9}},
            "methods": {"naive": {"lr": 0.1}, "joint": {"budget": "task", "updates": 7}},
        }
    )
    again = Spec.parse(tomllib.loads(tomli_w.dumps(spec.to_table())))
    assert again.methods == spec.methods
    assert again.methods["joint"].rule.momentum == 0.9
    assert (again.stream, again.network) == (spec.stream, spec.network)


@pytest.mark.parametrize("name", presets.names())
def test_presets_are_complete(name):
    text = presets.text(name)
    written = normalised(tomllib.loads(text))
    assert Spec.parse(read(text, name)).to_table() == written


def test_there_are_presets():
    assert {"digits", "mnist"} <= set(presets.names())
    for name in presets.names():
        assert presets.summary(name)
        assert presets.text(name).startswith(f"# {presets.summary(name)}\n")
    with pytest.raises(SpecError, match="Did you mean 'digits'"):
        presets.text("digit")


# [training] and methods


def test_a_methods_own_table_overrides_training():
    spec = Spec.parse(
        {
            "stream": "digits",
            "training": {"lr": 0.5, "updates": 7},
            "methods": {"naive": {}, "er": {"lr": 0.25, "optimiser": "sgd"}},
        }
    )
    assert (spec.methods["naive"].lr, spec.methods["er"].lr) == (0.5, 0.25)
    assert (spec.methods["naive"].optimiser, spec.methods["er"].optimiser) == ("adagrad", "sgd")
    assert spec.methods["er"].updates == 7
    assert spec.to_table()["methods"] == {"naive": {}, "er": {"optimiser": "sgd", "lr": 0.25}}


def test_kappa_is_updates_where_it_is_not_given():
    table = {"stream": "digits", "training": {"updates": 17}, "methods": ["dpmcl"]}
    assert Spec.parse(table).methods["dpmcl"].kappa == 17
    table["methods"] = {"dpmcl": {"updates": 9}}
    assert Spec.parse(table).methods["dpmcl"].kappa == 9
    table["methods"] = {"dpmcl": {"kappa": 4}}
    assert Spec.parse(table).methods["dpmcl"].kappa == 4


def test_seeds_count_from_the_first():
    assert Spec.parse({**BASE, "seed": 7, "replicas": 3}).seeds == (7, 8, 9)


# --set


@pytest.mark.parametrize(
    ("assignment", "path", "value"),
    [
        ("training.lr=0.01", ("training", "lr"), 0.01),
        ("training.lr = 1e-3", ("training", "lr"), 1e-3),
        ("replicas=3", ("replicas",), 3),
        ("evaluation.train=true", ("evaluation", "train"), True),
        ("training.optimiser=sgd", ("training", "optimiser"), "sgd"),
        ('training.optimiser="sgd"', ("training", "optimiser"), "sgd"),
        ("training.optimiser='sgd'", ("training", "optimiser"), "sgd"),
        (
            'training.optimiser={name="sgd", momentum=0.9}',
            ("training", "optimiser"),
            {"name": "sgd", "momentum": 0.9},
        ),
        ("stream.split=[0.5, 0.25, 0.25]", ("stream", "split"), [0.5, 0.25, 0.25]),
        ("stream.root=/some/dir", ("stream", "root"), "/some/dir"),
        ("stream.root=~/a b/c=d", ("stream", "root"), "~/a b/c=d"),
        (r"stream.root=C:\data", ("stream", "root"), r"C:\data"),
        ("methods.er.lr=0.5", ("methods", "er", "lr"), 0.5),
        ('methods."pkg.mod:Name".zeta=2', ("methods", "pkg.mod:Name", "zeta"), 2),
    ],
)
def test_override(assignment, path, value):
    table = {"stream": {"name": "mnist", "tasks": 2}, "methods": {"er": {}, "pkg.mod:Name": {}}}
    out = override(table, assignment)
    assert out["stream"]["name"] == "mnist"
    assert out["stream"]["tasks"] == 2
    assert list(out["methods"]) == ["er", "pkg.mod:Name"]
    found: Any = out
    for key in path:
        found = found[key]
    assert found == value
    assert type(found) is type(value)
    assert table == {
        "stream": {"name": "mnist", "tasks": 2},
        "methods": {"er": {}, "pkg.mod:Name": {}},
    }


def test_override_merges_and_takes_the_last():
    table = override(override(override(BASE, "training.lr=0.5"), "training.batch=4"), "seed=1")
    assert table["training"] == {"lr": 0.5, "batch": 4}
    assert override(table, "training.lr=0.25")["training"] == {"lr": 0.25, "batch": 4}
    assert Spec.parse(table).methods["er"].batch == 4


def test_override_can_replace_a_stream_by_its_name():
    assert Spec.parse(override(BASE, "stream=mnist")).stream_name == "mnist"


@pytest.mark.parametrize("assignment", ["", "training.lr", "=3", " =3", "a b=3", "training..lr=3"])
def test_override_needs_key_and_value(assignment):
    with pytest.raises(SpecError, match="KEY=VALUE") as caught:
        override(BASE, assignment)
    assert assignment in one_line(caught.value)


def test_override_of_a_method_that_is_not_run():
    with pytest.raises(SpecError, match=r"methods\.naive is set.*--method naive") as caught:
        override(BASE, "methods.naive.lr=0.5")
    one_line(caught.value)
    with pytest.raises(SpecError, match=r"No method 'naife'\. Did you mean 'naive'") as caught:
        override(BASE, "methods.naife.lr=0.5")
    one_line(caught.value)


def test_assign_takes_python_values():
    out = assign(BASE, "training.lr", 0.5)
    assert out["training"] == {"lr": 0.5}
    assert assign(out, "stream.tasks", 2)["stream"] == {"name": "digits", "tasks": 2}
    assert assign(out, "training.optimiser", {"name": "adam"})["training"] == {
        "lr": 0.5,
        "optimiser": {"name": "adam"},
    }
    with pytest.raises(SpecError, match="dotted") as caught:
        assign(BASE, "training lr", 0.5)
    one_line(caught.value)
    with pytest.raises(SpecError, match=r"methods\.naive is set"):
        assign(BASE, "methods.naive.lr", 0.5)


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


@pytest.mark.parametrize(
    ("texts", "where", "expected"),
    [
        (["network.name=lenet"], "network", {"name": "lenet"}),
        (["network=lenet"], "network", {"name": "lenet"}),
        (["network={name='lenet'}"], "network", {"name": "lenet"}),
        (["network.hidden=5", "network=lenet"], "network", {"name": "lenet", "hidden": 5}),
        (["network=lenet", "network.hidden=5"], "network", {"name": "lenet", "hidden": 5}),
        (["network=lenet", "network=mlp"], "network", {"name": "mlp", "hidden": 9}),
        (["network=mlp"], "network", FULL["network"]),
        (["network.name=mlp"], "network", FULL["network"]),
        (["network.hidden=5"], "network", {"name": "mlp", "hidden": 5}),
        (["stream.name=digits"], "stream", {"name": "digits"}),
        (["stream=digits"], "stream", {"name": "digits"}),
        (["stream.tasks=2", "stream=digits"], "stream", {"name": "digits", "tasks": 2}),
        (["stream=my.csv"], "stream", {"name": "table", "path": "my.csv"}),
        (["stream.blur=0.5"], "stream", {**FULL["stream"], "blur": 0.5}),
        (["training.optimiser=sgd"], "training.optimiser", "sgd"),
        (["training.optimiser.name=theorem"], "training.optimiser", {"name": "theorem"}),
        (["training={optimiser='adam'}"], "training.optimiser", {"name": "adam"}),
        (
            ["training.optimiser.momentum=0.5", "training.optimiser=sgd"],
            "training.optimiser",
            {"name": "sgd", "momentum": 0.5},
        ),
        (["training.optimiser=adagrad"], "training.optimiser", {"name": "adagrad", "eps": 0.25}),
        (["training.optimiser=sgd"], "training.lr", 0.5),
        (["training.optimiser=sgd"], "methods.er.optimiser", {"name": "adam", "eps": 0.5}),
        (["methods.er.optimiser.name=adagrad"], "methods.er.optimiser", {"name": "adagrad"}),
        (["methods.naive.optimiser=adagrad"], "methods.naive.optimiser", "adagrad"),
        (["training.discount.name=exponential"], "training.discount", {"name": "exponential"}),
        (["training.discount=window"], "training.discount", {"name": "window"}),
        (
            ["training.discount.by='age'", "training.discount=window"],
            "training.discount",
            {"name": "window", "by": "age"},
        ),
        (["training.discount.p=2"], "training.discount", {**FULL["training"]["discount"], "p": 2}),
    ],
)
def test_a_new_name_starts_from_its_own_defaults(texts, where, expected):
    found: Any = Request(FULL).set(texts).table
    for part in where.split("."):
        found = found[part]
    assert found in (expected, {"name": expected})


def test_a_list_of_methods_keeps_their_tables():
    found = Request(FULL).set(['methods=["er"]', "methods.er.lr=0.25"]).table["methods"]
    assert found == {"er": {**FULL["methods"]["er"], "lr": 0.25}}


def test_a_network_that_the_stream_names_is_reset_with_it():
    table = {"stream": "digits", "network": {"hidden": 9}, "methods": ["er"]}
    assert Request(table).set(["network=mlp"]).spec().network.hidden == 9
    assert Request(table).set(["network=sinenet"]).spec().network.hidden == 100
    assert Request(table).set(["stream=sine"]).spec().network.hidden == 100
    assert Request(table).set(["stream=sine", "network.hidden=5"]).spec().network.hidden == 5


@pytest.mark.parametrize(
    ("texts", "name"),
    [
        (["training.optimiser.momentum=0.5", "training.optimiser=adam"], "momentum"),
        (["network.width=3", "network=lenet"], "width"),
        (["stream.blur=0.5", "stream=sine"], "blur"),
    ],
)
def test_a_setting_of_ones_own_that_the_new_class_lacks_is_refused(texts, name):
    table = {**FULL, "methods": ["naive"]}
    with pytest.raises(SpecError, match=f"No setting '{name}'"):
        Request(table).set(texts).spec()


# hints


@pytest.mark.parametrize(
    ("name", "known", "words"),
    [
        ("kind", [" kind"], "No setting 'kind'. Did you mean ' kind'?"),
        ("kind", ["kind\t"], r"Did you mean 'kind\t'?"),
        ("KIND", ["kind"], "No setting 'KIND'. Did you mean 'kind'?"),
        (" kind ", ["kind"], "No setting ' kind '. Did you mean 'kind'?"),
        ("kind", ["kind"], "No setting 'kind'. It has none."),
        (3, ["3"], "No setting 3. It has none."),
        ("x" * 10**6, ["y"], "..."),
    ],
)
def test_a_guess_is_never_the_name_itself(name, known, words):
    line = one_line(unknown("setting", name, known, "It has none."))
    assert words in line
    assert len(line) < 300


# errors


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"methods": ["err"]}, ["No method 'err'", "Did you mean 'er'?", "dpmcl list"]),
        ({"methods": ["xyzzy"]}, ["No method 'xyzzy'", "dpmcl list"]),
        ({"methods": ["nowhere.to:Be"]}, ["'nowhere.to:Be' cannot be imported"]),
        ({"methods": ["dpmcl.methods._method:Nothing"]}, ["cannot be imported", "Nothing"]),
        ({"methods": []}, ["at least one method"]),
        ({"methods": {}}, ["at least one method"]),
        ({"methods": 3}, ["[methods]", "table", "3"]),
        ({"methods": {"er": 3}}, ["[methods.er]", "table", "3"]),
        ({"methods": {"er": {"zeta": 3}}}, ["No setting 'zeta'", "methods.er", "updates"]),
        ({"methods": {"dpmcl": {"kapa": 3}}}, ["'kapa'", "Did you mean 'kappa'?"]),
        ({"methods": {"dpmcl": {"zeta": -1}}}, ["zeta", "greater than or equal to 0", "-1"]),
        ({"methods": {"dpmcl": {"kappa": 0}}}, ["kappa", "greater than or equal to 1", "0"]),
        ({"methods": {"dpmcl": {"third_term": "none"}}}, ["third_term", "'exact'", "'none'"]),
        ({"stream": "digit"}, ["No stream 'digit'", "Did you mean 'digits'?"]),
        ({"stream": {"tasks": 2}}, ["[stream]", "name"]),
        ({"stream": 3}, ["[stream]", "table", "3"]),
        ({"stream": {"name": "digits", "task": 2}}, ["'task'", "Did you mean 'tasks'?", "digits"]),
        ({"stream": {"name": "digits", "tasks": 0}}, ["tasks", "greater than or equal to 1", "0"]),
        ({"stream": {"name": "digits", "split": [0.5, 0.2, 0.2]}}, ["split", "add up to 1", "0.5"]),
        ({"stream": {"name": "digits", "split": [1.0, 0.5, -0.5]}}, ["split", "above 0", "-0.5"]),
        ({"stream": {"name": "digits", "split": [0.5, 0.5]}}, ["split", "[0.5, 0.5]"]),
        ({"network": "mlpp"}, ["No network 'mlpp'", "Did you mean 'mlp'?"]),
        ({"network": {"name": "mlp", "hiden": 3}}, ["'hiden'", "Did you mean 'hidden'?"]),
        ({"network": {"name": "mlp", "hidden": 0}}, ["hidden", "greater than or equal to 1"]),
        ({"replica": 3}, ["No setting 'replica'", "Did you mean 'replicas'?", "seed"]),
        ({"replicas": 0}, ["replicas", "greater than or equal to 1", "got 0"]),
        ({"replicas": 1.5}, ["replicas", "integer", "1.5"]),
        ({"seed": -1}, ["seed", "greater than or equal to 0", "-1"]),
        ({"dtype": "float16"}, ["dtype", "'float32'", "'float16'"]),
        ({"engine": "fast"}, ["engine", "'looped'", "'fast'"]),
        ({"device": "tpu"}, ["device", "'cpu'", "'tpu'"]),
        ({"training": {"learning_rate": 1}}, ["No setting 'learning_rate'", "[training]", "lr"]),
        ({"training": {"zeta": 1}}, ["No setting 'zeta'", "[training]"]),
        ({"training": {"lr": -0.1}}, ["lr", "greater than 0", "-0.1"]),
        ({"training": {"lr": 0}}, ["lr", "greater than 0"]),
        ({"training": {"lr": "abc"}}, ["lr", "number", "'abc'"]),
        ({"training": {"lr": float("nan")}}, ["lr", "finite", "nan"]),
        ({"training": {"lr": float("inf")}}, ["lr", "finite", "inf"]),
        ({"training": {"batch": 0}}, ["batch", "greater than or equal to 1"]),
        ({"training": {"memory_policy": "fifo"}}, ["memory_policy", "'reservoir'", "'fifo'"]),
        ({"training": {"optimiser": "adagard"}}, ["'adagard'", "Did you mean 'adagrad'?"]),
        ({"training": {"optimiser": {"momentum": 1}}}, ["optimiser", "name"]),
        ({"training": 3}, ["[training]", "table"]),
        ({"evaluation": {"futur": True}}, ["'futur'", "Did you mean 'future'?"]),
        ({"evaluation": {"future": "maybe"}}, ["future", "'maybe'"]),
    ],
)
def test_errors_say_what_came_and_the_way_out(change, words):
    line = complaint({**BASE, **change})
    for word in words:
        assert word in line


def test_a_spec_needs_a_stream():
    assert "needs a stream" in complaint({"methods": ["er"]})


def test_a_spec_needs_a_method():
    assert "at least one method" in complaint({"stream": "digits"})


@pytest.mark.parametrize(
    "text",
    [
        "stream = ",
        "[stream",
        'stream = "digits\n',
        "replicas = 1\nreplicas = 2\n",
        "[methods.er]\nlr = \n",
        "[methods.er]\n[methods.er]\n",
    ],
)
def test_broken_toml(text):
    with pytest.raises(SpecError, match=r"my\.toml must be TOML") as caught:
        read(text, "my.toml")
    one_line(caught.value)


def test_broken_toml_names_the_line():
    with pytest.raises(SpecError, match="line 3"):
        read("replicas = 1\nseed = 0\nstream = ?\n", "my.toml")


@pytest.mark.parametrize(
    "text",
    [
        'stream = "digits"\nmethods = "er"\n[methods.er]\n',
        'stream = "digits"\nmethods = 5\n[methods.er]\n',
        'stream = "digits"\nmethods = [1]\n',
        'stream = "digits"\nmethods = [["er"]]\n',
        'stream = "digits"\nmethods = ["er"]\nseed = 18446744073709551616\n',
        'stream = "digits"\nmethods = ["er"]\nseed = 9223372036854775807\nreplicas = 2\n',
        'stream = "digits"\nmethods = ["er"]\n[training]\noptimiser = {name = "sgd", lr = 1.0}\n',
    ],
)
def test_odd_specs_are_refused_in_one_line(text):
    with pytest.raises(SpecError) as caught:
        Spec.parse(read(text, "s.toml"))
    assert "\n" not in str(caught.value)


def test_a_value_in_another_form_is_the_same_setting():
    tables = [
        Spec.parse({"stream": "digits", "methods": ["er"], "training": {"lr": lr}}).to_table()
        for lr in ("0.01", 0.01)
    ]
    assert tables[0] == tables[1]


@pytest.mark.parametrize("entry", ["# foo=3", "\n=3", "a b=3"])
def test_a_name_that_is_no_name_is_refused(entry):
    with pytest.raises(SpecError, match="--set takes KEY=VALUE"):
        override({"stream": "digits", "methods": ["er"]}, entry)
