"""Time the same training with and without `--watch terms,stability`, in turns.

    python benchmarks/watch_overhead.py [PROBLEM ...] [--method NAME] [--replicas 10] [--repeats 5]

Problems are sine, digits, mnist and omniglot, all by default; images are read from $DPMCL_DATA.
Two tasks of each as in its preset, in one process; evaluation uses one row a task, so that mostly
training is compared. Times are medians of interleaved repeats, in seconds; the ratio is the median
of the ratios of the pairs. Results are written to benchmarks/watch_overhead.json.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import dpmcl

PROBLEMS = ("sine", "digits", "mnist", "omniglot")
METHODS = ("er", "dpmcl", "oml")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("problems", nargs="*", metavar="PROBLEM", default=list(PROBLEMS))
    parser.add_argument("--method", action="append", choices=METHODS)
    parser.add_argument("--replicas", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/watch_overhead.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {"replicas": arguments.replicas, "torch": torch.__version__}
    print("| problem | method | plain, s | watched, s | watched / plain |", flush=True)
    print("|---|---|--:|--:|--:|", flush=True)
    for problem, method in itertools.product(arguments.problems, arguments.method or METHODS):
        pairs = paired_seconds(problem, method, arguments.replicas, arguments.repeats)
        plain, watched = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
        ratio = statistics.median(pair[1] / pair[0] for pair in pairs)
        results[f"{problem}, {method}"] = {"plain": plain, "watched": watched, "ratio": ratio}
        print(f"| {problem} | {method} | {plain:.2f} | {watched:.2f} | {ratio:.3f} |", flush=True)
        arguments.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


def paired_seconds(
    problem: str, method: str, replicas: int, repeats: int
) -> list[tuple[float, float]]:
    """Return pairs of the seconds of a plain and a watched run."""

    def run_seconds(watched: Sequence[str]) -> float:
        begin = time.perf_counter()
        dpmcl.run(
            problem,
            methods=[method],
            replicas=replicas,
            tasks=2,
            settings={"workers": 1, "evaluation.test_rows": 1},
            monitor=watched,
        )
        return time.perf_counter() - begin

    kinds: tuple[tuple[str, ...], ...] = ((), ("terms", "stability"))
    for kind in kinds:  # warm-up: imports at first use
        run_seconds(kind)
    return [(run_seconds(kinds[0]), run_seconds(kinds[1])) for _ in range(repeats)]


if __name__ == "__main__":
    main()
