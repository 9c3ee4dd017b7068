"""Time an update on this machine, and compare it with plain PyTorch loops and Avalanche.

    python -m benchmarks [NETWORK ...] [--methods er,dpmcl] [--out FILE] [--study table1] [--quick]

Networks are sine, mnist, omniglot and cifar10; the first three by default. No data are needed.
Times each method's updates alone (looped, and batched for several replicas) and complete runs of a
group, all in this process, in interleaved rounds with plain PyTorch loops and, if avalanche-lib is
installed, its Naive and Replay. Times are milliseconds per update and replica, medians of the
rounds. --study table1 instead estimates from runs how long the paper's Table 1 takes in one
process, without evaluation.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import avalanche_lib, engines, plain, report
from benchmarks.measure import measure
from benchmarks.problems import NETWORKS, Problem, problem
from dpmcl.engine import device_of

REPLICAS = (1, 5, 13)  # 5 and 13 are the sizes of a run's groups on a CPU
PLAIN = ("er", "dpmcl")  # methods with a plain loop


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the measurements that the command line selects, print tables and write the report."""
    options = parse_options(arguments)
    device = device_of(options.device)
    results: dict[str, Any] = {
        "machine": {**report.machine(device), "avalanche": avalanche_lib.version()},
        "repeats": options.repeats,
        "seconds": options.seconds,
        "precision": options.precision,
        "rows": [],
        "cells": [],
    }
    print(json.dumps(results["machine"]), flush=True)
    for name in options.networks:
        network = problem(name, device, options.precision)
        for method in options.methods or (network.spec.methods if options.study else PLAIN):
            if options.study:
                results["cells"].append(time_cell(network, method, options))
            else:
                results["rows"] += time_method(network, method, options)
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
            if device.type == "cuda":
                torch.cuda.empty_cache()
    if options.study:
        print(f"in all {report.duration(sum(cell['seconds'] for cell in results['cells']))}")
    print(f"report: {options.out}")


def time_method(problem: Problem, method: str, options: argparse.Namespace) -> list[report.Row]:
    """Time one network and method, print the table and return its rows."""
    avalanche = avalanche_lib.contestants(problem) if method == "er" else []
    runs = [] if options.no_runs else [run_of(problem, method, options)]
    contestants = [
        *plain.contestants(problem, method, torch.get_num_threads()),
        *avalanche,
        *engines.contestants(problem, method, options.replicas),
        *runs,
    ]
    rows = report.rows(problem.name, method, measure(contestants, options.repeats, options.seconds))
    title = f"{problem.name}, {method}, batch {problem.method(method).batch}"
    print(f"\n{report.text(title, rows)}", flush=True)
    return rows


def time_cell(problem: Problem, method: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the time that the updates of one cell of Table 1 take, and print it."""
    (timing,) = measure([run_of(problem, method, options)], options.repeats, options.seconds)
    settings, tasks = problem.method(method), problem.spec.stream.tasks or 1
    phases = settings.phases(settings.prepare(problem.model), problem.infos[0])
    updates = tasks * sum(phase.updates for phase in phases)
    seconds = problem.spec.replicas * updates * timing.ms / 1000
    print(f"{problem.name:<9} {method:<6} {report.duration(seconds):>9}", flush=True)
    return {"network": problem.name, "method": method, "updates": updates, "seconds": seconds}


def run_of(problem: Problem, method: str, options: argparse.Namespace) -> Any:
    """Return complete runs of a method as a contestant."""
    return engines.run_of(problem, method, options.run_replicas, options.run_updates)


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""

    def names(text: str) -> list[str]:
        return text.split(",")

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__.split("\n")[0])
    parser.add_argument("networks", nargs="*", metavar="NETWORK", default=list(NETWORKS[:3]))
    parser.add_argument("--methods", type=names, help="er,dpmcl by default")
    parser.add_argument("--replicas", type=numbers, default=REPLICAS, help="of batched updates")
    parser.add_argument("--run-replicas", type=int, help="13, or 5 with convolutions, by default")
    parser.add_argument("--run-updates", type=int, help="500, or 120 with convolutions, by default")
    parser.add_argument("--no-runs", action="store_true", help="time updates alone")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3, help="approximate time of a timing")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--precision", choices=("tf32", "bf16"))
    parser.add_argument("--study", choices=("table1",))
    parser.add_argument("--out", type=Path, default=Path("runs/bench.json"))
    parser.add_argument("--quick", action="store_true", help="take seconds, to check that it runs")
    options = parser.parse_args(arguments)
    for name in options.networks:
        if name not in NETWORKS:
            parser.error(f"no network '{name}'; there are {', '.join(NETWORKS)}")
    for name in options.methods or ():
        if name not in PLAIN and not options.study:
            parser.error(f"no plain loop of '{name}'; there are {', '.join(PLAIN)}")
    if options.quick:
        options.replicas, options.repeats, options.seconds = [1, 2], 1, 0.01
        options.run_replicas, options.run_updates = 2, 8
    return options


if __name__ == "__main__":
    main()
