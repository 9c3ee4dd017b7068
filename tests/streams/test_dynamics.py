"""Streams of differential equations: closed forms, another integrator, and their rows."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from conftest import complaint
from dpmcl import plugins
from dpmcl.core import keys
from dpmcl.exceptions import SpecError
from dpmcl.streams._dynamics import integrate
from dpmcl.streams.burgers import Burgers
from dpmcl.streams.lorenz import Lorenz
from dpmcl.streams.oscillator import Oscillator

STREAMS = ("oscillator", "lorenz", "burgers")
each_stream = pytest.mark.parametrize("name", STREAMS)


def settings(name, **changes):
    small = {"tasks": 4, "trajectories": 10, "samples": 3}
    return plugins.find("stream", name)(**{**small, **changes})


def of_windows(stream):
    """Return the first replica's inputs, (windows, trajectories, samples, inputs)."""
    return stream.x.view(len(stream.row), 5, 10, 3, -1)[0].double().numpy()


def beginning(equation, seed=0):
    return equation.start(keys.derive(seed, keys.Purpose.STREAM))


def textbook(equation):
    """Return the rate of one state by each equation, written once more."""
    if isinstance(equation, Oscillator):

        def rate(t, s):
            w = equation.frequency * math.exp(equation.drift * t)
            push = equation.force * math.cos(equation.drive * t)
            return np.array([s[1], push - 2 * equation.damping * w * s[1] - w * w * s[0]])

    elif isinstance(equation, Lorenz):

        def rate(t, s):
            x, y, z = s
            return np.array([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])

    else:
        dx = 2 * math.pi / equation.points

        def rate(t, u):
            before, after = u[np.arange(len(u)) - 1], u[np.arange(1, len(u) + 1) % len(u)]
            flux = (after**2 / 2 - before**2 / 2) / (2 * dx)
            bend = (after - 2 * u + before) / dx**2
            return equation.viscosity * bend - equation.advection * flux

    return rate


# The equations


@pytest.mark.parametrize("force", [0.0, 0.7])
def test_an_oscillator_of_constant_stiffness_is_the_closed_form(force):
    w, z, W = 2.0, 0.1, 3.0
    equation = settings("oscillator", frequency=w, damping=z, drift=0.0, force=force, drive=W)
    x = of_windows(equation.build([3]))
    t = (np.arange(5)[:, None] + np.arange(3) / 3)[:, None]
    steady = force / (w**2 - W**2 + 2j * z * w * W)
    root = w * complex(-z, math.sqrt(1 - z**2))
    a = x[0, :, 0, 0] - steady.real  # of the free part, which is Re(c exp(root t))
    b = w * x[0, :, 0, 1] - (steady * 1j * W).real
    c = a + 1j * (root.real * a - b) / root.imag
    free, forced = c[:, None] * np.exp(root * t), steady * np.exp(1j * W * t)
    assert x[..., 0] == pytest.approx((free + forced).real, abs=1e-5)
    assert w * x[..., 1] == pytest.approx((root * free + 1j * W * forced).real, abs=1e-5)
    hidden = of_windows(settings("oscillator", drift=0.1, observed=False).build([0]))
    seen = of_windows(settings("oscillator", drift=0.1).build([0]))
    assert np.array_equal(hidden, seen[..., :3])
    assert seen[3, 5, 0, 3] == pytest.approx(math.exp(2 * 0.1 * 3.0), rel=1e-6)
    assert x[..., 2] == pytest.approx(np.broadcast_to(force * np.cos(W * t) / w**2, (5, 10, 3)))
    assert np.ptp(x[..., 0]) > 0.5


def test_burgers_differences_approach_the_derivatives_and_conserve_the_mean():
    x = 2 * math.pi * np.arange(256) / 256
    rate = Burgers(points=256, viscosity=0.5, advection=2.0).rate(0.0, np.sin(x)[None])[0]
    assert rate == pytest.approx(-2 * np.sin(x) * np.cos(x) - 0.5 * np.sin(x), abs=1e-3)
    u = of_windows(settings("burgers").build([0]))[:, :, 0]
    assert u.mean(-1) == pytest.approx(np.ones((5, 10)), abs=1e-6)
    assert (np.diff(u.var(-1), axis=0) < 0).all()


def test_lorenz_starts_on_the_attractor_in_a_cloud():
    clouds = np.stack([beginning(settings("lorenz", radius=0.5), seed) for seed in range(8)])
    size, points = np.ptp(clouds, axis=1), clouds.mean(1)
    assert ((size <= 1.0) & (size > 0.4)).all()
    assert (np.abs(points) < [21, 29, 50]).all()
    assert (points[:, 2] > 0).all()
    assert points[:, 0].min() < -3 < 3 < points[:, 0].max()


