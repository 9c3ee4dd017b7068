"""The public checks of streams, metrics and networks name the promise that a member breaks."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dpmcl
from conftest import Layer
from dpmcl import DataError, ModelError, NetworkSettings, Stream, StreamSettings, plugins
from dpmcl.testing import check_metric, check_network, check_stream

COUNT = iter(range(1000))


PROMISES: dict[str, tuple[Callable[[Stream], Any], str]] = {
    "global": (lambda s: replace(s, x=torch.rand(12, 1)), "the same rows"),
    "call": (lambda s: replace(s, x=s.x + next(COUNT)), "the same rows"),
    "label": (lambda s: replace(s, y=s.y + 1), "labels are numbers of its classes"),
    "order": (lambda s: replace(s, task=s.task.flip(1)), "task by task"),
    "company": (lambda s: s, "a seed has the same rows beside others as alone"),
    "replicas": (
        lambda s: replace(s, row=s.row.repeat(3, 1), task=s.task.repeat(3, 1)),
        "its rows come task by task, for all replicas or for each",
    ),
    "trajectory": (
        lambda s: replace(s, trajectory=torch.arange(6)),
        "`trajectory` has a number for each row of the pool",
    ),
    "following": (
        lambda s: replace(s, following=torch.arange(12)),
        "`following` leads to a row of the same `trajectory`",
    ),
    "array": (lambda s: replace(s, x=s.x.numpy()), "`x` is a tensor"),
    "kind": (
        lambda s: replace(s, kind="clasification"),
        "its `kind` is classification or regression",
    ),
    "complex": (lambda s: replace(s, x=s.x + 1j), "`x` has real numbers"),
    "float": (lambda s: replace(s, row=s.row.double()), "`row` is int64"),
    "vector": (lambda s: replace(s, x=s.x[:, 0]), "inputs have a dimension beside the rows"),
    "twice": (
        lambda s: replace(s, row=s.row.roll(1).clamp(min=1)),
        "a row is in one task, once, or it could be trained on and tested",
    ),
    "no stream": (lambda s: s.x, "`build` returns a Stream"),
    "infinite": (lambda s: replace(s, x=s.x / 0), "finite"),
    "int32": (lambda s: replace(s, y=s.y.int()), "labels are numbers of its classes, int64"),
    "column": (lambda s: replace(s, y=s.y[:, None]), "labels are numbers of its classes, int64"),
}


@dataclass(frozen=True, kw_only=True)
class Broken(StreamSettings):
    kind: str

    def build(self, seeds):
        x = torch.arange(12.0)[:, None] + (len(seeds) if self.kind == "company" else 0)
        return PROMISES[self.kind][0](Stream.from_arrays(x, [*"aabbccaabbcc"]))


@pytest.mark.parametrize("kind", PROMISES)
def test_a_broken_stream_is_named_and_refused_by_a_run_that_can_tell(kind, tmp_path):
    broken = PROMISES[kind][1]
    with pytest.raises(AssertionError, match=broken):
        check_stream(Broken(kind=kind))
    if kind in ("global", "call", "order", "infinite"):
        return
    name = f"{Broken.__module__}:Broken"
    spec = {"stream": {"name": name, "kind": kind}, "replicas": 3, "methods": {"naive": {}}}
    spec |= {"training": {"updates": 2, "batch": 2}}
    promise = "which fails for seed 2; draw each" if kind == "company" else broken
    line = rf"Stream '{name}' must promise that .*{re.escape(promise)}"
    with pytest.raises(DataError, match=line):
        dpmcl.run(spec, out=tmp_path / "run")


def changing(errors):
    errors.values[:] = 0
    return errors.after[:, -1].mean(1)


@pytest.mark.parametrize(
    ("metric", "promise"),
    [
        (changing, "changes nothing"),
        (lambda errors: errors.after[:, -1].mean(1) * np.nan, "finite"),
        (lambda errors: errors.after.mean(), "one finite number"),
        (lambda errors: errors.after[:, -1].mean(1).squeeze(), "one finite number"),
        (lambda errors: errors.before[:, 0] - errors.before[:, 0].mean(), "other replicas"),
    ],
)
def test_a_broken_metric_is_named(metric, promise):
    with pytest.raises(AssertionError, match=promise):
        check_metric(metric)


@pytest.mark.parametrize("name", plugins.names("metric"))
def test_metrics_of_the_package_keep_their_promises(name):
    check_metric(plugins.find("metric", name))


@dataclass(frozen=True, kw_only=True)
class Net(NetworkSettings):
    function: str
    width: int = 0

    def build(self, shape, outputs):
        between = {
            "mix": lambda _, x: x - x.mean(0),
            "draw": lambda _, x: x + torch.rand(x.shape),
            "relu": lambda _, x: torch.relu(x),
        }
        h = nn.Sequential(nn.Linear(*shape, 5), Layer(between[self.function]))
        return h, nn.Linear(5, self.width or outputs)


@pytest.mark.parametrize(
    ("settings", "promise"),
    [({"function": "mix"}, "only on its row"), ({"function": "draw"}, "may change nothing"),
     ({"function": "relu", "width": 7}, "must give one tensor")],
)  # fmt: skip
def test_a_broken_network_is_named(settings, promise):
    check_network(Net(function="relu"), (4,))
    with pytest.raises(ModelError, match=promise):
        check_network(Net(**settings), (4,))
