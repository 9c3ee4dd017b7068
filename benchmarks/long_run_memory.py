"""How much memory a long run takes, and whether its updates stay as fast as the first.

    python benchmarks/long_run_memory.py [--tasks 2000] [--updates 3] [--out FILE.png]

One class a task, 20 rows of 16 floats a class, a dense network of 32 hidden units and an output for
every class, two replicas, D_P of 2,000 rows, all tasks evaluated after every 500th. Each method
trains in a process of its own, on one thread; its resident memory is read when a task's last update
is done; time is the process's CPU time. Prints a table, and draws memory against tasks.
"""

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import torch

from dpmcl import plugins
from dpmcl.core.model import Model
from dpmcl.data.splits import split
from dpmcl.data.stream import Stream
from dpmcl.engine import Batched
from dpmcl.networks.mlp import MLP
from dpmcl.results.figures import save
from dpmcl.training.evaluation import Evaluation
from dpmcl.training.loop import train

METHODS = ("er", "dpmcl")
MIB = 1 << 20
SPAN = 100  # tasks over which the time of an update is averaged


class Trace(NamedTuple):
    """Resident memory in MiB, and seconds of CPU time, at the end of each task's updates."""

    mib: np.ndarray
    seconds: np.ndarray


def trained(name: str, tasks: int, updates: int) -> Trace:
    """A run of one method on a stream of one-class tasks."""
    torch.set_num_threads(1)
    seeds = (0, 1)
    rows = 20 * tasks
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(rows) % tasks
    centre = torch.randn(tasks, 16, generator=generator)
    x = centre[y] + 0.3 * torch.randn(rows, 16, generator=generator)
    stream = Stream.from_arrays(x, y)
    network = MLP(hidden=32)
    model = Model.build(
        lambda: network.build((16,), stream.outputs),
        stream.kind,
        stream.example(torch.float32),
        stream.outputs,
    )
    method = plugins.find("method", name)(updates=updates, memory=2000)
    splits = split(stream, seeds, (0.6, 0.2, 0.2))
    process = psutil.Process()
    mib, seconds = [], []

    def progress(done: int, total: int) -> None:
        if done % updates == 0:
            mib.append(process.memory_info().rss / MIB)
            seconds.append(time.process_time())

    evaluation = Evaluation(evaluate_every=500, test_rows=4)
    train(method, model, stream, splits, seeds, Batched(), evaluation, progress)
    return Trace(np.array(mib), np.array(seconds))


def slowdown(trace: Trace, updates: int) -> tuple[float, float]:
    """CPU milliseconds an update, with all that a task does, in the first and last SPAN tasks."""
    span = min(SPAN, len(trace.seconds) - 1)
    first, last = trace.seconds[: span + 1], trace.seconds[-span - 1 :]
    per = 1000 / (span * updates)
    return per * float(first[-1] - first[0]), per * float(last[-1] - last[0])


def draw(traces: dict[str, Trace], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 3.8), layout="constrained")
    ax = figure.subplots()
    styles = (("#0072B2", "-"), ("#D55E00", "--"))
    for (name, trace), (colour, dashes) in zip(traces.items(), styles, strict=True):
        tasks = np.arange(1, len(trace.mib) + 1)
        ax.plot(tasks, trace.mib, linestyle=dashes, color=colour, linewidth=1.5, label=name)
    ax.set_xlim(0, max(len(trace.mib) for trace in traces.values()))
    ax.set_ylim(0, 1.15 * max(trace.mib.max() for trace in traces.values()))
    ax.set_xlabel("tasks trained")
    ax.set_ylabel("resident memory, MiB")
    ax.set_title("Memory of a run while the tasks go by (one class a task)", fontsize=11)
    ax.grid(alpha=0.25, linewidth=0.5)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, loc="lower right")
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--updates", type=int, default=3, help="a task, 50 at most")
    default = Path(__file__).parent.parent / "docs" / "figures" / "long_run_memory.png"
    parser.add_argument("--out", type=Path, default=default)
    options = parser.parse_args()
    if not 0 < options.updates <= 50 or options.tasks < 3:
        parser.error("takes 1 to 50 updates and 3 tasks at least")  # progress comes every 50
    traces = {}
    for name in METHODS:
        start = time.perf_counter()
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
            traces[name] = alone.submit(trained, name, options.tasks, options.updates).result()
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
    marks = [k for k in (50, 500, 1000, 2000) if k <= options.tasks]
    print("\nMiB of resident memory after so many tasks, and CPU ms an update\n")
    print(f"| method | {' | '.join(map(str, marks))} | first tasks, ms | last, ms | last / first |")
    print(f"|---|{'--:|' * (len(marks) + 3)}")
    for name, trace in traces.items():
        first, last = slowdown(trace, options.updates)
        held = " | ".join(f"{trace.mib[k - 1]:.0f}" for k in marks)
        print(f"| {name} | {held} | {first:.2f} | {last:.2f} | {last / first:.2f} |")
    draw(traces, options.out)


if __name__ == "__main__":
    main()
