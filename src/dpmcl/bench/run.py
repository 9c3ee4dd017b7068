"""A benchmark: every contestant on every network asked for, one report."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from dpmcl.bench import avalanche, engines, plain, report, table1
from dpmcl.bench.measure import Contestant, Timing, measure
from dpmcl.bench.problems import NETWORKS, Problem, problem
from dpmcl.core.precision import Precision
from dpmcl.core.threads import threads
from dpmcl.engine import DeviceName, device_of
from dpmcl.exceptions import SpecError, unknown

Watch = Callable[[str, int, int], None]
"""watch(what, done, total): timings of a network and method done, and to be done."""

REPLICAS = (1, 5, 10, 25, 50)
STUDIES = ("table1",)
_METHODS = ("er", "dpmcl")
_ON_CPU = 10  # replicas from which a CPU's time for the paper's fifty is estimated


def bench(
    networks: str | Sequence[str] = "all",
    *,
    replicas: Sequence[int] | None = None,
    repeats: int | None = None,
    seconds: float = 0.5,
    warm_up: float = 30.0,
    device: DeviceName = "auto",
    precision: Precision | None = None,
    methods: Sequence[str] | None = None,
    study: str | None = None,
    out: str | Path | None = None,
    watch: Watch | None = None,
) -> dict[str, Any]:
    """Times the package's engines beside a plain loop of PyTorch, and hands back the report.

    networks: of the paper: "sine", "mnist", "omniglot", "cifar10", some of them, or "all".
    replicas: for each of which the batched engine is timed, None for 1, 5, 10, 25 and 50; runs are
    timed with the most of them. repeats: interleaved timings of each contestant, None for 5, of
    about `seconds` each, six times that for runs on a CPU. warm_up: seconds that runs on a CPU go
    on before they are timed, in which their worker processes start and trace. precision: of a spec,
    for the package's engines alone. methods: None for er and dpmcl. study: "table1" estimates
    instead what the paper's table 1 takes here; methods None are then all, repeats None are 3,
    replicas None are 50 on a GPU and 10 on a CPU. out: a JSON file for the report, written after
    each method.

    Raises SpecError for what cannot be measured, FolderError where `out` cannot be written,
    DeviceError where the device's memory does not hold even one replica.
    """
    place = device_of(device)
    names = [networks] if isinstance(networks, str) else list(networks)
    names = list(NETWORKS) if "all" in names else names
    if repeats is None:
        repeats = 3 if study else 5
    if replicas is None:
        replicas = (_ON_CPU,) if study and place.type == "cpu" else REPLICAS
    _check(names, replicas, repeats, seconds, warm_up, study)
    if out is not None:
        report.check_place(Path(out))
    done: dict[str, Any] = {
        "machine": report.machine(place),
        "study": study,
        "precision": precision,
        "replicas": sorted(set(replicas)),
        "repeats": repeats,
        "seconds": seconds,
        "warm_up": warm_up,
        "networks": [],
        "rows": [],
        "verdicts": [],
        "cells": [],
    }
    for name in dict.fromkeys(names):
        part = _table1 if study else _compare
        for _ in part(problem(name, place, precision), methods, done, watch):
            if out is not None:
                report.write(done, Path(out))
    return done


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers between commas. Raises SpecError for anything else.

    >>> numbers("1, 5,10")
    (1, 5, 10)
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise SpecError(f"replicas are whole numbers, as in 1,5,10, got '{text}'.") from None


def _compare(
    problem: Problem, methods: Sequence[str] | None, done: dict[str, Any], watch: Watch | None
) -> Iterator[None]:
    """Adds a network's rows to the report, method by method."""
    names = _methods(problem, methods, _METHODS)
    replicas, default = done["replicas"], done["machine"]["threads"]
    batch = problem.method(names[0]).batch
    title = f"{problem.name}: {problem.spec.network_name}, batch {batch}"
    done["networks"].append({"name": problem.name, "title": title, "methods": names})
    with _as_a_run(problem):
        chosen = {form: engines.choose_for(problem, form, replicas[-1]) for form in engines.FORMS}
    for number, name in enumerate(names):
        warm_up = _warm_up(problem, done)
        with _as_a_run(problem):
            contestants = [
                *plain.contestants(problem, default),
                *(avalanche.contestants(problem) if number == 0 else ()),
                *engines.contestants(problem, name, replicas, chosen, warm_up),
            ]
        timings = _timed(problem, name, contestants, done, watch)
        rows = [report.row(problem, name, timing) for timing in timings]
        report.against_plain(rows)
        done["rows"] += rows
        done["verdicts"] += report.verdicts(rows)
        del contestants, timings  # and what they captured, before the next ones come
        yield


