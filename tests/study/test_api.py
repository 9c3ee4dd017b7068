"""Arguments of `dpmcl.run`, `dpmcl.load` and `Result`: read, or refused in one line by name."""

import datetime
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import dpmcl
from conftest import complaint
from dpmcl.exceptions import DpmclError
from dpmcl.methods.er import ER
from dpmcl.streams.sine import Sine
from dpmcl.study.api import Request
from dpmcl.study.result import Result
from python_process import PythonProcess

FEW = {"training.updates": 2, "training.batch": 2, "network.hidden": 4}
X = np.random.default_rng(0).normal(size=(30, 4))
Y = np.arange(30) % 3


@pytest.fixture(scope="module")
def stream() -> dpmcl.Stream:
    return dpmcl.Stream.from_arrays(X, Y)


@pytest.fixture(scope="module")
def result(stream, tmp_path_factory) -> Result:
    out = tmp_path_factory.mktemp("arguments") / "run"
    return dpmcl.run(stream, methods="er", replicas=1, settings=FEW, out=out)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def message_of(function: Any, *arguments: Any, **options: Any) -> str:
    return complaint(function, *arguments, error=DpmclError, **options)


def run(source: Any, **options: Any) -> Result:
    settings = {**FEW, **options.pop("settings", {})}
    return dpmcl.run(source, **{"replicas": 1, "methods": ["er"], **options}, settings=settings)


# sources


@pytest.mark.parametrize("source", [pd.DataFrame(X), None, b"digits", ""])
def test_a_source_of_another_type_is_told_what_makes_a_stream(source):
    line = message_of(dpmcl.run, source)
    for word in ("a dpmcl.Stream", "from_table", "from_arrays", "from_dataset"):
        assert word in line


class Waves(Sine):
    """A stream of a user's own, whose settings are made in Python."""


@pytest.mark.parametrize(("kind", "name"), [(Sine, "sine"), (Waves, f"{__name__}:Waves")])
def test_a_stream_s_settings_are_a_source(kind, name):
    by_settings = run(kind(tasks=2, rows=20))
    by_name = run({"stream": {"name": name, "tasks": 2, "rows": 20}})
    assert by_settings.spec["stream"] == by_name.spec["stream"]
    np.testing.assert_array_equal(by_settings.errors["er"].values, by_name.errors["er"].values)


def test_a_part_of_a_run_folder_is_not_data(here):
    (here / "run" / "figures").mkdir(parents=True)
    for name in ("spec.toml", "stream.json", "errors.parquet"):
        (here / "run" / name).write_text("")
    for part in ("errors.parquet", "figures"):
        for function in (dpmcl.run, dpmcl.load):
            assert message_of(function, f"run/{part}").endswith("give the folder, run.")
    assert f"as in {here / 'run'}." in message_of(dpmcl.run, here)


def test_a_spec_may_begin_with_a_byte_order_mark(here):
    (here / "mine.toml").write_text('seed = 3\nstream = "sine"\nmethods = ["er"]\n', "utf-8-sig")
    assert Request("mine.toml").spec().seed == 3


# methods and settings


class Local(ER):
    """A method that a spec finds by its name."""


def test_methods_may_be_one_name_or_a_table(stream):
    assert list(run(stream, methods=ER).records) == ["dpmcl.methods.er:ER"]
    assert list(run(stream, methods=["er", "er"]).records) == ["er"]
    result = run(stream, methods={"naive": {}, "er": {"lr": 0.5}})
    assert result.spec["methods"] == {"naive": {}, "er": {"lr": 0.5}}
    result = run(stream, methods={"strong": {"method": ER, "lr": 0.5}, "plain": ER})
    assert result.spec["methods"] == {
        "strong": {"method": "dpmcl.methods.er:ER", "lr": 0.5},
        "plain": {"method": "dpmcl.methods.er:ER"},
    }


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        ("er,dpmcl", "No method 'er,dpmcl'"),
        (" er", "No method ' er'. Did you mean 'er'?"),
        ({"er": {"lr": -1}}, "lr must be greater than 0, got -1"),
        ({"er": None}, "[methods.er] must be a table"),
        ([ER(updates=3)], "instance of ER"),
        ({"mine": ER(updates=3)}, "instance of ER"),
        ({"slow": {"lr": 1e-4}}, "No method 'slow'"),
        ({"mine": {"method": 5}}, "subclasses of dpmcl.Method, got 5"),
        ([], "at least one method"),
        ([int], "subclasses of dpmcl.Method"),
        ([dpmcl.Method], "must be a subclass"),
        ([type("Inner", (ER,), {"__qualname__": "f.<locals>.Inner"})], "is not found by its name"),
        ([type("Local", (ER,), {"__module__": __name__})], "is not found by its name"),
    ],
)
def test_methods_that_are_none(methods, words, stream):
    assert words in message_of(run, stream, methods=methods)


