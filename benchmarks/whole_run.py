"""Time a complete `dpmcl run` against its updates alone, in the same number of processes.

    python -m benchmarks.whole_run [--method er] [--replicas 26] [--tasks 5] [--quick]

The command runs SINE with one worker per core into an empty folder, including start-up, drawing,
checks, evaluation, checkpoints and results. The updates alone are those of the same replicas,
traced, batched in groups and divided among as many processes, on rows that were drawn before. The
two are timed in turn. Also prints the time of the command without its start-up: the time beyond
that of a command that stops after the first task, per update.

The defaults are a full group for each of two workers, and four tasks beyond the first. They take
about 200 CPU seconds. The paper's size is --replicas 50 --tasks 20, in which the start-up is a
smaller part.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import torch

from benchmarks import report
from benchmarks.engines import Updates, batched_engine
from benchmarks.problems import problem

GROUP = 13  # largest number of replicas in a batched group


def main(arguments: Sequence[str] | None = None) -> None:
    """Print milliseconds per update and replica of both, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--method", default="er", choices=("er", "dpmcl", "naive", "joint"))
    parser.add_argument("--replicas", type=int, default=26)
    parser.add_argument("--tasks", type=int, default=5, help="two or more, of 300 updates")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--group", type=int, default=GROUP, help="replicas a group, at most")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="file of the report")
    parser.add_argument("--quick", action="store_true", help="take a minute, to check that it runs")
    options = parser.parse_args(arguments)
    if options.quick:
        options.replicas, options.tasks, options.repeats = 4, 2, 1
    updates = 20 if options.quick else 300
    times = compare_timings(options, updates)
    machine = report.machine(torch.device("cpu"))
    print(machine)
    for name, value in times.items():
        print(f"{name}: {value:.4g}")
    if options.out:
        options.out.write_text(json.dumps({"machine": machine, **times}, indent=1) + "\n", "utf-8")


def compare_timings(options: argparse.Namespace, updates: int) -> dict[str, float]:
    """Return the medians of interleaved timings and of their ratios, by label."""
    groups = group_sizes(options.replicas, options.group, options.workers)
    shares = [groups[k :: options.workers] for k in range(options.workers)]
    ms = 1000 / (options.replicas * updates)
    whole, beyond, alone = [], [], []
    warm_up = int(not options.quick)
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        for _ in range(warm_up + options.repeats):
            short = command(options, 1, updates)
            long = command(options, options.tasks, updates)
            count = max(50, options.tasks * updates // 4)
            jobs = [pool.submit(seconds_of, options.method, tuple(own), count) for own in shares]
            slowest = max(job.result() for job in jobs)
            whole.append(ms * long / options.tasks)
            beyond.append(ms * (long - short) / (options.tasks - 1))
            alone.append(1000 * slowest / (options.replicas * count))
    timed = slice(warm_up, None)
    ratios = [a / b for a, b in zip(whole[timed], alone[timed], strict=True)]
    return {
        "whole command, ms an update and replica": statistics.median(whole[timed]),
        "command without start-up, ms": statistics.median(beyond[timed]),
        "updates alone, ms": statistics.median(alone[timed]),
        "whole / alone": statistics.median(ratios),
        "without start-up / alone": statistics.median(
            a / b for a, b in zip(beyond[timed], alone[timed], strict=True)
        ),
    }


def group_sizes(replicas: int, largest: int, workers: int) -> list[int]:
    """Return group sizes, as even as possible; their number is a multiple of the workers.

    >>> group_sizes(50, 13, 2)
    [13, 13, 12, 12]
    """
    groups = workers * -(-replicas // (workers * largest))
    return [len(range(k, replicas, groups)) for k in range(min(groups, replicas))]


def command(options: argparse.Namespace, tasks: int, updates: int) -> float:
    """Return the time of `dpmcl run` in seconds."""
    settings = {"training.updates": updates, "workers": options.workers}
    if options.method == "dpmcl":
        settings["methods.dpmcl.kappa"] = updates
    with tempfile.TemporaryDirectory() as folder:
        words = ["run", "paper-sine", "--method", options.method, "--out", f"{folder}/run"]
        words += ["--replicas", str(options.replicas), "--tasks", str(tasks)]
        for name, value in settings.items():
            words += ["--set", f"{name}={value}"]
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-m", "dpmcl", *words], check=True, capture_output=True)
        return time.perf_counter() - begin


def seconds_of(method: str, groups: tuple[int, ...], updates: int) -> float:
    """Return the seconds of the updates of some groups, in this process on one thread."""
    torch.set_num_threads(1)
    return sum(group(method, size, number)(updates) for number, size in enumerate(groups))


@cache
def group(method: str, size: int, number: int) -> Updates:
    """Return the traced updates of a group."""
    network = problem("sine", torch.device("cpu"))
    settings = network.method(method)
    phase = settings.phases(network.model, network.infos[1])[-1].name
    run = Updates(network, settings, phase, batched_engine(network, size), replicas=size)
    run(50)
    return run


if __name__ == "__main__":
    main()