@each_stream
def test_the_target_becomes_the_equations_right_hand_side(name):
    wrong, window = [], settings(name).window
    for share in (0.02, 0.01):
        equation = settings(name, step=share * window)
        y = equation.build([2]).y.view(5, 10, 3, -1).double().numpy()
        t = np.arange(15) * window / 3
        state = integrate(equation.rate, beginning(equation, 2), t, window)
        rate = np.stack([equation.rate(*at) for at in zip(t, state, strict=True)])
        rate = (rate / equation.unit()).reshape(5, 3, 10, -1).swapaxes(1, 2)
        wrong.append(np.sqrt(((y - rate) ** 2).mean() / (rate**2).mean()))
    assert wrong[1] < 0.05
    assert wrong[0] / wrong[1] == pytest.approx(2, rel=0.02)


# Rows, tasks and replicas


@each_stream
def test_a_row_follows_its_trajectory_one_window_earlier(name):
    equation = settings(name, **({"points": 8, "advection": 2.0} if name == "burgers" else {}))
    stream = equation.build([4, 5])
    t = np.arange(15) * equation.window / 3
    state = beginning(equation, 5)[7]
    radau = solve_ivp(textbook(equation), (0, t[-1]), state, "Radau", t, rtol=1e-9, atol=1e-11)
    expected = equation.seen(t, radau.y.T[:, None])[:, 0]
    replica, trajectory, sample = 1, 7, 2
    row = stream.row[replica].view(4, 10, 3)[0, trajectory, sample]
    for window in range(5):
        assert stream.x[row].numpy() == pytest.approx(expected[3 * window + 2], abs=2e-6)
        assert stream.trajectory[row] == trajectory
        row = stream.following[row]
    assert stream.following[row] == row


@each_stream
def test_the_pool_is_one_window_longer_than_the_tasks(name):
    stream, each = settings(name).build([0, 1]), 10 * 3
    assert stream.row.shape == stream.task.shape == (2, 4 * each)
    assert len(stream.x) == len(stream.y) == len(stream.following) == 2 * 5 * each
    assert stream.task[1].tolist() == [k for k in range(4) for _ in range(each)]
    assert stream.following[stream.row].tolist() == (stream.row + each).tolist()
    assert (stream.x.dtype, stream.y.dtype) == (torch.float32, torch.float32)
    assert stream.trajectory[stream.row[1, :7]].tolist() == [0, 0, 0, 1, 1, 1, 2]
    window = settings(name).window
    assert stream.scenario.startswith(f"windows dt = {window:g} of ")
    assert stream.tasks[1] == f"t = {window:g} .. {2 * window:g}"


@each_stream
def test_fewer_tasks_have_the_same_rows(name):
    """`check_stream` tests that a replica has the same alone as among others."""
    whole, short = (settings(name, tasks=tasks).build([6]) for tasks in (4, 2))
    assert short.tasks == whole.tasks[:2]
    assert torch.equal(short.x, whole.x[: len(short.x)])
    assert torch.equal(short.y, whole.y[: len(short.y)])


@each_stream
def test_the_defaults_shift_from_task_to_task_and_are_of_order_one(name):
    stream = plugins.find("stream", name)().build([0, 1])
    x = stream.x[stream.row].view(2, 20, 480, -1)
    moved = (x.mean(2)[:, -1] - x.mean(2)[:, 0]).norm(dim=1)
    assert (moved > x.std(2)[:, 0].norm(dim=1)).all()
    assert 0.1 < x.var((1, 2)).mean() < 2
    assert 0.1 < stream.y.square().mean() < 4
    assert max(stream.x.abs().max(), stream.y.abs().max()) < 10


class InPlace(Lorenz):
    """Exponential decay from whole numbers, in code that changes its arguments."""

    def start(self, key):
        return np.arange(3 * self.trajectories).reshape(-1, 3)

    def rate(self, t, state):
        state /= -2
        return state

    def seen(self, t, state):
        state *= 3
        return state


def test_an_equation_may_change_its_arguments_in_place_and_start_from_whole_numbers():
    stream = InPlace(tasks=2, trajectories=5, samples=2).build([1])
    decay = torch.exp(-torch.tensor([0.0, 0.05]) / 2)[:, None]
    x = 3 * decay * torch.arange(15.0).view(5, 1, 3)
    torch.testing.assert_close(stream.x[:10].view(5, 2, 3), x, rtol=1e-5, atol=0)
    rate = math.expm1(-0.02 / 2) / 0.02 / float(Lorenz().unit())
    torch.testing.assert_close(stream.y[:10].view(5, 2, 3), x / 3 * rate, rtol=1e-5, atol=0)