@pytest.mark.parametrize(
    ("key", "value", "stored"),
    [
        ("training.lr", torch.tensor(0.5), 0.5),
        ("training.memory", np.int64(3), 3),
        ("training.optimiser", {"name": "sgd", "momentum": np.float32(0.5)},
         {"name": "sgd", "momentum": 0.5}),
        ("stream.split", np.array([0.5, 0.25, 0.25]), [0.5, 0.25, 0.25]),
    ],
)  # fmt: skip
def test_numbers_of_numpy_and_pytorch_are_numbers(key, value, stored, stream):
    table: Any = run(stream, settings={key: value}).spec
    for part in key.split("."):
        table = table[part]
    assert table == stored


def test_a_setting_that_methods_have_of_their_own_is_told(log_lines):
    table = {"stream": "digits", "methods": {"naive": {}, "er": {"lr": 0.1}, "dpmcl": {"kappa": 9}}}
    result = run(table, methods=None, tasks=1, settings={"training.lr": 0.5})
    assert log_lines == [
        f"training.{key} is set, and overridden by {own}; set {own} as well."
        for key, own in (("updates", "methods.dpmcl.kappa"), ("lr", "methods.er.lr"))
    ]
    assert result.spec["methods"]["er"] == {"lr": 0.1}


def nested() -> dict[str, Any]:
    cycle: dict[str, Any] = {}
    cycle["a"] = cycle
    return cycle


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ([("a", 1)], "settings must be a mapping"),
        ({"x = 1 #": 3}, "dotted"),
        ({"training.lr": object()}, "valid number, got <object object>"),
        ({"training.lr": "x" * 10_000}, "..."),
        ({"training.lr": nested()}, "nested so deeply"),
        ({"network.hidden": 2**62}, "network cannot be built"),
        ({"network.name": "failing_module:N"}, "cannot be imported: division by zero"),
    ],
)
def test_settings_that_are_none(settings, words, stream, here, monkeypatch):
    (here / "failing_module.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(here)
    assert words in message_of(dpmcl.run, stream, methods="er", replicas=1, settings=settings)


def test_one_monitor_may_be_a_string(stream):
    assert list(run(stream, monitor="terms").readings) == ["er"]


# anything


HUGE = 10**5000  # too many digits for a repr
ODD = [
    None, True, -1, 0, 2, 2**63, HUGE, 0.5, float("nan"), 1j, np.float32(0.5), np.array([0.5, 0.5]),
    torch.tensor(1), torch.zeros(2).to_sparse(), Path("x"), b"x", object(), int, ER, lambda: 1,
    datetime.date(2020, 1, 1), nested(), pd.DataFrame(X), {"er"}, "er", "digits", "os:getcwd", ":",
]  # fmt: skip
ARGUMENTS = ("source", "methods", "replicas", "seed", "tasks", "device", "engine", "monitor")
KEYS = (
    "replicas", "threads", "stream", "network", "training", "methods", "evaluation", "monitor",
    "stream.split", "network.name", "network.hidden", "training.lr", "training.optimiser",
    "training.optimiser.name", "training.discount", "training.options", "methods.er",
    "methods.er.lr", "evaluation.evaluate_every", "monitor.watch", "er", "x = 1 #", "\ud800",
)  # fmt: skip


class Begun(Exception):
    """Raised in place of training, after the arguments were accepted."""


def begin(*_: Any) -> None:
    raise Begun


def hashable(value: Any) -> bool:
    return type(value).__hash__ is not None


def check_one_line(function: Any, *arguments: Any, **options: Any) -> None:
    """Check that a call returns, or raises an error of one line."""
    try:
        function(*arguments, **options)
    except Begun:
        pass
    except DpmclError as error:
        line = str(error)
        assert "\n" not in line
        assert len(line) < 2000
        assert not re.search("at 0x[0-9a-f]{6}", line)


@pytest.mark.parametrize("value", ODD, ids=lambda value: f"{type(value).__name__}")
def test_any_value_is_read_or_refused_in_one_line(value, stream, result):
    for name in ARGUMENTS:
        arguments = {"source": stream, "replicas": 1, "methods": ["er"], name: value}
        check_one_line(dpmcl.run, **arguments, settings=FEW, progress=begin)
    for settings in (
        value,
        *({**FEW, key: value} for key in KEYS),
        {value: 1} if hashable(value) else {},
    ):
        check_one_line(
            dpmcl.run, stream, methods="er", replicas=1, settings=settings, progress=begin
        )
    check_one_line(
        dpmcl.run, stream, methods="er", replicas=1, settings=FEW, progress=begin, out=value
    )
    if not callable(value):
        check_one_line(dpmcl.run, stream, methods="er", replicas=1, settings=FEW, progress=value)
    check_one_line(dpmcl.load, value)
    check_one_line(result.table, value)
    check_one_line(result.rows, value)
    check_one_line(result.plot, value)
    check_one_line(result.plot, what=value)


def test_true_draws_bars_and_false_does_not(stream, capsys):
    for progress, has_bars in ((True, True), (False, False)):
        dpmcl.run(stream, methods="er", replicas=1, settings=FEW, progress=progress)
        out, err = capsys.readouterr()
        assert ("er" in err and "100%" in err) == has_bars and out == ""


# processes that fork

FORKING = """
import multiprocessing, sys
import numpy as np, torch, dpmcl
from dpmcl.methods.er import ER

def job(seed):
    x = np.random.default_rng(0).normal(size=(60_000, 4))
    stream = dpmcl.Stream.from_arrays(x, np.arange(60_000) % 3)
    ER(discount={"name": "power", "p": 2})
    few = {"training.updates": 2, "network.hidden": 4}
    result = dpmcl.run(stream, methods=["er"], replicas=1, seed=seed, settings=few)
    return result.rows()[0]["cme_mean"] + dpmcl.load(sys.argv[1]).rows()[0]["cme_mean"]

if __name__ == "__main__":
    torch.set_num_threads(2)
    torch.rand(10**6).exp()  # starts a pool of threads, as a user's program may
    here = job(0)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.map_async(job, [0]).get(60) == [here]
    print("same")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_runs_too(here, result, stream):
    run(stream, out="run")
    (here / "forking.py").write_text(FORKING)
    ended = PythonProcess("forking.py", "run", folder=here).end(120)
    assert ended.out == "same\n", ended.err


def test_runs_in_several_threads_are_those_of_one(stream):
    def errors(seed: int) -> np.ndarray:
        return (
            dpmcl.run(stream, methods="er", replicas=1, seed=seed, settings=FEW).errors["er"].values
        )

    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(errors, range(3)))
    for seed, values in enumerate(together):
        np.testing.assert_array_equal(values, errors(seed))


def test_a_result_as_a_table_of_pandas(result):
    frame = result.to_pandas()
    errors = result.errors["er"]
    last = frame[(frame["method"] == "er") & (frame["after"] == frame["after"].max())]
    mean = last[last["split"] == "test"].groupby("seed")["error"].mean()
    np.testing.assert_allclose(mean.to_numpy(), errors.values[:, -1].mean(-1))
    assert repr(result) == "<Result of er on arrays, 1 replica>"
