"""What the paper's table 1 would cost here: measured times, multiplied by the printed counts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dpmcl.bench.engines import Passes, Updates, phases, weight_of_runs
from dpmcl.bench.measure import Contestant, Timing
from dpmcl.bench.problems import Problem
from dpmcl.engine import Engine

Cell = dict[str, Any]
"""What one method on one stream takes: counts, and seconds of all replicas."""


def contestants(
    problem: Problem, method: str, engine: Engine, replicas: int, warm_up: float
) -> list[Contestant]:
    """Each phase of a method, and evaluation of the model that it trains."""
    found, settings = [], problem.method(method)
    for number, label in phases(problem, method).items():
        run = Updates(problem, settings, number, engine, replicas)
        facts = {"kind": "phase", "method": method, "phase": number, "engine": engine.name}
        weight = weight_of_runs(problem)
        found.append(Contestant(label, run, replicas, facts=facts, warm_up=warm_up, weight=weight))
    passes = Passes(problem, settings, engine, replicas)
    facts = {"kind": "evaluation", "method": method, "rows": passes.rows, "engine": engine.name}
    return [*found, Contestant(f"{method}, evaluation", passes, replicas, facts=facts)]


def updates(problem: Problem, method: str) -> dict[int, int]:
    """How many updates each phase of a method makes, all tasks together."""
    count: dict[int, int] = {}
    for task in range(tasks(problem)):
        info = replace(problem.infos[0], number=task)
        for number, phase in enumerate(problem.method(method).phases(problem.model, info)):
            count[number] = count.get(number, 0) + phase.updates
    return count


def evaluated(problem: Problem) -> float:
    """How many test rows a replica's run evaluates, before the first task and after each."""
    many = tasks(problem)
    test = problem.rows / many * problem.spec.stream.split[2]
    return test * sum(len(problem.spec.evaluation.tasks(after, many)) for after in range(-1, many))


def tasks(problem: Problem) -> int:
    """How many tasks the paper's stream has; the made-up one may have fewer."""
    many = problem.spec.stream.tasks
    assert many is not None
    return many


def estimate(problem: Problem, timings: Sequence[Timing]) -> Cell:
    """What a method takes, of whose contestants these are the timings: all replicas of the preset.

    A replica's time is taken to be the same however many there are.
    """
    step: dict[int, float] = {}
    row, method = 0.0, ""
    for timing in timings:
        facts: Mapping[str, Any] = timing.contestant.facts
        method = facts["method"]
        if facts["kind"] == "phase":
            step[facts["phase"]] = timing.ms / 1000
        else:
            row = timing.ms / 1000 / facts["rows"]
    count, rows, replicas = updates(problem, method), evaluated(problem), problem.spec.replicas
    training = replicas * sum(many * step[phase] for phase, many in count.items())
    evaluation = replicas * rows * row
    return {
        "network": problem.name,
        "method": method,
        "replicas": replicas,
        "updates": sum(count.values()),
        "evaluated_rows": rows,
        "training_s": training,
        "evaluation_s": evaluation,
        "seconds": training + evaluation,
    }
