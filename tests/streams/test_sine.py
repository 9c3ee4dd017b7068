"""SINE's waves: their ranges, their small steps, and whose they are."""

import math

import pytest
import torch

from dpmcl.data.splits import split
from dpmcl.streams.sine import RANGES, Sine


def parameters(stream, replica):
    """The parameters of each row, (tasks, rows, 3)."""
    return stream.x[stream.row[replica]].view(len(stream.tasks), -1, 3)


def test_the_shapes_are_the_papers():
    stream = Sine().build([0, 1])
    assert stream.x.shape == (2 * 50 * 534, 3)
    assert stream.y.shape == (2 * 50 * 534, 100)
    assert (stream.kind, len(stream.tasks), stream.outputs) == ("regression", 50, 100)
    splits = split(stream, [0, 1], (0.6, 0.2, 0.2))
    assert splits.train.offset.diff(dim=1).unique().tolist() == [320]


def test_a_target_is_the_wave_of_its_input():
    stream = Sine(tasks=2, rows=5, outputs=11).build([3])
    amplitude, phase, frequency = stream.x[7].tolist()
    t = [0.001 * i for i in range(11)]
    wave = [amplitude * math.sin(2 * math.pi * frequency * s / 0.01 + phase) for s in t]
    assert stream.y[7].tolist() == pytest.approx(wave, abs=1e-5)


def test_parameters_stay_in_range_and_move_a_little():
    stream = Sine(rows=4, increment=0.1, jitter=0.0).build(range(20))
    low, high = RANGES.T
    span = high - low
    for replica in range(20):
        waves = parameters(stream, replica)[:, 0].double()
        assert (waves >= low - 1e-6).all()
        assert (waves <= high + 1e-6).all()
        assert ((waves.diff(dim=0).abs() / span) <= 0.1 + 1e-6).all()
        assert ((waves.diff(dim=0).abs() / span).amax(0) > 0.02).all()


def test_jitter_tells_rows_apart_and_zero_does_not():
    still = parameters(Sine(tasks=3, rows=6, jitter=0.0).build([0]), 0)
    assert (still == still[:, :1]).all()
    moved = parameters(Sine(tasks=3, rows=6, jitter=0.01).build([0]), 0)
    span = (RANGES[:, 1] - RANGES[:, 0]).float()
    assert ((moved - still).abs() <= 0.01 * span + 1e-5).all()
    assert len(moved[0].unique(dim=0)) == 6


@pytest.mark.parametrize("jitter", [0.01, 0.5, 1.0])
def test_jitter_stays_in_range_too(jitter):
    stream = Sine(tasks=50, rows=40, jitter=jitter).build(range(4))
    low, high = RANGES.T.float()
    assert (stream.x >= low).all()
    assert (stream.x <= high).all()


def test_every_replica_draws_its_own_alone_or_among_others():
    among, alone = Sine(tasks=4, rows=5).build([5, 6, 7]), Sine(tasks=4, rows=5).build([6])
    assert torch.equal(parameters(among, 1), parameters(alone, 0))
    assert not torch.equal(parameters(among, 0), parameters(among, 1))
    assert set(among.row[0].tolist()).isdisjoint(among.row[1].tolist())


def test_fewer_tasks_are_the_first_ones():
    short, full = Sine(tasks=3, rows=5).build([1]), Sine(tasks=9, rows=5).build([1])
    assert torch.equal(parameters(short, 0), parameters(full, 0)[:3])
