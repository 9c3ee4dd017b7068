"""Streams of differential equations: closed forms, an integrator of our own, and whose rows."""

import builtins
import itertools
import math

import numpy as np
import pytest
import torch

import dpmcl
from dpmcl import plugins
from dpmcl.core import keys
from dpmcl.data.splits import split
from dpmcl.exceptions import DataError, SpecError
from dpmcl.streams._dynamics import integrated
from dpmcl.streams.burgers import Burgers
from dpmcl.streams.lorenz import Lorenz
from dpmcl.streams.oscillator import Oscillator

STREAMS = ("oscillator", "lorenz", "burgers")
SMALL = {"tasks": 4, "trajectories": 10, "samples": 3}


def settings(name, **changes):
    return plugins.find("stream", name)(**{**SMALL, **changes})


def of_windows(stream, replica=0):
    """A replica's inputs, the window after the last task too: (windows, trajectories, samples)."""
    return stream.x.view(len(stream.row), 5, 10, 3, -1)[replica].double().numpy()


def beginning(made, seed=0):
    return made.start(keys.derive(seed, keys.Purpose.STREAM))


def runge_kutta(rate, state, times, most):
    """The classical rule of order 4, in steps of at most `most`, from t = 0."""
    out, t = [], 0.0
    for goal in times:
        n = max(1, math.ceil((goal - t) / most))
        h = (goal - t) / n
        for i in range(n):
            now = t + i * h
            k1 = rate(now, state)
            k2 = rate(now + h / 2, state + h / 2 * k1)
            k3 = rate(now + h / 2, state + h / 2 * k2)
            k4 = rate(now + h, state + h * k3)
            state = state + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        t = goal
        out.append(state)
    return np.stack(out)


@pytest.mark.parametrize("force", [0.0, 0.7])
def test_an_oscillator_without_drift_is_the_closed_form(force):
    w, z, W = 2.0, 0.1, 3.0
    made = settings("oscillator", frequency=w, damping=z, drift=0.0, force=force, drive=W)
    x = of_windows(made.build([3]), 0)
    t = (np.arange(5)[:, None] + np.arange(3) / 3)[:, None]
    steady = force / (w**2 - W**2 + 2j * z * w * W)
    q0, v0 = x[0, :, 0, 0], w * x[0, :, 0, 1]
    root = w * complex(-z, math.sqrt(1 - z**2))
    a = q0 - steady.real  # of the free part, which is Re(c exp(root t))
    b = v0 - (steady * 1j * W).real
    c = a + 1j * (root.real * a - b) / root.imag
    free = c[:, None] * np.exp(root * t)
    forced = steady * np.exp(1j * W * t)
    assert x[..., 0] == pytest.approx((free + forced).real, abs=1e-5)
    assert w * x[..., 1] == pytest.approx((root * free + 1j * W * forced).real, abs=1e-5)
    assert x[..., 2] == pytest.approx(np.broadcast_to(force * np.cos(W * t) / w**2, (5, 10, 3)))
    assert np.ptp(x[..., 0]) > 0.5


def test_the_drift_of_the_stiffness_is_seen_unless_it_is_hidden():
    made = settings("oscillator", drift=0.1)
    x = of_windows(made.build([0]))
    assert x.shape[-1] == 4
    assert x[3, 5, 0, 3] == pytest.approx(math.exp(2 * 0.1 * 3.0), rel=1e-6)
    hidden = of_windows(settings("oscillator", drift=0.1, observed=False).build([0]))
    assert np.array_equal(hidden, x[..., :3])


def textbook(made):
    """Each equation, written once more."""
    if isinstance(made, Oscillator):

        def rate(t, s):
            w = made.frequency * math.exp(made.drift * t)
            push = made.force * math.cos(made.drive * t)
            return np.array([s[1], push - 2 * made.damping * w * s[1] - w * w * s[0]])

    elif isinstance(made, Lorenz):

        def rate(t, s):
            x, y, z = s
            return np.array([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])

    else:
        dx = 2 * math.pi / made.points

        def rate(t, u):
            out = []
            for i in range(len(u)):
                before, after = u[i - 1], u[(i + 1) % len(u)]
                flux = (after**2 / 2 - before**2 / 2) / (2 * dx)
                bend = (after - 2 * u[i] + before) / dx**2
                out.append(made.viscosity * bend - made.advection * flux)
            return np.array(out)

    return rate


