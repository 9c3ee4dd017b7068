"""How long a long stream takes to build and split, beside a short one over as many rows.

python benchmarks/stream_scale.py [--rows 100000] [--tasks 1000] [--replicas 10]
"""

import argparse
import statistics
import time

import torch

from dpmcl.data.splits import split
from dpmcl.data.stream import Stream


def built(rows: int, tasks: int, replicas: int) -> tuple[float, float]:
    """Seconds to build a stream of one-class tasks, and to split it for so many replicas."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (rows, 784), dtype=torch.uint8, generator=generator)
    y = torch.randperm(rows, generator=generator) % tasks
    start = time.perf_counter()
    stream = Stream.from_arrays(x, y)
    middle = time.perf_counter()
    split(stream, range(replicas), (0.6, 0.2, 0.2))
    return middle - start, time.perf_counter() - middle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--tasks", type=int, default=1_000)
    parser.add_argument("--replicas", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    cases = [(tasks, r) for tasks in (10, options.tasks) for r in (1, options.replicas)]
    times: dict[tuple[int, int], list[tuple[float, float]]] = {case: [] for case in cases}
    for _ in range(options.repeats):  # interleaved, for the machine's moods
        for tasks, replicas in cases:
            times[tasks, replicas].append(built(options.rows, tasks, replicas))
    print(f"{options.rows} rows of 784 bytes, medians of {options.repeats}, one thread\n")
    print("| tasks | replicas | build, s | split, s | split against 10 tasks |")
    print("|--:|--:|--:|--:|--:|")
    split_of = {case: statistics.median(s for _, s in found) for case, found in times.items()}
    for tasks, replicas in cases:
        build = statistics.median(b for b, _ in times[tasks, replicas])
        ratio = split_of[tasks, replicas] / split_of[10, replicas]
        print(
            f"| {tasks} | {replicas} | {build:.2f} | {split_of[tasks, replicas]:.2f} | "
            f"{ratio:.2f} |"
        )


if __name__ == "__main__":
    main()
