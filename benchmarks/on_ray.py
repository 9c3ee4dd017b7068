"""Time jobs on Ray against the same jobs in worker processes.

    python -m benchmarks.on_ray [--jobs 100] [--seconds 5] [--quick]

Each job is one seed of a method that waits after each task, so it takes its seconds on a busy
machine too, and differences are due to the overhead: starting, transfers, checkpoints, storing.
Both variants use two processes. Ray's own start is timed separately.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks import report
from dpmcl import State
from dpmcl.core.choices import Where
from dpmcl.core.model import Model
from dpmcl.data.task_info import TaskInfo
from dpmcl.methods.naive import Naive
from dpmcl.study.runs import Planned, run_all
from dpmcl.training.spec import Spec

TASKS = 2


@dataclass(frozen=True, kw_only=True)
class Waiting(Naive):
    """Trains a little, and waits after each task."""

    pause: float = 1.0

    def end_of_task(self, state: State, model: Model, task: TaskInfo) -> State:
        time.sleep(self.pause)  # not in an update, from which tracing would drop it
        return state


def run_seconds(jobs: int, seconds: float, on: Where) -> float:
    """Return the time in seconds of a run of some jobs, each of which takes `seconds`."""
    spec = Spec.parse(
        {
            "stream": {"name": "digits", "tasks": TASKS},
            "network": {"name": "mlp", "hidden": 64},
            "replicas": jobs,
            "workers": 2,
            "engine": "looped",
            "training": {"updates": 10},
            "methods": {"benchmarks.on_ray:Waiting": {"pause": seconds / TASKS}},
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        run_all([Planned(spec, Path(folder) / "run")], on=on)
        return time.perf_counter() - began


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the times of both variants and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args(arguments)
    jobs, seconds = (4, 0.5) if args.quick else (args.jobs, args.seconds)
    import ray

    began = time.perf_counter()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    start = time.perf_counter() - began
    run_seconds(1, 0.1, "here")  # warm-up: imports, data
    here, there = (run_seconds(jobs, seconds, on) for on in ("here", "ray"))
    row = {
        "jobs": jobs,
        "seconds a job": seconds,
        "seconds in processes": round(here, 2),
        "seconds on Ray": round(there, 2),
        "ratio": round(there / here, 3),
        "seconds of Ray's start": round(start, 2),
    }
    print(json.dumps({**report.machine(torch.device("cpu")), **row}, indent=1))


if __name__ == "__main__":
    main()