@pytest.mark.parametrize("name", STREAMS)
def test_a_row_follows_its_own_one_window_earlier(name):
    made = settings(name, **({"points": 8} if name == "burgers" else {}))
    stream = made.build([4, 5])
    t = (np.arange(15) * made.window / 3)[:, None]
    state = beginning(made, 5)[7]
    own = runge_kutta(textbook(made), state, t[:, 0], made.window / 100)
    expected = made.seen(t[:, 0], own[:, None])[:, 0]
    replica, trajectory, sample = 1, 7, 2
    row = stream.row[replica].view(4, 10, 3)[0, trajectory, sample]
    for window in range(5):
        assert stream.x[row].numpy() == pytest.approx(expected[3 * window + 2], abs=2e-6)
        assert stream.trajectory[row] == trajectory
        row = stream.following[row]
    assert stream.following[row] == row


@pytest.mark.parametrize("name", STREAMS)
def test_the_target_becomes_the_equations_right_hand_side(name):
    wrong = []
    for share in (0.02, 0.01):
        window = settings(name).window
        made = settings(name, step=share * window)
        y = made.build([2]).y.view(5, 10, 3, -1).double().numpy()
        t = np.arange(15) * window / 3
        state = integrated(made.rate, beginning(made, 2), t, window)
        rate = np.stack([made.rate(*at) for at in zip(t, state, strict=True)]) / made.unit()
        rate = rate.reshape(5, 3, 10, -1).swapaxes(1, 2)
        wrong.append(np.sqrt(((y - rate) ** 2).mean() / (rate**2).mean()))
    assert wrong[1] < 0.05
    assert wrong[0] / wrong[1] == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize("k", [1, 3])
def test_heat_decays_as_the_eigenvalue_of_the_second_difference_says(k):
    made = Burgers(advection=0.0, viscosity=0.3, points=32)
    dx = 2 * math.pi / 32
    mode = np.cos(k * dx * np.arange(32))[None]
    t = np.array([0.0, 0.5, 2.0])
    eigenvalue = (2 * math.sin(k * dx / 2) / dx) ** 2
    decay = np.exp(-0.3 * eigenvalue * t)[:, None, None]
    assert integrated(made.rate, mode, t, 0.2) == pytest.approx(decay * mode, abs=1e-8)
    assert eigenvalue == pytest.approx(k**2, rel=0.03)


def test_burgers_differences_approach_the_derivatives():
    x = 2 * math.pi * np.arange(256) / 256
    u = np.sin(x)[None]
    rate = Burgers(points=256, viscosity=0.5, advection=2.0).rate(0.0, u)[0]
    assert rate == pytest.approx(-2 * np.sin(x) * np.cos(x) - 0.5 * np.sin(x), abs=1e-3)


def test_burgers_conserves_the_mean_and_loses_energy():
    u = of_windows(settings("burgers").build([0]))[:, :, 0]
    assert u.mean(-1) == pytest.approx(np.ones((5, 10)), abs=1e-6)
    assert (np.diff(u.var(-1), axis=0) < 0).all()


def test_lorenz_starts_on_the_attractor_in_a_cloud():
    made = settings("lorenz", radius=0.5)
    clouds = np.stack([beginning(made, seed) for seed in range(8)])
    assert (np.ptp(clouds, axis=1) <= 1.0).all()
    assert (np.ptp(clouds, axis=1) > 0.4).all()
    points = clouds.mean(1)
    assert (np.abs(points) < [21, 29, 50]).all()
    assert (points[:, 2] > 0).all()
    assert points[:, 0].min() < -3
    assert points[:, 0].max() > 3


@pytest.mark.parametrize("name", STREAMS)
def test_the_pool_is_one_window_longer_than_the_tasks(name):
    stream = settings(name).build([0, 1])
    each = 10 * 3
    assert stream.row.shape == stream.task.shape == (2, 4 * each)
    assert len(stream.x) == len(stream.y) == len(stream.following) == 2 * 5 * each
    assert stream.task[1].tolist() == [k for k in range(4) for _ in range(each)]
    assert stream.following[stream.row].tolist() == (stream.row + each).tolist()
    assert (stream.x.dtype, stream.y.dtype) == (torch.float32, torch.float32)
    assert stream.trajectory[stream.row[1, :7]].tolist() == [0, 0, 0, 1, 1, 1, 2]
    assert stream.scenario.startswith(f"windows dt = {settings(name).window:g} of ")


def test_tasks_are_named_by_their_time():
    stream = settings("lorenz", window=0.2).build([0])
    assert stream.tasks == ("t = 0 .. 0.2", "t = 0.2 .. 0.4", "t = 0.4 .. 0.6", "t = 0.6 .. 0.8")


@pytest.mark.parametrize("name", STREAMS)
def test_a_replica_draws_its_own_alone_or_among_others(name):
    among, alone = settings(name).build([5, 6, 7]), settings(name).build([6])
    for many, one in ((among.x, alone.x), (among.y, alone.y)):
        many = many.view(3, *one.shape)
        assert torch.equal(many[1], one)
        assert not torch.equal(many[0], one)


