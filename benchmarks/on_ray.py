"""What jobs on Ray cost beyond the same jobs in worker processes.

    python -m benchmarks.on_ray [--jobs 100] [--seconds 5] [--quick]

Each job is one seed of ER on the digits, of as many updates as take about so many seconds. Both
ways use two processes, and store results; Ray's own start is timed apart.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks import report
from dpmcl.core.choices import Where
from dpmcl.study import study
from dpmcl.training.spec import Spec


def spec(jobs: int, updates: int) -> Spec:
    """Return a spec of so many jobs, one seed each."""
    return Spec.parse(
        {
            "stream": {"name": "digits", "tasks": 2},
            "network": {"name": "mlp", "hidden": 64},
            "replicas": jobs,
            "workers": 2,
            "engine": "looped",
            "training": {"updates": updates},
            "methods": ["er"],
        }
    )


def timed(jobs: int, updates: int, on: Where) -> float:
    """Return the seconds that a run takes."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        study.run(spec(jobs, updates), Path(folder) / "run", on=on)
        return time.perf_counter() - began


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the seconds of both, and their ratio."""
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
    timed(1, 50, "here")  # warm: imports, data
    some = 1000
    each = timed(1, some, "here") / some
    updates = max(50, round(seconds / each))
    here = timed(jobs, updates, "here")
    there = timed(jobs, updates, "ray")
    row = {
        "jobs": jobs,
        "updates a task": updates,
        "seconds in processes": round(here, 2),
        "seconds on Ray": round(there, 2),
        "ratio": round(there / here, 3),
        "seconds of Ray's start": round(start, 2),
    }
    print(json.dumps({**report.machine(torch.device("cpu")), **row}, indent=1))


if __name__ == "__main__":
    main()
