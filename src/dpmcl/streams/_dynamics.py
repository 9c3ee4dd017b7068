"""Streams from differential equations; each task is a window of time."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, ClassVar

import annotated_types as at
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpmcl.core import keys
from dpmcl.core.settings import Positive, Rate
from dpmcl.data.stream import Stream
from dpmcl.exceptions import DataError, SpecError, needed_for, reason
from dpmcl.streams._settings import StreamSettings

Array = NDArray[np.float64]

RTOL, ATOL = 1e-9, 1e-11
"""Relative and absolute tolerance of the integrator."""

EVALUATIONS = 5000
"""Largest number of calls of the right-hand side per window; non-stiff equations take dozens."""

LEAST_STEP = 1e-3
"""Smallest step, as a share of the window. Errors of the integrator would hide smaller changes."""

LARGEST_ERROR = 1e-3
"""Largest error of the integrator, as a share of the changes of a state or of their unit."""

COUPLED = 1e-6
"""Smallest share of a state's or input's size by which another trajectory changes it; less may be
rounding."""

LARGEST = 1e18
"""Bound of inputs and targets, below which their squares are finite in float32."""


@dataclass(frozen=True, kw_only=True)
class DynamicsSettings(StreamSettings, ABC):
    """Ensemble of trajectories of a differential equation; task k is [k window, (k + 1) window].

    The input of a row is an observation of the state at a time t (`seen`). Its target is the mean
    rate of change of the state over one step, (state(t + step) - state(t)) / step. Both are divided
    by constants of the equation, which are not fitted to the data. Source: section 2, "system
    identification".

    Every replica draws an ensemble and integrates it with SciPy's DOP853 (explicit, order 8), in
    steps of at most a window: a pulse in `rate` that is much shorter may be missed. The pool also
    holds the window after the last task, so that rows of the last task have a `following` row too.

    Attributes:
        trajectories: Number of trajectories. All rows of a trajectory are in the same split, in
            every task.
        samples: Rows of each trajectory in a window, evenly spaced from its start.
        window: Length of a window, in the equation's units of time.
        step: Time over which the rate of change is taken, in the same units. It may reach beyond
            the window.
    """

    equation: ClassVar[str]
    """Name of the equation, for `Stream.scenario` and errors."""

    tasks: Positive | None = 20
    trajectories: Annotated[int, at.Ge(3)] = 60
    samples: Positive = 8
    window: Rate
    step: Rate

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window <= 0:  # a class of a user's may declare it without a bound
            raise SpecError(f"window must be above 0, got {self.window:g}.")
        if self.step < LEAST_STEP * self.window:
            raise SpecError(
                f"step must be at least a thousandth of window, {LEAST_STEP * self.window:g}, "
                f"got {self.step:g}."
            )
        counts = [share * self.trajectories for share in self.split]
        if any(round(count) < 1 or abs(count - round(count)) > 1e-6 for count in counts):
            raise SpecError(
                "split must cut between trajectories, each share a whole number of them; "
                f"{list(self.split)} of {self.trajectories} is not. Change either."
            )

    @abstractmethod
    def start(self, key: Tensor) -> Array:
        """Return the ensemble of a replica at t = 0, (trajectories, states).

        Args:
            key: Random key of the replica.
        """

    @abstractmethod
    def rate(self, t: float, state: Array) -> Array:
        """Return the right-hand side of the equation, d state / dt, (n, states).

        Args:
            t: Time.
            state: States, (n, states).
        """

    @abstractmethod
    def seen(self, t: Array, state: Array) -> Array:
        """Return the inputs, which are observations of states, (times, n, inputs).

        Args:
            t: Times, (times,).
            state: States at those times, (times, n, states).
        """

    @abstractmethod
    def unit(self) -> Array:
        """Return the unit of the targets, a rate of change: (states,), or () if all share it."""

    def _checked_array(self, name: str, values: Any, shape: tuple[int | None, ...]) -> Array:
        """Return the result of method `name` as an array of `shape`, where None is any size."""
        array = np.asarray(values)
        if not (np.issubdtype(array.dtype, np.floating) or np.issubdtype(array.dtype, np.integer)):
            raise DataError(
                f"{type(self).__name__}.{name} must return real numbers, got {array.dtype}."
            )
        if len(array.shape) != len(shape) or any(
            size not in (None, got) for size, got in zip(shape, array.shape, strict=True)
        ):
            sizes = ", ".join("any" if size is None else str(size) for size in shape)
            raise DataError(
                f"{type(self).__name__}.{name} must return an array of the shape ({sizes}), got "
                f"{array.shape}."
            )
        return array

    def _check_apart(self, name: str, function: Callable[[Array], Array], state: Array) -> None:
        """Raise DataError if a trajectory's result of method `name` depends on another trajectory.

        function: Calls the method with states, (..., trajectories, states).
        """
        other = state.copy()
        other[..., 0, :] = state[..., -1, :]
        with np.errstate(all="ignore"):  # numbers that are not finite are rejected later
            kept, now = (function(s.copy())[..., 1:, :] for s in (state, other))
            size = np.abs(kept).max(tuple(range(kept.ndim - 1)))  # each has a unit of its own
            together = np.isfinite(kept) & (np.abs(now - kept) > COUPLED * size)
        if together.any():
            raise DataError(
                f"{type(self).__name__}.{name} must take each trajectory by itself and draw "
                "nothing; its results change with the state of another trajectory, or from call to "
                "call. Apply sums, means and shifts along the last axis, as in np.roll(state, 1, "
                "axis=-1), and draw in `start` alone."
            )

    def build(self, seeds: Sequence[int]) -> Stream:
        tasks, name = self.tasks or 20, type(self).__name__.lower()
        seed = torch.tensor(list(seeds), dtype=torch.int64)
        rows = [self._rows(key, tasks) for key in keys.derive(seed, keys.Purpose.STREAM)]
        x, y = (torch.from_numpy(np.concatenate(part)) for part in zip(*rows, strict=True))

        replicas, window_rows = len(seed), self.trajectories * self.samples
        number = torch.arange(len(x)).view(replicas, tasks + 1, window_rows)
        following = number.clone()
        following[:, :-1] = number[:, 1:]
        trajectory = torch.arange(self.trajectories).repeat_interleave(self.samples)
        task = torch.arange(tasks).repeat_interleave(window_rows)
        edges = [f"{k * self.window:g}" for k in range(tasks + 1)]
        return Stream(
            name=name,
            kind="regression",
            x=x,
            y=y,
            row=number[:, :-1].flatten(1),
            task=task.repeat(replicas, 1),
            tasks=tuple(f"t = {a} .. {b}" for a, b in pairwise(edges)),
            classes=(),
            outputs=y.shape[1],
            scenario=f"windows dt = {self.window:g} of {self.equation}, drawn by every replica",
            following=following.flatten(),
            trajectory=trajectory.repeat(replicas * (tasks + 1)),
        )

    def _rows(self, key: Tensor, tasks: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return a replica's inputs and targets, (rows, ...), by window, trajectory and sample."""
        t = np.arange((tasks + 1) * self.samples) * self.window / self.samples
        times, index = np.unique(np.concatenate([t, t + self.step]), return_inverse=True)
        start = self._checked_array("start", self.start(key), (self.trajectories, None))
        start = start.astype(np.float64)

        def rate(t: float, state: Array) -> Array:
            return self._checked_array("rate", self.rate(t, state), start.shape)

        self._check_apart("rate", lambda state: rate(0.0, state), start)
        state = integrate(rate, start, times, self.window)
        end = float(times[-1])  # some terms are 0 at the start
        self._check_apart("rate", lambda state: rate(end, state), state[-1])
        now, later = state[index[: len(t)]], state[index[len(t) :]]

        def by_window(values: Array) -> NDArray[np.float32]:  # (times, trajectories, width)
            values = values.reshape(tasks + 1, self.samples, *values.shape[1:]).swapaxes(1, 2)
            if not (np.abs(values) < LARGEST).all():
                raise DataError(
                    f"Inputs and targets must stay below {LARGEST:g}; those of {self.equation} "
                    "do not. Use fewer tasks or milder settings."
                )
            return values.reshape(-1, values.shape[-1]).astype(np.float32)

        def seen_at(state: Array) -> Array:
            shape = (*state.shape[:2], None)
            return self._checked_array("seen", self.seen(t.copy(), state.copy()), shape)

        unit = np.asarray(self.unit())
        unit = self._checked_array("unit", unit, start.shape[1:] if unit.ndim else ())
        if not (np.isfinite(unit) & (unit != 0)).all():
            raise DataError(f"{type(self).__name__}.unit must be finite and not 0, got {unit}.")
        self._check_apart("seen", seen_at, now)
        x, y = by_window(seen_at(now)), by_window((later - now) / self.step / unit)
        changes = np.maximum(np.abs(later - now).max((0, 1)), self.step * np.abs(unit))
        self._check_precision(state, changes)
        return x, y

    def _check_precision(self, state: Array, changes: Array) -> None:
        """Raise DataError if the integrator's errors may not be small beside changes of states.

        changes: Largest change of each state over one step, (states,).
        """
        error = RTOL * np.abs(state).max((0, 1)) + ATOL
        if (coarse := error > LARGEST_ERROR * changes).any():
            at = int(coarse.argmax())
            raise DataError(
                f"States must change by much more than the integrator's errors; state {at} of "
                f"{self.equation} changes by {changes[at]:.2g} in a step, with errors up to "
                f"{error[at]:.2g}. Write the equation in smaller units, subtract an offset, or "
                "take a longer step."
            )


