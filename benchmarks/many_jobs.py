"""Time the work on a study of 1,200 jobs beside its training: planning, listing and merging.

    python -m benchmarks.many_jobs [--jobs 1200] [--shards 8] [--quick]

Jobs are stubs that train nothing and return errors of the right shape. Two studies are timed: few
runs of many seeds, and as many runs as jobs. A first study of two jobs does the imports. The steps
are: plan the runs, list them with an estimate (`--dry-run`), merge shards into one folder, list
the finished jobs, and print the table. Prints wall and CPU seconds; every file that is merged waits
for the disk.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks import report
from dpmcl.core.errors import Errors
from dpmcl.core.gradients import Work
from dpmcl.results import store
from dpmcl.results.record import Record
from dpmcl.results.store import StreamInfo
from dpmcl.study import protocol, studies
from dpmcl.study.forecast import forecast, forecast_lines
from dpmcl.study.merging import merge
from dpmcl.study.plan import Variant, variants
from dpmcl.study.result import load
from dpmcl.study.runs import Planned
from dpmcl.study.shard import Shard, shard_of

TASKS = 5


def study(runs: int, seeds: int) -> list[Variant]:
    """Return the runs of a study: one for each learning rate, with a job for each seed."""
    table = {
        "stream": {"name": "digits", "tasks": TASKS},
        "network": {"name": "mlp", "hidden": 8},
        "replicas": seeds,
        "engine": "looped",
        "workers": 1,
        "methods": ["er"],
    }
    return variants(table, {"training.lr": [round(1e-4 * (1 + k), 7) for k in range(runs)]})


def store_stubs(planned: Sequence[Planned], part: Path, shard: Shard) -> None:
    """Store stub results of a shard's jobs."""
    names = tuple(map(str, range(TASKS)))
    info = StreamInfo("digits", "classification", names, names, digest="0")
    for run in planned:
        seeds = tuple(seed for seed in run.spec.seeds if next(shard))
        if not seeds:
            continue
        values = np.full((len(seeds), 1 + TASKS, TASKS), 0.5)
        errors = Errors(seeds, values, np.ones((len(seeds), TASKS), dtype=np.int64))
        records = {"er": Record({"test": errors}, dict.fromkeys(seeds, Work(1, 2, 3, 4, 5)))}
        folder = part / run.name
        store.save_start(folder, run.spec.to_table(), info, {})
        theta = {"prediction": {"weight": torch.zeros(len(seeds), 1)}}
        store.save_parameters(folder, "er", seeds, theta)
        entry = {"method": "er", "seeds": list(seeds), "finished": "", "dpmcl": "stub"}
        store.add_environment(folder, entry)
        store.save_records(folder, records)
        protocol.check_and_save(folder)


@contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Add the wall seconds of a block, and the CPU seconds of this process, to a table."""
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    seconds[name] = round(time.perf_counter() - wall, 2)
    seconds[f"{name}, CPU"] = round(time.process_time() - cpu, 2)


def seconds_of(runs: int, seeds: int, shards: int) -> dict[str, float]:
    """Return the seconds of each step."""
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with timed(seconds, "planned"):
            plan = study(runs, seeds)
            planned = studies.planned_runs(plan, folder / "all")
        with timed(seconds, "listed"):
            lines = forecast_lines(forecast(planned), 2)
        assert f"{runs * seeds} of {runs * seeds} jobs are missing" in lines[-1]
        parts = [folder / f"part-{k}" for k in range(1, shards + 1)]
        with mock.patch("os.fsync"):
            for k, part in enumerate(parts, 1):
                store_stubs(planned, part, shard_of(f"{k}/{shards}"))
        with timed(seconds, "merged"):
            merge(folder / "all", [part for part in parts if part.exists()])
        with timed(seconds, "listed when done"):
            lines = forecast_lines(forecast(planned), 2)
        assert f"0 of {runs * seeds} jobs are missing" in lines[-1]
        with timed(seconds, "table"):
            results = {variant.name: load(folder / "all" / variant.name) for variant in plan}
            studies.table_and_figure("mine", plan, results, "json")
    for suffix in ("", ", CPU"):
        steps = (seconds[f"{step}{suffix}"] for step in ("planned", "listed", "merged"))
        seconds[f"planned, listed and merged{suffix}"] = round(sum(steps), 2)
    return seconds


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the seconds of each step."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=1200)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--quick", action="store_true", help="take seconds, to check that it runs")
    options = parser.parse_args(arguments)
    if options.quick:
        options.jobs, options.shards = 8, 2
    timings: dict[str, Any] = report.machine(torch.device("cpu"))
    seeds = max(2, options.jobs // 60)
    for runs, count in ((1, 2), (options.jobs // seeds, seeds), (options.jobs, 1)):
        timings[f"{runs} runs of {count} jobs"] = seconds_of(runs, count, options.shards)
        print(json.dumps(timings, indent=1), flush=True)


if __name__ == "__main__":
    main()