# What is refused


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"step": 0.0005, "window": 1.0}, "step must be at least a thousandth of window, 0.001, "),
        ({"trajectories": 12}, "split must cut between trajectories, each share a whole number of"),
    ],
)
def test_bad_settings_are_refused_in_one_line(changes, line):
    assert complaint(settings, "lorenz", error=SpecError, **changes).startswith(line)


@dataclass(frozen=True, kw_only=True)
class Scaled(Oscillator):
    """An oscillator whose states are in another unit, about another point of rest."""

    size: float = 1.0
    rest: float = 0.0

    def start(self, key):
        return self.rest + self.size * super().start(key)

    def rate(self, t, state):
        return self.size * super().rate(t, (state - self.rest) / self.size)

    def seen(self, t, state):
        return super().seen(t, (state - self.rest) / self.size)

    def unit(self):
        return self.size * super().unit()


@dataclass(frozen=True, kw_only=True)
class Unbounded(Lorenz):
    """An equation of a user's that declares its window without a bound."""

    window: float = 0.1


@pytest.mark.parametrize("window", [0.0, -1.0])
def test_a_window_has_a_length(window):
    line = complaint(Unbounded, window=window, error=SpecError)
    assert line == f"window must be above 0, got {window:g}."


@pytest.mark.parametrize(
    ("size", "rest", "error"), [(1e-6, 0.0, 2e-4), (1e-9, 0.0, None), (1.0, 1e8, None)]
)
def test_states_that_the_integrator_cannot_resolve_are_refused(size, rest, error):
    small = {"tasks": 3, "trajectories": 10, "samples": 3}
    equation = Scaled(**small, size=size, rest=rest)
    if error is None:
        assert complaint(equation.build, [0]).startswith("States must change by much more than")
    else:
        difference = equation.build([0]).y - Oscillator(**small).build([0]).y
        assert float(difference.abs().max()) < error


@pytest.mark.parametrize(
    ("rate", "why"),
    [
        (lambda t, s: s**2, "at t = 1 that failed: Required step size is less than spacing"),
        (lambda t, s: s * np.nan, "at t = 0 that failed: the rate of change is not finite."),
        (lambda t, s: 1e6 * np.cos(1e6 * t) + 0 * s, "that failed: it needs too many steps."),
    ],
)
def test_an_integration_that_fails_says_when_and_why(rate, why):
    line = complaint(integrate, rate, np.ones((2, 1)), np.array([3.0]), 0.5)
    assert why in line
    assert line.endswith("Use fewer tasks, a shorter window or milder settings.")


def beside_a_large_number(self, t, state):
    """One number that depends on other trajectories beside one that is much larger."""
    large, small = 1e9 * state[..., 0], state[..., 1]
    return np.stack([large, small - small.mean(1, keepdims=True)], axis=2)


APART = (
    "must take each trajectory by itself and draw nothing; its results change with the state of "
    "another trajectory, or from call to call. Apply sums, means and shifts along the last axis, "
    "as in np.roll(state, 1, axis=-1), and draw in `start` alone."
)


@pytest.mark.parametrize(
    ("base", "method", "function", "line"),
    [
        (
            Lorenz, "rate", lambda self, t, state: Lorenz.rate(self, t, state).T,
            "must return an array of the shape (10, 3), got (3, 10).",
        ),
        (
            Lorenz, "start", lambda self, key: Lorenz.start(self, key)[:5],
            "must return an array of the shape (10, any), got (5, 3).",
        ),
        (
            Lorenz, "start", lambda self, key: Lorenz.start(self, key) + 1j,
            "must return real numbers, got complex128.",
        ),
        (
            Lorenz, "seen", lambda self, t, state: state[..., 0],
            "must return an array of the shape (12, 10, any), got (12, 10).",
        ),
        (
            Lorenz, "unit", lambda self: np.array([1.0, 0.0, 1.0]),
            "must be finite and not 0, got [1. 0. 1.].",
        ),
        (
            Lorenz, "unit", lambda self: np.ones((10, 1)),
            "must return an array of the shape (3), got (10, 1).",
        ),
        (Burgers, "rate", lambda self, t, state: np.roll(state, 1) - state, APART),  # both axes
        (Lorenz, "seen", lambda self, t, state: state / state.std((0, 1)), APART),
        (Lorenz, "seen", beside_a_large_number, APART),
        (
            Lorenz, "rate",
            lambda self, t, state: Lorenz.rate(self, t, state) + t * state.mean(0), APART,
        ),
    ],
)  # fmt: skip
def test_what_an_equation_does_not_promise_is_refused(base, method, function, line):
    equation = type("Mine", (base,), {method: function})
    stream = equation(tasks=3, trajectories=10, samples=3)
    assert complaint(stream.build, [0]) == f"Mine.{method} {line}"