def uniform(key: Tensor, shape: Sequence[int], lane: int = 0) -> Array:
    """Return random numbers, uniform in [-1, 1).

    Args:
        key: Random key.
        shape: Shape of the result.
        lane: Different lanes of a key give independent numbers.
    """
    numbers: Array = 2 * keys.uniform(key, shape, lane).double().numpy() - 1
    return numbers


def integrate(
    rate: Callable[[float, Array], Array], start: Array, times: Array, window: float
) -> Array:
    """Integrate an equation, and return the states at given times, (times, n, states).

    A state does not depend on the times after it.

    Args:
        rate: Function rate(t, state) that returns d state / dt, (n, states).
        start: States at t = 0, (n, states).
        times: Times in ascending order, (times,).
        window: Longest step of the integrator.

    Raises:
        DataError: SciPy is missing, the integration fails, or the equation needs a stiff solver.
    """
    with needed_for("A stream of a differential equation", "dpmcl[dynamics]", DataError):
        from scipy.integrate import solve_ivp
    # The integrator shortens its last step, so that ends a window after the last time.
    end = float(times[-1]) + window
    calls, reached = 0, 0.0

    def flat(t: float, state: Array) -> Array:
        nonlocal calls, reached
        calls, reached = calls + 1, t
        if calls > EVALUATIONS * (1 + t / window):
            raise _integration_error(t, "it needs too many steps")
        # a copy, since a user's equation may change its argument in place
        return rate(t, state.reshape(start.shape).copy()).ravel()

    with np.errstate(all="ignore"):  # numbers that are not finite are rejected below
        if not np.isfinite(flat(0.0, start)).all():
            raise _integration_error(0.0, "the rate of change is not finite")
        solution = solve_ivp(
            flat, (0.0, end), start.ravel(), "DOP853", times, max_step=window, rtol=RTOL, atol=ATOL
        )
    if not solution.success:
        raise _integration_error(reached, solution.message)
    state: Array = solution.y.T.reshape(len(times), *start.shape)
    return state


def _integration_error(t: float, why: str) -> DataError:
    """Return the error of an integration that failed at time t."""
    return DataError(
        f"The equation must be integrable to its end; at t = {t:g} that failed: "
        f"{reason(ValueError(why))}. Use fewer tasks, a shorter window or milder settings."
    )
