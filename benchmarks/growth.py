"""Measure how an update's time and a run's memory grow with tasks, and its memory with replicas.

    python -m benchmarks.growth [tasks|replicas] [--device cpu] [--tasks 1000] [--out FOLDER]

tasks: er and dpmcl on 1,000 one-class tasks of 50 rows, a dense network of 32 hidden units, five
replicas. Measures CPU milliseconds per update (drawing, training, D_P) and resident memory after a
hundred to a thousand tasks, for a D_P of at most 1,000 rows and one that holds all rows.
replicas: er and dpmcl on three SINE tasks of the paper's size for 1 to 200 replicas, each in its
own process. Measures the peak memory (on a GPU that of the device), less that of a process that
only built the stream's rows for one replica. Prints tables and draws two figures.
"""

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch

import dpmcl
from dpmcl import Stream, plugins
from dpmcl.results.figures import save

METHODS = ("er", "dpmcl")
STYLES = {"er": ("#0072B2", "-"), "dpmcl": ("#D55E00", "--")}
MARKS = (100, 200, 300, 1000)  # tasks; updates are traced after the first hundred
UPDATES = 4  # updates a task in the first part
CAPACITIES = (1000, 30_000)
REPLICAS = (1, 2, 5, 10, 25, 50, 100, 200)
MIB = 1 << 20


class Case(NamedTuple):
    """A run, which has its own process."""

    method: str
    tasks: int
    memory: int
    replicas: int
    device: str


class Mark(NamedTuple):
    """CPU seconds and MiB of resident memory of a process at the end of a task's updates."""

    seconds: float
    mib: float


def train_by_tasks(case: Case) -> list[Mark]:
    """Train a case, and return a mark for each task."""
    rows = 50 * case.tasks
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(rows) % case.tasks
    centre = torch.randn(case.tasks, 16, generator=generator)
    x = centre[y] + 0.3 * torch.randn(rows, 16, generator=generator)
    marks = {}
    process = psutil.Process()

    def progress(method: str, done: int, total: int) -> None:
        task = round(case.tasks * done / total)
        marks[task] = Mark(time.process_time(), process.memory_info().rss / MIB)

    run(case, Stream.from_arrays(x, y), {"name": "mlp", "hidden": 32}, UPDATES, progress)
    return [marks[task] for task in range(1, case.tasks + 1)]


def peak_memory(case: Case) -> float:
    """Train a case, or only build its stream if it has no tasks; return the peak memory in MiB."""
    if case.tasks:
        run(case, "paper-sine", {"name": "sinenet", "hidden": 100}, 60, None)
    else:
        plugins.find("stream", "sine")(tasks=1).build(range(1)).to(torch.device(case.device))
    if case.device == "cuda":
        return torch.cuda.max_memory_allocated() / MIB
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text("utf-8").split("\n") if "VmHWM" in line)
        return int(line.split()[1]) / 1024
    return psutil.Process().memory_info().rss / MIB


def run(
    case: Case,
    source: Any,
    network: dict[str, Any],
    updates: int,
    progress: Callable[[str, int, int], None] | None,
) -> None:
    """Train in this process, with almost no evaluation."""
    method = {"updates": updates, "memory": case.memory, "batch": 32, "lr": 1e-3}
    method |= {"kappa": updates} if case.method == "dpmcl" else {}
    dpmcl.run(
        source,
        methods={case.method: method},
        replicas=case.replicas,
        tasks=case.tasks,
        device=case.device,
        settings={
            "network": network,
            "workers": 1,
            "evaluation": {"evaluate_every": 10_000, "test_rows": 4},
        },
        progress=progress,
    )


