"""The package's own engines: what a run does for an update, and for a row that is evaluated."""

from collections.abc import Callable, Sequence

import torch

from dpmcl.bench.measure import Contestant, timed
from dpmcl.bench.problems import Problem
from dpmcl.core.memory import Memory
from dpmcl.core.model import has_convolution, initial
from dpmcl.core.precision import arithmetic
from dpmcl.data.sampling import Supply, chunk
from dpmcl.data.splits import split
from dpmcl.engine import Batched, Engine, EngineName, Grouped, Looped, choose
from dpmcl.engine.stepper import Stepper
from dpmcl.methods._method import Method
from dpmcl.training.divergence import finite
from dpmcl.training.evaluation import evaluate

FORMS: tuple[EngineName, ...] = ("looped", "batched")
"""What `engine` can be set to; `auto` is one of them."""

_WEIGHT = 6.0
"""How much longer runs on a CPU are timed: workers get states and draws once for many updates."""

_UPDATES_AT_ONCE = 50  # as in a run, whose workers get their states and draws as often
_TRACED = 5
"""Replicas of a convolutional network up to which batched updates are traced.

A trace holds all values of an update at once, gigabytes for fifty replicas, and saves next to
nothing where an update is long.
"""


def contestants(
    problem: Problem,
    method: str,
    replicas: Sequence[int],
    chosen: dict[EngineName, Engine],
    warm_up: float,
) -> list[Contestant]:
    """A method's updates: looped; batched at each number of replicas; as a run makes most of them.

    chosen: the engines of runs of the most replicas, by form; warm_up: seconds until they have
    settled. The others run in this process alone. A method of several phases has all these for each
    phase.
    """
    most = max(replicas)
    auto = choose_for(problem, "auto", most).name
    settings, found = problem.method(method), []
    for phase, label in phases(problem, method).items():
        forms: list[tuple[str, Engine, int]] = [("looped", Looped(Stepper(trace_after=0)), 1)]
        forms += [(f"batched R={many}", _batched(problem, many), many) for many in replicas]
        for name, one, many in forms:
            facts = {"kind": "form", "method": label, "engine": one.name}
            run, note = Updates(problem, settings, phase, one, many), _note(one, many)
            found.append(Contestant(f"{label} {name}", run, many, 1, facts, note))
        for form, one in chosen.items():
            name = f"{label} engine={form} R={most}" + ", auto" * (form == auto)
            own = {"kind": "run", "method": label, "engine": one.name, "auto": form == auto}
            run, note = Updates(problem, settings, phase, one, most), _note(one, most)
            weight = weight_of_runs(problem)
            least = _UPDATES_AT_ONCE if problem.device.type == "cpu" else 1
            found.append(Contestant(name, run, most, 1, own, note, warm_up, weight, least))
    return found


def phases(problem: Problem, method: str) -> dict[int, str]:
    """The label of each phase of a method: its name, and the phase's where there are several."""
    names = [phase.name for phase in problem.method(method).phases(problem.model, problem.infos[0])]
    several = len(names) > 1
    return {k: f"{method} {name}" if several else method for k, name in enumerate(names)}


def weight_of_runs(problem: Problem) -> float:
    """The weight of a run's timings."""
    return _WEIGHT if problem.device.type == "cpu" else 1.0


def choose_for(problem: Problem, form: EngineName, replicas: int) -> Engine:
    """A new engine, chosen as a study would."""
    model, batch = problem.model, max(m.batch for m in problem.spec.methods.values())
    return choose(form, model, problem.stream.example(model.dtype), replicas, batch)


def _batched(problem: Problem, replicas: int) -> Engine:
    """Batched in this process, all replicas at once; on a CPU traced at once, where that pays."""
    small = replicas <= _TRACED or not has_convolution(problem.model)
    return Grouped(Batched(stepper=Stepper(torch.func.vmap, trace_after=0 if small else None)))


def _note(engine: Engine, replicas: int) -> Callable[[], str]:
    """Says, once the engine has run, whether memory held as many replicas as it should have."""
    planned = engine.at_once(replicas)

    def note() -> str:
        held = engine.at_once(replicas)
        return f"in groups of {held}, memory did not hold more" if held < planned else ""

    return note


class Updates:
    """The updates of a phase as a run makes them: drawn, made, and checked for divergence.

    Every call starts from the same weights. The memory is full, all replicas see the same rows.
    """

    def __init__(
        self, problem: Problem, method: Method, phase: int, engine: Engine, replicas: int
    ) -> None:
        self.engine, self.stream = engine, problem.stream
        self.model, self.precision = method.prepare(problem.model), problem.spec.precision
        self.place = len(self.stream.tasks) - 1, phase
        self.phase = method.phases(self.model, problem.infos[-1])[phase]
        seeds = range(replicas)
        self.seed = torch.tensor(seeds, dtype=torch.int64, device=problem.device)
        self.splits = split(self.stream, seeds, problem.spec.stream.split)
        rows = {name: self.splits.named(name).row.shape[1] for name in ("train", "validation")}
        self.held = {name: _full(min(method.memory, n), self.seed) for name, n in rows.items()}
        first = problem.infos[0]
        theta = initial(self.model, seeds)
        self.start = engine.map(lambda one: method.start(one, first), theta)

    def __call__(self, updates: int) -> float:
        with arithmetic(self.precision):
            return timed(lambda: self._advance(updates), self.model.device)

    def _advance(self, updates: int) -> bool:
        state, phase, fine = self.start, self.phase, True
        for first in range(0, updates, _UPDATES_AT_ONCE):
            steps = range(first, min(first + _UPDATES_AT_ONCE, updates))
            supply = Supply(self.splits, self.held, self.seed)
            drawn = chunk(phase.draws, supply, self.place, steps, update_keys=phase.keys)
            state = self.engine.advance(phase.update, state, drawn, self.stream, self.model.dtype)
            fine = bool(finite(state).all())
        return fine


class Passes:
    """Evaluations of all training rows, of all tasks: `rows` a replica and pass."""

    def __init__(self, problem: Problem, method: Method, engine: Engine, replicas: int) -> None:
        self.engine, self.stream = engine, problem.stream
        self.model, self.precision = method.prepare(problem.model), problem.spec.precision
        seeds = range(replicas)
        self.theta = initial(self.model, seeds)
        self.split = split(self.stream, seeds, problem.spec.stream.split).train
        self.rows = self.split.row.shape[1]

    def __call__(self, passes: int) -> float:
        with arithmetic(self.precision):
            return timed(lambda: self._evaluate(passes), self.model.device)

    def _evaluate(self, passes: int) -> None:
        tasks = range(len(self.stream.tasks))
        for _ in range(passes):
            evaluate(self.engine, self.model, self.theta, self.stream, self.split, tasks)


def _full(capacity: int, seed: torch.Tensor) -> Memory:
    """A full memory of the first positions for every replica."""
    position = torch.arange(capacity, device=seed.device).expand(len(seed), capacity)
    filled = torch.full_like(seed, capacity)
    return Memory(position, filled, filled)