@pytest.mark.parametrize("name", STREAMS)
def test_fewer_tasks_are_the_first_ones(name):
    short, full = settings(name, tasks=2).build([1]), settings(name).build([1])
    assert short.tasks == full.tasks[:2]
    assert torch.equal(short.x, full.x[: len(short.x)])
    assert torch.equal(short.y, full.y[: len(short.y)])


@pytest.mark.parametrize("name", STREAMS)
def test_a_trajectory_is_in_one_split_in_every_task(name):
    stream = plugins.find("stream", name)(tasks=3, samples=4).build([0, 1])
    splits = split(stream, [0, 1], (0.6, 0.2, 0.2))
    for replica in range(2):
        found = []
        for part in splits:
            rows, task = part.row[replica], part.task[replica]
            found.append([set(stream.trajectory[rows[task == k]].tolist()) for k in range(3)])
            assert found[-1][0] == found[-1][1] == found[-1][2]
        assert [len(part[0]) for part in found] == [36, 12, 12]
        assert all(a[0].isdisjoint(b[0]) for a, b in itertools.combinations(found, 2))


@pytest.mark.parametrize("name", STREAMS)
def test_the_defaults_shift_from_task_to_task_and_are_of_order_one(name):
    stream = plugins.find("stream", name)().build([0, 1])
    x = stream.x[stream.row].view(2, 20, 480, -1)
    moved = (x.mean(2)[:, -1] - x.mean(2)[:, 0]).norm(dim=1)
    assert (moved > x.std(2)[:, 0].norm(dim=1)).all()
    assert 0.1 < x.var((1, 2)).mean() < 2
    assert 0.1 < stream.y.square().mean() < 4
    assert stream.x.abs().max() < 10
    assert stream.y.abs().max() < 10


@pytest.mark.parametrize("name", STREAMS)
def test_a_dense_network_learns_it(name):
    spec = {"stream": {"name": name}, "network": "mlp", "methods": ["er"]}
    result = dpmcl.run(spec, replicas=1, tasks=2, settings={"training.updates": 250})
    stream = plugins.find("stream", name)(tasks=2).build([0])
    least = stream.y[stream.row].view(2, 480, -1).var(1).mean(1).numpy()
    assert (result.errors["er"].after[0, -1] < 0.3 * least).all()


def test_scipy_is_asked_for_by_name(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("scipy"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(DataError) as caught:
        settings("burgers").build([0])
    assert str(caught.value) == (
        "Streams of differential equations need SciPy: pip install 'dpmcl[dynamics]'."
    )


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"step": 0.0005, "window": 1.0},
            "step must be at least a thousandth of window, 0.001, got 0.0005.",
        ),
        (
            {"trajectories": 12},
            "split must cut between trajectories, each share a whole number of them; "
            "[0.6, 0.2, 0.2] of 12 is not. Change either.",
        ),
        ({"trajectories": 2}, "trajectories must be greater than or equal to 3, got 2."),
        ({"rho": 1.0}, "rho must be greater than 1, got 1.0."),
        ({"window": 0.0}, "window must be greater than 0, got 0.0."),
    ],
)
def test_bad_settings_are_refused_in_one_line(changes, line):
    with pytest.raises(SpecError) as caught:
        settings("lorenz", **changes)
    assert str(caught.value) == line


def test_a_step_may_reach_beyond_the_window():
    y = settings("oscillator", step=2.0).build([0]).y.view(5, 10, 3, 2)
    q = of_windows(settings("oscillator").build([0]))[..., 0]
    assert y[:3, ..., 0].numpy() == pytest.approx((q[2:] - q[:-2]) / 2, abs=1e-6)


@pytest.mark.parametrize(
    ("rate", "why"),
    [
        (lambda t, s: s**2, "at t = 1 that failed: Required step size is less than spacing"),
        (lambda t, s: s * np.nan, "at t = 0 that failed: the rate of change is not finite."),
        (lambda t, s: 1e6 * np.cos(1e6 * t) + 0 * s, "that failed: it needs too many steps."),
    ],
)
def test_an_integration_that_fails_says_when_and_why(rate, why):
    with pytest.raises(DataError) as caught:
        integrated(rate, np.ones((2, 1)), np.array([3.0]), 0.5)
    text = str(caught.value)
    assert why in text
    assert text.startswith("The equation must be integrable to its end; at t = ")
    assert text.endswith("Use fewer tasks, a shorter window or milder settings.")


def test_states_that_float32_cannot_hold_are_refused():
    with pytest.raises(DataError) as caught:
        settings("oscillator", force=1e30).build([0])
    assert str(caught.value) == (
        "Inputs and targets must stay below 1e+18; those of a driven oscillator do not. "
        "Use fewer tasks or milder settings."
    )
