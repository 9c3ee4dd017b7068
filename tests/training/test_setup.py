"""The running statistics of a network move once an update, by the rows of its real step."""

import pytest
import torch
from torch import nn

from conftest import model_of, same_bits, setup_of, tiny_stream
from dpmcl import plugins
from dpmcl.data.stream import Stream
from dpmcl.training import loop
from dpmcl.training.observer import Observer


class LastUpdate(Observer):
    """Keeps the batches of the last update, and the running mean after it."""

    def after_segment(self, setup, run, segment):
        self.batches = segment.feed.batches(0, 0)
        self.mean = run.replicas.buffers["representation"]["0.running_mean"][0]
        return run


def made(name, stream, momentum=1.0, **settings):
    """The setup of a method and a network with running statistics."""

    def network():
        normalise = nn.BatchNorm1d(2, momentum=momentum)
        return nn.Sequential(normalise, nn.Linear(2, 8)), nn.Linear(8, stream.outputs)

    method = plugins.find("method", name)(batch=4, memory=7, **settings)
    return setup_of(method, stream, (3,), model=model_of(stream, network))


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
    """With a momentum of 1 the mean is that of the last rows."""
    monkeypatch.setattr(loop, "UPDATES_AT_ONCE", 1)
    last = LastUpdate()
    loop.train(made(name, tiny_stream(2), updates=2, **options), [last])
    rows = torch.cat([last.batches[draw].x for draw in draws])
    torch.testing.assert_close(last.mean, rows.mean(0))


@pytest.mark.parametrize("over", ["task", "run"])
def test_updates_that_do_not_train_move_no_statistics_and_no_schedule(over):
    """Without a penalty EWC is naive training, although it goes over the rows once more."""
    own = {"updates": 5, "optimiser": "sgd", "schedule": {"name": "cosine", "over": over}}
    naive = loop.train(made("naive", tiny_stream(2), **own)).replicas
    ewc = loop.train(made("ewc", tiny_stream(2), strength=0.0, **own)).replicas
    assert same_bits((naive.theta, naive.buffers), (ewc.theta, ewc.buffers))


def test_rates_that_are_compared_move_no_statistics():
    tiny = tiny_stream(3)
    names = [f"class {c}" for c in tiny.y.tolist()]
    stream = Stream.from_arrays(tiny.x, names, tasks=3, background=3)
    own = {"reading": "original", "updates": 3, "meta_updates": 3, "pretraining": "plain"}
    setup = made("cml", stream, rates=[0.01, 0.1], **own)
    run = loop.train(setup)
    after = loop.after_evaluation_phases(setup, run, 2).replicas
    assert after.extra["right"].any()
    assert same_bits(after.buffers, run.replicas.buffers)
