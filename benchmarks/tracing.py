"""Time the same updates with and without tracing, on one core, in turns.

    python -m benchmarks.tracing [--methods er,dpmcl] [--replicas 10] [--quick]

SINE of the paper's size, all replicas batched in one process on one thread, without drawing. Prints
the median time of each per update and replica, and the median of the ratios of the rounds; then the
median time of tracing an update for all replicas, and the number of traced updates that save it.
"""

import argparse
import statistics
from collections.abc import Sequence

import torch

from benchmarks import report
from benchmarks.engines import Updates
from benchmarks.measure import Contestant, measure, seconds_of
from benchmarks.problems import problem
from dpmcl.core.precision import arithmetic
from dpmcl.core.threads import threads
from dpmcl.engine.batched import Batched
from dpmcl.engine.stepper import Stepper
from dpmcl.engine.traced import trace


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each method."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--network", default="sine", choices=("sine", "mnist", "omniglot"))
    parser.add_argument("--methods", default="er,dpmcl", type=lambda text: text.split(","))
    parser.add_argument("--replicas", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0, help="approximate time of a timing")
    parser.add_argument("--quick", action="store_true", help="take seconds, to check that it runs")
    options = parser.parse_args(arguments)
    if options.quick:
        options.repeats, options.seconds = 1, 0.01
    device = torch.device("cpu")
    network = problem(options.network, device)
    print(report.machine(device))
    print("| method | as it is, ms | traced, ms | as it is / traced | tracing, ms | saved by |")
    print("|---|--:|--:|--:|--:|--:|")
    for name in options.methods:
        method = network.method(name)
        phase = method.phases(method.prepare(network.model), network.infos[1])[-1].name
        contestants = []
        for label, after in (("as it is", None), ("traced", 0)):
            engine = Batched(stepper=Stepper(torch.func.vmap, trace_after=after))
            run = Updates(network, method, phase, engine, replicas=options.replicas)
            contestants.append(Contestant(label, run, options.replicas))
        plain, traced = measure(contestants, options.repeats, options.seconds)
        pairs = zip(plain.repeats, traced.repeats, strict=True)
        ratio = statistics.median(a / b for a, b in pairs)
        once = statistics.median(tracing_ms(run) for _ in range(options.repeats))
        pays = once / (options.replicas * (plain.ms - traced.ms))
        times = f"{plain.ms:.3f} | {traced.ms:.3f} | {ratio:.2f} | {once:.1f} | {pays:.1f} updates"
        print(f"| {name} | {times} |", flush=True)


def tracing_ms(run: Updates) -> float:
    """Return the milliseconds that tracing an update takes once, for all replicas."""
    feed = run.feed(1)
    arguments = run.start, feed.batches(0, slice(None)), feed.key[:, 0]
    with threads(1), arithmetic(run.precision):
        update = torch.func.vmap(run.phase.update)
        return 1000 * seconds_of(lambda: trace(update, *arguments), run.model.device)


if __name__ == "__main__":
    main()
