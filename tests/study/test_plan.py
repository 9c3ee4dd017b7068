"""Plans of studies: which runs there are, and what each is called."""

import pytest

from dpmcl.exceptions import SpecError
from dpmcl.study.plan import axis, read, variants
from dpmcl.training.spec import Spec

TABLE = {"stream": "digits", "methods": ["er", "dpmcl"], "replicas": 2}


def test_there_is_a_run_for_each_combination() -> None:
    axes = {"training.lr": [0.1, 0.2], "stream.tasks": [2, 3]}
    runs = variants(TABLE, axes)
    assert [run.name for run in runs] == [f"lr={r},tasks={t}" for r in (0.1, 0.2) for t in (2, 3)]
    spec = Spec.parse(runs[1].table)
    assert (spec.methods["er"].lr, spec.stream.tasks) == (0.1, 3)
    assert list(spec.methods) == ["er", "dpmcl"]
    assert runs[1].point == {"training.lr": 0.1, "stream.tasks": 3}


BOTH, SLOW = ["er", "dpmcl"], {"method": "er", "lr": 1e-4}


@pytest.mark.parametrize(
    ("methods", "axes", "expected"),
    [
        (BOTH, {}, {"base": BOTH}),
        (BOTH, {"methods.dpmcl.zeta": [0, 2], "training.lr": [0.1, 0.2]},  # er does not run again
         {"lr=0.1": ["er"], "lr=0.2": ["er"], "zeta=0,lr=0.1": ["dpmcl"],
          "zeta=0,lr=0.2": ["dpmcl"], "zeta=2,lr=0.1": ["dpmcl"], "zeta=2,lr=0.2": ["dpmcl"]}),
        ({"er": {}, "slow": SLOW}, {"training.lr": [1, 2]},
         {"lr=1": ["er"], "lr=2": ["er"], "base": ["slow"]}),
        (BOTH, {"training.lr": [1, 2], "methods.er.lr": [3]},
         {"methods.er.lr=3": ["er"], "training.lr=1": ["dpmcl"], "training.lr=2": ["dpmcl"]}),
        (BOTH, {"training.schedule": ["constant", {"name": "step", "every": 2, "by": 0.1}]},
         {"schedule=constant": BOTH, "schedule=name-step,-every-2,-by-0.1": BOTH}),
        (BOTH, {"methods.er.lr": [1, 2], "methods.dpmcl.lr": [1.0]},
         {"methods.er.lr=1": ["er"], "methods.er.lr=2": ["er"], "methods.dpmcl.lr=1": ["dpmcl"]}),
        (BOTH, {"stream.path": ["a/b", "a b"]}, {"path=a-b": BOTH, "path=a-b-2": BOTH}),
    ],
)  # fmt: skip
def test_runs_have_names_that_differ_and_the_methods_that_they_vary(methods, axes, expected):
    runs = variants({**TABLE, "methods": methods}, axes)
    assert {run.name: list(run.table["methods"]) for run in runs} == expected


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
    with pytest.raises(SpecError, match=r"varies nothing, .*vary methods\.slow\.lr"):
        variants({**TABLE, "methods": {"slow": SLOW}}, {"training.lr": [1, 2]})
    with pytest.raises(SpecError, match="at least one method"):
        variants({**TABLE, "methods": []}, {"training.lr": [1, 2]})


def test_bad_texts_are_refused() -> None:
    for text in ("training.lr", "training.lr="):
        with pytest.raises(SpecError, match="--sweep takes"):
            axis(text)
    with pytest.raises(SpecError, match=r"\[axes\] must be a table"):
        read({"axes": [1]})
