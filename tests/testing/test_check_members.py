"""The public checks of streams, metrics and networks name the promise that a member breaks."""

import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

import dpmcl
from conftest import Layer
from dpmcl import DataError, ModelError, NetworkSettings, Stream, StreamSettings, plugins
from dpmcl.testing import check_metric, check_network, check_stream

COUNT = iter(range(1000))


@dataclass(frozen=True, kw_only=True)
class Broken(StreamSettings):
    kind: str

    def build(self, seeds):
        stream = Stream.from_arrays(torch.arange(12.0)[:, None], [*"aabbccaabbcc"])
        match self.kind:
            case "global":
                return replace(stream, x=torch.rand(12, 1))
            case "call":
                return replace(stream, x=stream.x + next(COUNT))
            case "label":
                return replace(stream, y=stream.y + 1)
            case "order":
                return replace(stream, task=stream.task.flip(1))
            case "company":
                return replace(stream, x=stream.x + len(seeds))
            case "replicas":
                return replace(stream, row=stream.row.repeat(3, 1), task=stream.task.repeat(3, 1))
            case "trajectory":
                return replace(stream, trajectory=torch.arange(6))
            case "following":
                return replace(stream, following=torch.arange(12))
            case "array":
                return replace(stream, x=stream.x.numpy())
            case "kind":
                return replace(stream, kind="clasification")
            case "complex":
                return replace(stream, x=stream.x + 1j)
            case "float":
                return replace(stream, row=stream.row.double())
            case "vector":
                return replace(stream, x=stream.x[:, 0])
            case "twice":
                return replace(stream, row=stream.row.roll(1).clamp(min=1))
            case "no stream":
                return stream.x
        return replace(stream, x=stream.x / 0)


PROMISES = {
    "global": "the same rows",
    "call": "the same rows",
    "label": "labels are numbers of its classes",
    "order": "task by task",
    "company": "a seed has the same rows beside others as alone",
    "replicas": "its rows come task by task, for all replicas or for each",
    "trajectory": "`trajectory` has a number for each row of the pool",
    "following": "`following` leads to a row of the same `trajectory`",
    "array": "`x` is a tensor",
    "kind": "its `kind` is classification or regression",
    "complex": "`x` has real numbers",
    "float": "`row` is int64",
    "vector": "inputs have a dimension beside the rows",
    "twice": "a row is in one task, once, or it could be trained on and tested",
    "no stream": "`build` returns a Stream",
    "infinite": "finite",
}


@pytest.mark.parametrize("kind", PROMISES)
def test_a_broken_stream_is_named_and_refused_by_a_run_that_can_tell(kind, tmp_path):
    with pytest.raises(AssertionError, match=PROMISES[kind]):
        check_stream(Broken(kind=kind))
    if kind in ("global", "call", "order", "infinite"):
        return
    name = f"{Broken.__module__}:Broken"
    spec = {"stream": {"name": name, "kind": kind}, "replicas": 3, "methods": {"naive": {}}}
    spec |= {"training": {"updates": 2, "batch": 2}}
    promise = "which fails for seed 2; draw each" if kind == "company" else PROMISES[kind]
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
