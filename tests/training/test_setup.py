"""The running statistics of a network move once an update, by the rows of its real step."""

import pytest
import torch
from torch import nn

from conftest import tiny_stream
from dpmcl import plugins
from dpmcl.core.model import Model
from dpmcl.data.splits import split
from dpmcl.engine import Looped
from dpmcl.training import loop
from dpmcl.training.observer import Observer
from dpmcl.training.setup import Setup


class LastUpdate(Observer):
    """Keeps the batches of the last update, and the running mean after it."""

    def after_segment(self, setup, run, segment):
        self.batches = segment.feed.batches(0, 0)
        self.mean = run.replicas.buffers["representation"]["0.running_mean"][0]
        return run


@pytest.mark.parametrize(
    ("name", "options", "draws"),
    [
        ("er", {}, ["replay"]),
        ("replay", {}, ["new", "past"]),
        ("dpmcl", {}, ["new", "past"]),
        ("oml", {"reading": "nested", "inner": 2}, ["seen"]),
    ],
)
def test_running_statistics_move_by_the_rows_of_the_step(monkeypatch, name, options, draws):
    monkeypatch.setattr(loop, "UPDATES_AT_ONCE", 1)
    stream = tiny_stream(2)

    def network():
        normalise = nn.BatchNorm1d(2, momentum=1.0)  # so that the mean is that of the last rows
        return nn.Sequential(normalise, nn.Linear(2, 8)), nn.Linear(8, stream.outputs)

    setup = Setup(
        method=plugins.find("method", name)(batch=4, updates=2, memory=7, **options),
        model=Model.build(
            network, stream.kind, stream.example(torch.float64), stream.outputs, dtype=torch.float64
        ),
        stream=stream,
        splits=split(stream, (3,), (0.6, 0.2, 0.2)),
        seeds=(3,),
        engine=Looped(),
    )
    last = LastUpdate()
    loop.train(setup, [last])
    rows = torch.cat([last.batches[draw].x for draw in draws])
    torch.testing.assert_close(last.mean, rows.mean(0))
