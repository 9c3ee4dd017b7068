"""SINE's waves: their ranges, their small steps, and the replicas that draw them."""

import math

import pytest
import torch

from dpmcl.data.splits import split
from dpmcl.streams.sine import RANGES, Sine

LOW, HIGH = RANGES.T.float()


def parameters(replica=0, seeds=(0,), **settings):
    """Return the parameters of each row of a replica, (tasks, rows, 3)."""
    stream = Sine(**settings).build(seeds)
    return stream.x[stream.row[replica]].view(len(stream.tasks), -1, 3)


def test_the_shapes_are_the_papers_and_replicas_have_rows_of_their_own():
    stream = Sine().build([0, 1])
    assert stream.x.shape == (2 * 50 * 534, 3)
    assert stream.y.shape == (2 * 50 * 534, 100)
    assert (stream.kind, len(stream.tasks), stream.outputs) == ("regression", 50, 100)
    splits = split(stream, [0, 1], (0.6, 0.2, 0.2))
    assert splits.train.offset.diff(dim=1).unique().tolist() == [320]
    assert set(stream.row[0].tolist()).isdisjoint(stream.row[1].tolist())


def test_a_target_is_the_wave_of_its_input():
    stream = Sine(tasks=2, rows=5, outputs=11).build([3])
    amplitude, phase, frequency = stream.x[7].tolist()
    t = [0.001 * i for i in range(11)]
    wave = [amplitude * math.sin(2 * math.pi * frequency * s / 0.01 + phase) for s in t]
    assert stream.y[7].tolist() == pytest.approx(wave, abs=1e-5)


@pytest.mark.parametrize("jitter", [0.0, 0.01, 1.0])
def test_parameters_stay_in_range_move_a_little_and_jitter_tells_rows_apart(jitter):
    for replica in range(4):
        x = parameters(replica, range(4), rows=6, increment=0.1, jitter=jitter)
        assert ((x >= LOW - 1e-6) & (x <= HIGH + 1e-6)).all()
        waves = parameters(replica, range(4), rows=6, increment=0.1, jitter=0.0)
        assert (waves == waves[:, :1]).all()
        step = waves[:, 0].diff(dim=0).abs() / (HIGH - LOW)
        assert (step <= 0.1 + 1e-6).all()
        assert (step.amax(0) > 0.02).all()
        assert ((x - waves).abs() <= jitter * (HIGH - LOW) + 1e-5).all()
        assert len(x[0].unique(dim=0)) == (6 if jitter else 1)


def test_fewer_tasks_have_the_same_rows_and_another_seed_has_others():
    whole = parameters(seeds=[6], tasks=4, rows=5)
    assert torch.equal(parameters(seeds=[6], tasks=3, rows=5), whole[:3])
    assert not torch.equal(parameters(0, [5, 6, 7], tasks=4, rows=5), whole)
