"""Contestants of this package: updates alone, looped and batched, and complete runs."""

import time
from collections.abc import Sequence
from typing import Any

import torch

import dpmcl
from benchmarks.measure import Contestant, seconds_of
from benchmarks.problems import Problem
from dpmcl.core.model import has_convolution, initial_weights
from dpmcl.core.precision import arithmetic
from dpmcl.core.settings import Settings
from dpmcl.data.sampling import Drawn
from dpmcl.data.stream import Stream
from dpmcl.engine import Batched, Feed, Looped
from dpmcl.engine.stepper import Stepper
from dpmcl.methods._method import Method, Phase

AT_ONCE = 50  # updates of a segment, as in a run
TRACED = 5
"""Largest number of replicas of a convolutional network whose batched updates are traced.

A trace holds all values of an update at once, which is gigabytes for many replicas, and saves
almost nothing if an update is long.
"""
RUN_UPDATES = {False: 500, True: 120}  # updates of a timed run, by whether there are convolutions
RUN_REPLICAS = {False: 13, True: 5}  # replicas of a job on a CPU, likewise


def contestants(problem: Problem, method: str, replicas: Sequence[int]) -> list[Contestant]:
    """Return the updates of each phase of a method: looped, and batched for each `replicas`."""
    settings, rows = problem.method(method), []
    for phase in settings.phases(settings.prepare(problem.model), problem.infos[1]):
        engines: list[tuple[str, Any, int]] = [("looped", Looped(Stepper(trace_after=0)), 1)]
        engines += [(f"batched R={size}", batched_engine(problem, size), size) for size in replicas]
        for name, engine, size in engines:
            facts = {"kind": "updates", "engine": engine.name}
            run = Updates(problem, settings, phase.name, engine, replicas=size)
            rows.append(Contestant(f"{method} {phase.name}, {name}", run, size, facts=facts))
    return rows


def run_of(problem: Problem, method: str, replicas: int | None, updates: int | None) -> Contestant:
    """Return complete runs of a method as a contestant; None takes a job's size on a CPU."""
    convolves = has_convolution(problem.model)
    size, count = replicas or RUN_REPLICAS[convolves], updates or RUN_UPDATES[convolves]
    name = f"{method}, run of {size}"
    run = Run(problem, method, size)
    return Contestant(name, run, size, updates=count, facts={"kind": "run"})


def batched_engine(problem: Problem, replicas: int) -> Batched:
    """Return an engine for all replicas at once, which traces updates at once if that pays."""
    small = replicas <= TRACED or not has_convolution(problem.model)
    return Batched(stepper=Stepper(torch.func.vmap, trace_after=0 if small else None))


class Updates:
    """The updates of a phase without drawing and checks, from the same weights at every call."""

    def __init__(
        self, problem: Problem, method: Method, phase: str, engine: Any, *, replicas: int
    ) -> None:
        self.engine, self.stream, self.precision = engine, problem.stream, problem.spec.precision
        self.model, info = method.prepare(problem.model), problem.infos[1]
        phases = {one.name: one for one in method.phases(self.model, info)}
        self.phase = phases[phase]
        theta = initial_weights(self.model, range(replicas))
        self.start = torch.func.vmap(lambda theta: method.start(theta, info))(theta)
        self.drawn = random_rows(self.phase, self.stream, replicas, AT_ONCE)

    def __call__(self, updates: int) -> float:
        with arithmetic(self.precision):
            return seconds_of(lambda: self._advance(updates), self.model.device)

    def _advance(self, updates: int) -> None:
        state = self.start
        for first in range(0, updates, AT_ONCE):
            feed = self.feed(min(AT_ONCE, updates - first))
            state = self.engine.advance(self.phase.update, state, feed)

    def feed(self, steps: int) -> Feed:
        """Return the first steps of what was drawn, at most `AT_ONCE`."""
        return Feed(self.drawn.first(steps), self.stream, self.model.dtype)


def random_rows(phase: Phase, stream: Stream, replicas: int, steps: int) -> Drawn:
    """Return random rows and keys for `steps` updates of a phase."""
    generator, device = torch.Generator().manual_seed(0), stream.x.device
    rows = {}
    for name, draw in phase.draws.items():
        shape = (draw.batch,) if draw.block is None else (draw.block, draw.batch)
        size = (replicas, steps, *shape)
        rows[name] = torch.randint(len(stream.y), size, generator=generator).to(device)
    key = torch.randint(2**32, (replicas, steps, phase.keys, 2), generator=generator).to(device)
    present = {name: row >= 0 for name, row in rows.items()}
    return Drawn(row=rows, present=present, task={n: r * 0 for n, r in rows.items()}, key=key)


class Run:
    """Calls of `dpmcl.run` in this process, with two tasks each, timed in their second half.

    Small updates are traced by then. The time includes everything that a run does for an update,
    also drawing and checks.
    """

    def __init__(self, problem: Problem, method: str, replicas: int) -> None:
        self.problem, self.method, self.replicas = problem, method, replicas

    def __call__(self, updates: int) -> float:
        marks = []

        def progress(method: str, done: int, total: int) -> None:
            marks.append((time.perf_counter(), done / total))

        begin = time.perf_counter()
        dpmcl.run(
            self.problem.stream,
            methods={self.method: self._method(updates // 2)},
            replicas=self.replicas,
            tasks=2,
            device=self.problem.device.type,
            settings={
                "network": {
                    "name": self.problem.spec.network_name,
                    **table(self.problem.spec.network),
                },
                "precision": self.problem.spec.precision,
                "evaluation.test_rows": 1,
                "workers": 1,
            },
            progress=progress,
        )
        return slope([(begin, 0.0), *marks])

    def _method(self, updates: int) -> dict[str, Any]:
        """Return the preset's settings of the method, with `updates` updates a task."""
        settings = table(self.problem.method(self.method))
        counts = {"updates": updates, "kappa": updates}
        counts |= {"n_meta": max(1, updates // 2), "n_grad": max(1, updates // 2)}
        return {**settings, **{name: n for name, n in counts.items() if name in settings}}


def slope(marks: Sequence[tuple[float, float]]) -> float:
    """Return the seconds of a complete run, extrapolated from its second half.

    Args:
        marks: Pairs of a time in seconds and the share done by then.
    """
    end = marks[-1]
    middle = min(marks, key=lambda mark: abs(mark[1] - 0.5))
    if middle[1] == end[1]:
        middle = marks[0]
    return (end[0] - middle[0]) / (end[1] - middle[1])


def table(settings: Settings) -> dict[str, Any]:
    """Return settings by name, without those that are None."""
    values = {name: getattr(settings, name) for name in settings.names()}
    return {name: value for name, value in values.items() if value is not None}
