"""Plans of studies: which runs there are, and what each is called."""

import pytest

from dpmcl.exceptions import SpecError
from dpmcl.study.plan import axis, read, variants
from dpmcl.training.spec import Spec

TABLE = {"stream": "digits", "methods": ["er", "dpmcl"], "replicas": 2}


def test_there_is_a_run_for_each_combination() -> None:
    axes = {"training.lr": [0.1, 0.2], "stream.tasks": [2, 3]}
    runs = variants(TABLE, axes)
    assert [run.name for run in runs] == [
        "lr=0.1,tasks=2",
        "lr=0.1,tasks=3",
        "lr=0.2,tasks=2",
        "lr=0.2,tasks=3",
    ]
    spec = Spec.parse(runs[1].table)
    assert (spec.methods["er"].lr, spec.stream.tasks) == (0.1, 3)
    assert list(spec.methods) == ["er", "dpmcl"]
    assert runs[1].point == {"training.lr": 0.1, "stream.tasks": 3}


def test_an_axis_of_one_method_does_not_run_the_others_again() -> None:
    axes = {"methods.dpmcl.zeta": [0, 2], "training.lr": [0.1, 0.2]}
    runs = {run.name: list(run.table["methods"]) for run in variants(TABLE, axes)}
    assert runs == {
        "lr=0.1": ["er"],
        "lr=0.2": ["er"],
        "zeta=0,lr=0.1": ["dpmcl"],
        "zeta=0,lr=0.2": ["dpmcl"],
        "zeta=2,lr=0.1": ["dpmcl"],
        "zeta=2,lr=0.2": ["dpmcl"],
    }
    assert [run.name for run in variants(TABLE, {})] == ["base"]


def test_a_setting_of_a_methods_own_is_not_varied_by_that_of_all() -> None:
    table = {**TABLE, "methods": {"er": {}, "slow": {"method": "er", "lr": 1e-4}}}
    runs = {
        run.name: list(run.table["methods"]) for run in variants(table, {"training.lr": [1, 2]})
    }
    assert runs == {"lr=1": ["er"], "lr=2": ["er"], "base": ["slow"]}
    axes = {"training.lr": [1, 2], "methods.er.lr": [3]}
    runs = {run.name: list(run.table["methods"]) for run in variants(TABLE, axes)}
    assert runs == {
        "methods.er.lr=3": ["er"],
        "training.lr=1": ["dpmcl"],
        "training.lr=2": ["dpmcl"],
    }
    with pytest.raises(SpecError, match=r"varies nothing, .*vary methods\.slow\.lr"):
        variants({**table, "methods": {"slow": table["methods"]["slow"]}}, {"training.lr": [1, 2]})


def test_names_are_folders_that_differ() -> None:
    axes = {"training.schedule": ["constant", {"name": "step", "every": 2, "by": 0.1}]}
    assert [run.name for run in variants(TABLE, axes)] == [
        "schedule=constant",
        "schedule=name-step,-every-2,-by-0.1",
    ]
    axes = {"methods.er.lr": [1, 2], "methods.dpmcl.lr": [1.0]}
    assert [run.name for run in variants(TABLE, axes)] == [
        "methods.er.lr=1",
        "methods.er.lr=2",
        "methods.dpmcl.lr=1",
    ]
    runs = variants(TABLE, {"stream.path": ["a/b", "a b"]})
    assert [run.name for run in runs] == ["path=a-b", "path=a-b-2"]


def test_an_option_and_a_file_say_axes() -> None:
    assert axis("training.lr = 0.01, 1") == ("training.lr", [0.01, 1])
    assert axis("methods.dpmcl.third_term=off,first") == (
        "methods.dpmcl.third_term",
        ["off", "first"],
    )
    rest, axes = read({**TABLE, "axes": {"training.lr": [1]}})
    assert (rest, axes) == (TABLE, {"training.lr": [1]})


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"training.lr": 0.1}, "must have a list of values"),
        ({"training.lr": []}, "must have a list of values"),
        ({"training.lr": [0.1, 0.1]}, "must differ"),
        ({"seed": [1, 2]}, "cannot be an axis"),
        ({"methods": [["er"], ["dpmcl"]]}, "cannot be an axis"),
        ({"methods.oml.lr": [1, 2]}, "not among the methods of this study"),
        ({"not a name": [1]}, "dotted"),
    ],
)
def test_what_is_no_axis_is_refused(axes: dict, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        variants(TABLE, axes)


def test_bad_texts_are_refused() -> None:
    for text in ("training.lr", "training.lr="):
        with pytest.raises(SpecError, match="--sweep takes"):
            axis(text)
    with pytest.raises(SpecError, match=r"\[axes\] must be a table"):
        read({"axes": [1]})
