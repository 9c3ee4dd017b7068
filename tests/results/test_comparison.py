"""Which settings tell the methods of several runs apart, and what each is called."""

import numpy as np

from dpmcl.core.errors import Errors
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


def labels(methods: list[Entry]) -> list[str]:
    return [entry.label for entry in methods]


def test_two_rates_are_two_names() -> None:
    several = entries({"a": stored("er", "naive"), "b": stored("er", lr=0.1)})
    assert differing_settings(several) == ["lr"]
    assert labels(several) == ["er (lr 0.01)", "naive", "er (lr 0.1)"]


def test_a_methods_own_setting_goes_before_that_of_all() -> None:
    several = entries({"a": stored("er"), "b": stored("er", own={"er": {"lr": 0.01}}, lr=0.5)})
    assert differing_settings(several) == []
    assert labels(several) == ["er [a]", "er [b]"]  # nothing but the folder tells them apart


def test_one_run_and_settings_that_another_method_lacks_make_no_column() -> None:
    zeta = {"dpmcl": {"zeta": 5}}
    assert differing_settings(entries({"a": stored("er", "dpmcl", own={"er": {"lr": 1.0}})})) == []
    assert differing_settings(entries({"a": stored("er"), "b": stored("dpmcl", own=zeta)})) == []


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


def test_a_name_of_ones_own_is_a_setting_where_it_stands_for_two_methods() -> None:
    slow, fast = ({"slow": {"method": name}} for name in ("er", "dpmcl"))
    assert differing_settings(entries({"a": stored("er"), "b": stored("slow", own=slow)})) == []
    two = {"a": stored("slow", own=slow), "b": stored("slow", own=fast)}
    assert differing_settings(entries(two)) == ["method"]


def test_streams_are_not_compared_with_each_other() -> None:
    several = entries({"a": stored("er"), "b": stored("er", stream="mnist", lr=0.5)})
    assert differing_settings(several) == []
    assert labels(several) == ["er", "er"]


def test_values_are_written_as_in_a_spec() -> None:
    values = [None, True, 1e-4, 300, ["a", 0.5], (), {"name": "step", "every": 2}]
    texts = ["-", "true", "0.0001", "300", "a, 0.5", "none", "name step, every 2"]
    assert [setting_text(value) for value in values] == texts