def call_in_process(function, case: Case):
    """Call a function in a process of its own, and return its result."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, case).result()


def ms_at_marks(marks: list[Mark]) -> dict[int, float]:
    """Return CPU ms per update before each mark: the median over a tenth of the tasks seen."""
    ms = np.diff([mark.seconds for mark in marks]) * 1000 / UPDATES
    reached = [mark for mark in MARKS if mark <= len(marks)]
    return {m: float(np.median(ms[m - 1 - max(3, m // 10) : m - 1])) for m in reached}


def growth_with_tasks(device: str, tasks: int, folder: Path) -> None:
    """Print the tables of the first part, and draw its figure."""
    times, mib = {}, {}
    for name in METHODS:
        for memory in CAPACITIES:
            marks = call_in_process(train_by_tasks, Case(name, tasks, memory, 5, device))
            times[name, memory] = ms_at_marks(marks)
            mib[name, memory] = {m: marks[m - 1].mib for m in times[name, memory]}
            print(f"{name}, D_P of {memory}: {marks[-1].seconds:.0f} s", flush=True)
    marks = list(next(iter(times.values())))
    for title, table in (("CPU ms an update of five replicas", times), ("MiB in memory", mib)):
        print(f"\n{title}, after so many tasks\n")
        print(f"| method | rows in D_P, at most | {' | '.join(map(str, marks))} | last / first |")
        print(f"|---|--:|{'--:|' * (len(marks) + 1)}")
        for (name, memory), by_mark in table.items():
            cells = " | ".join(f"{by_mark[m]:.2f}" for m in marks)
            print(f"| {name} | {memory} | {cells} | {by_mark[marks[-1]] / by_mark[marks[0]]:.2f} |")
    figure, ax = axes("An update's time while the tasks go by")
    for (name, memory), by_mark in times.items():
        colour, dashes = STYLES[name]
        marker = "o" if memory == CAPACITIES[0] else "s"
        label = f"{name}, D_P of {memory:,} rows at most"
        ax.plot(marks, list(by_mark.values()), dashes, color=colour, marker=marker, label=label)
    ax.set_xscale("log")
    ax.set_xlabel("tasks seen")
    ax.set_ylabel("CPU ms an update of five replicas")
    ax.set_ylim(0, 1.4 * max(max(by_mark.values()) for by_mark in times.values()))
    ax.legend(frameon=False, fontsize=8)
    save(figure, folder / "growth_tasks.png")


def growth_with_replicas(device: str, folder: Path) -> None:
    """Print the table of the second part, and draw its figure."""
    base = call_in_process(peak_memory, Case("er", 0, 1000, 1, device))
    peaks = {
        name: [
            call_in_process(peak_memory, Case(name, 3, 1000, count, device)) - base
            for count in REPLICAS
        ]
        for name in METHODS
    }
    print(f"\nMiB at the peak, beyond the {base:.0f} of a process that trains nothing\n")
    print(f"| method | {' | '.join(map(str, REPLICAS))} | a replica more, 50 to 200 |")
    print(f"|---|{'--:|' * (len(REPLICAS) + 1)}")
    for name, mib in peaks.items():
        slope = (mib[-1] - mib[REPLICAS.index(50)]) / 150
        print(f"| {name} | {' | '.join(f'{m:.0f}' for m in mib)} | {slope:.2f} |")
    figure, ax = axes("Memory of a run of the SINE network")
    for name, mib in peaks.items():
        colour, dashes = STYLES[name]
        ax.plot(REPLICAS, mib, dashes, color=colour, marker="o", label=name)
    ax.set_xlim(0, REPLICAS[-1] * 1.03)
    ax.set_ylim(0, None)
    ax.set_xlabel("replicas")
    ax.set_ylabel("MiB at the peak, beyond a bare process")
    ax.legend(frameon=False)
    save(figure, folder / "growth_replicas.png")


def axes(title: str):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 3.8), layout="constrained")
    ax = figure.subplots()
    ax.set_title(title, fontsize=11)
    ax.grid(alpha=0.25, linewidth=0.5)
    ax.spines[["top", "right"]].set_visible(False)
    return figure, ax


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", nargs="?", choices=("tasks", "replicas"))
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--tasks", type=int, default=1000, help="100 or more")
    default = Path(__file__).parent.parent / "docs" / "figures"
    parser.add_argument("--out", type=Path, default=default, help="folder of the figures")
    options = parser.parse_args()
    if options.tasks < 100:
        parser.error("takes 100 tasks at least")
    if options.what != "replicas":
        growth_with_tasks(options.device, options.tasks, options.out)
    if options.what != "tasks":
        growth_with_replicas(options.device, options.out)


if __name__ == "__main__":
    main()
