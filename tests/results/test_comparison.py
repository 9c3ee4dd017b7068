"""Which settings tell the methods of several runs apart, and what each is called."""

from dataclasses import replace

import numpy as np
import pytest

from dpmcl.core.errors import Errors
from dpmcl.exceptions import SpecError
from dpmcl.results import against
from dpmcl.results.comparison import Entry, differing_settings, entries, setting_text
from dpmcl.results.record import Record
from dpmcl.results.store import Stored, StreamInfo

ONE = Record({"test": Errors((0,), np.zeros((1, 2, 1)), np.ones((1, 1)))})


def stored(*methods: str, stream: str = "digits", own=None, **training) -> Stored:
    spec = {
        "replicas": 3,
        "device": "cpu",
        "stream": {"name": stream},
        "training": {"lr": 0.01, **training},
        "methods": {method: (own or {}).get(method, {}) for method in methods},
    }
    info = StreamInfo(stream, "classification", ("0",), ("0",))
    return Stored(spec, info, dict.fromkeys(methods, ONE))


def on_data(digest: str, method: str = "er", *, name: str = "my", **settings) -> Stored:
    run = stored(method, stream="table")
    run.spec["stream"].update(settings)
    return replace(run, stream=replace(run.stream, name=name, digest=digest))


def labels(methods: list[Entry]) -> list[str]:
    return [entry.label for entry in methods]


@pytest.mark.parametrize(
    ("runs", "settings", "names"),
    [
        ([stored("er", "naive"), stored("er", lr=0.1)], ["lr"],
         ["er (lr 0.01)", "naive", "er (lr 0.1)"]),
        # A method's own setting goes before that of all; nothing but the folder tells them apart.
        ([stored("er"), stored("er", own={"er": {"lr": 0.01}}, lr=0.5)], [], ["er [a]", "er [b]"]),
        ([stored("er", "dpmcl", own={"er": {"lr": 1.0}})], [], ["er", "dpmcl"]),
        ([stored("er"), stored("dpmcl", own={"dpmcl": {"zeta": 5}})], [], ["er", "dpmcl"]),
        # A name of one's own is a setting where it stands for two methods.
        ([stored("er"), stored("slow", own={"slow": {"method": "er"}})], [], ["er", "slow"]),
        ([stored("slow", own={"slow": {"method": name}}) for name in ("er", "dpmcl")], ["method"],
         ["slow (method er)", "slow (method dpmcl)"]),
        # Streams are not compared with each other.
        ([stored("er"), stored("er", stream="mnist", lr=0.5)], [], ["er", "er"]),
    ],
)  # fmt: skip
def test_settings_that_differ_are_named(runs, settings, names) -> None:
    several = entries(dict(zip("ab", runs, strict=False)))
    assert (differing_settings(several), labels(several)) == (settings, names)


def test_a_setting_that_only_one_run_has_tells_them_apart() -> None:
    plain = stored("er", "dpmcl")
    other = stored("er", "dpmcl", own={"dpmcl": {"tau": 3}}, cost="huber", options=[])
    other.spec.update(precision="bf16", evaluation={"held_out": 0.25})
    several = entries({"a": plain, "b": other})
    assert differing_settings(several) == ["precision", "evaluation.held_out", "cost", "tau"]
    assert labels(several)[0] == "er (precision -, evaluation.held_out -, cost -)"
    plain.spec.update(network={"name": "mlp", "hidden": 9})
    other = stored("er")
    other.spec.update(network={"name": "lenet"})
    assert differing_settings(entries({"a": plain, "b": other})) == ["network.name"]


def test_values_are_written_as_in_a_spec() -> None:
    values = [None, True, 1e-4, 300, ["a", 0.5], (), {"name": "step", "every": 2}]
    texts = ["-", "true", "0.0001", "300", "a, 0.5", "none", "name step, every 2"]
    assert [setting_text(value) for value in values] == texts


@pytest.mark.parametrize("other", [{}, {"path": "/b/my.csv"}])
def test_other_data_with_the_same_settings_are_another_stream(other) -> None:
    """A paired test of two methods on two data sets would mean nothing."""
    first = on_data("aaaaaaaaaa", path="/a/my.csv")
    runs = {"a": first, "b": on_data("bbbbbbbbbb", "naive", **{"path": "/a/my.csv", **other})}
    several = entries(runs)
    assert [one.stream.name for one in several] == ["my (data of a)", "my (data of b)"]
    with pytest.raises(SpecError, match="a method that has others to compare with"):
        against.rows(several, "er")


def test_equal_data_and_data_of_other_settings_keep_the_name_of_the_stream() -> None:
    same = {"b": on_data("aaaa", "naive"), "c": on_data("", "joint"), "d": on_data("b", name="own")}
    runs = {"a": on_data("aaaa"), **same, "e": on_data("bbbb", order_seed=1)}
    assert [one.stream.name for one in entries(runs)] == ["my", "my", "my", "own", "my"]


@pytest.mark.parametrize(
    ("other", "warning"),
    [({"order_seed": 1}, "Runs on 'my' differ in stream.order_seed, so"), ({"path": "/b"}, "")],
)
def test_common_settings_that_differ_between_compared_methods_are_named(
    other, warning, caplog
) -> None:
    runs = {"a": on_data("aaaa"), "b": on_data("b" if warning else "aaaa", "naive", **other)}
    against.rows(entries(runs), "er")
    assert (warning in caplog.text) if warning else not caplog.text


def test_runs_of_two_versions_of_the_package_differ_in_a_setting(caplog) -> None:
    old, new = (
        replace(stored(method), environment=[{"method": method, "dpmcl": number}])
        for method, number in (("er", "0.2.0"), ("naive", "0.3.0"))
    )
    both = entries({"a": old, "b": new})
    assert differing_settings(both) == ["dpmcl version"]
    against.rows(both, "er")
    assert "differ in dpmcl version, so" in caplog.text
    assert differing_settings(entries({"a": old, "b": old})) == []


def test_code_that_was_edited_between_two_runs_is_a_setting(caplog) -> None:
    net = "network 'plug:Net'"
    er, naive, joint = (
        replace(stored(method), code={method: {net: {"plug": digest}}})
        for method, digest in (("er", "one"), ("naive", "other"), ("joint", "one"))
    )
    assert differing_settings(entries({"a": er, "b": naive})) == [f"code of {net}"]
    against.rows(entries({"a": er, "b": naive}), "er")
    assert f"differ in code of {net}, so" in caplog.text
    assert differing_settings(entries({"a": er, "b": joint, "c": stored("si")})) == []
    plain = replace(er, spec={**er.spec, "network": {"name": "mlp"}}, code={})
    other = replace(er, spec={**er.spec, "network": {"name": "plug:Net"}})
    assert differing_settings(entries({"a": other, "b": plain})) == ["network.name"]