def _table1(
    problem: Problem, methods: Sequence[str] | None, done: dict[str, Any], watch: Watch | None
) -> Iterator[None]:
    """Adds a network's rows and estimates to the report, method by method."""
    most = done["replicas"][-1]
    with _as_a_run(problem):
        engine = engines.choose_for(problem, "auto", most)
    done["networks"].append({"name": problem.name, "engine": engine.name})
    for name in _methods(problem, methods, tuple(problem.spec.methods)):
        with _as_a_run(problem):
            warm_up = _warm_up(problem, done)
            contestants = table1.contestants(problem, name, engine, most, warm_up)
        timings = _timed(problem, name, contestants, done, watch)
        done["rows"] += [report.row(problem, name, timing) for timing in timings]
        done["cells"].append(table1.estimate(problem, timings))
        del contestants, timings
        yield


def _timed(
    problem: Problem,
    method: str,
    contestants: Sequence[Contestant],
    done: dict[str, Any],
    watch: Watch | None,
) -> list[Timing]:
    def progress(now: int, total: int) -> None:
        if watch:
            watch(f"{problem.name} {method}", now, total)

    progress(0, len(contestants) * (1 + done["repeats"]))
    found = measure(contestants, done["repeats"], done["seconds"], progress)
    if problem.device.type == "cuda":
        torch.cuda.empty_cache()
    return found


def _warm_up(problem: Problem, done: dict[str, Any]) -> float:
    """Seconds that runs go on before they are timed."""
    alone = problem.device.type == "cuda" or done["replicas"][-1] == 1
    return 0.0 if alone else float(done["warm_up"])


@contextmanager
def _as_a_run(problem: Problem) -> Iterator[None]:
    """PyTorch's threads as in a run, by which engines choose how many processes they take."""
    with threads(problem.spec.threads):
        yield


def _methods(problem: Problem, wanted: Sequence[str] | None, default: Sequence[str]) -> list[str]:
    known = list(problem.spec.methods)
    for name in wanted or ():
        if name not in known:
            raise unknown("method", name, known, f"The paper's are: {', '.join(known)}.")
    return list(dict.fromkeys(wanted or default))


def _check(
    networks: Sequence[str],
    replicas: Sequence[int],
    repeats: int,
    seconds: float,
    warm_up: float,
    study: str | None,
) -> None:
    for name in networks:
        if name not in NETWORKS:
            raise unknown("network", name, NETWORKS, f"There are: {', '.join(NETWORKS)}.")
    if study is not None and study not in STUDIES:
        raise unknown("study", study, STUDIES, f"There is: {', '.join(STUDIES)}.")
    if not networks:
        raise SpecError(f"A benchmark needs a network, one of {', '.join(NETWORKS)}, got none.")
    if not replicas or min(replicas) < 1:
        raise SpecError(f"replicas must be whole numbers from 1, got {list(replicas)}.")
    if repeats < 1:
        raise SpecError(f"repeats must be at least 1, got {repeats}.")
    if not 0 < seconds < float("inf"):
        raise SpecError(f"seconds must be above 0, got {seconds}.")
    if not 0 <= warm_up < float("inf"):
        raise SpecError(f"warm_up must be 0 or more, got {warm_up}.")
