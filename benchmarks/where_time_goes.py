"""Measure where the time of a DPMCL iteration goes on a CPU, and compare it with the CPU's limits.

    python -m benchmarks.where_time_goes [NETWORK ...] [--method dpmcl]

Runs one looped replica, or a batched group of the size of a run on a CPU, traced, on one thread.
Prints for each network: milliseconds per iteration and replica by kind of operation (PyTorch's
profiler); the time of the same arithmetic at the rate of a 1024^3 matrix product; and the time in
which the data of one optimiser step (parameters, gradient, its sum of squares) could be read and
written once.
"""

import argparse
import time
from collections import Counter

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.engines import random_rows
from benchmarks.problems import NETWORKS, problem
from dpmcl.core.model import has_convolution, initial_weights
from dpmcl.core.tree import leaves, tree_map
from dpmcl.engine.traced import trace

KINDS = {
    "convolutions": ("conv",),
    "pooling": ("max_pool",),
    "matrix products": ("mm", "linear"),
    "optimiser": ("sqrt", "addcmul", "addcdiv"),
    "random masks": ("bitwise", "shift", "arange"),
}
UPDATES = 20
GROUP = {False: 13, True: 5}  # replicas of a batch on a CPU, by whether there are convolutions
LARGE = 64  # largest batch of rows for which a run batches replicas of convolutions on a CPU


def kind(name: str) -> str:
    kinds = [kind for kind, parts in KINDS.items() if any(part in name for part in parts)]
    return kinds[0] if kinds else "the rest"


def median_of(function, repeats: int = 9) -> float:
    """Return the median time of a call in seconds, after two warm-up calls."""
    times = []
    for _ in range(repeats + 2):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return sorted(times[2:])[repeats // 2]


def shares(name: str, method: str) -> dict[str, float]:
    network = problem(name, torch.device("cpu"))
    rule = network.method(method)
    model, info = rule.prepare(network.model), network.infos[0]
    phase = rule.phases(model, info)[-1]
    convolves = has_convolution(model)
    batched = not convolves or rule.batch <= LARGE
    replicas = GROUP[convolves] if batched else 1
    state = torch.func.vmap(lambda theta: rule.start(theta, info))(
        initial_weights(model, range(replicas))
    )
    drawn = random_rows(phase, network.stream, replicas, 1)
    batches, key = drawn.batches(network.stream, model.dtype, 0, slice(None)), drawn.key[:, 0]
    # FLOPs are counted for one replica, since the counter ignores the groups of convolutions.
    one_replica = tree_map(lambda leaf: leaf[0].clone(), (state, batches, key))
    single = trace(phase.update, *tree_map(torch.Tensor.clone, one_replica))
    with FlopCounterMode(display=False) as counter:
        single(*tree_map(torch.Tensor.clone, one_replica))
    if batched:
        update = torch.func.vmap(phase.update)
        run = trace(update, tree_map(torch.Tensor.clone, state), batches, key)
    else:
        run, (state, batches, key) = single, one_replica
    state = tree_map(torch.Tensor.clone, state)

    def advance(updates: int) -> None:
        nonlocal state
        for _ in range(updates):
            state = run(state, batches, key)

    advance(5)
    seconds = median_of(lambda: advance(UPDATES)) / UPDATES
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        advance(UPDATES)
    time_by_kind: Counter[str] = Counter()
    for event in profiled.key_averages():
        time_by_kind[kind(event.key)] += event.self_cpu_time_total
    total = sum(time_by_kind.values())
    ms = 1000 * seconds / replicas
    parameters = sum(leaf.numel() * leaf.element_size() for leaf in leaves(state.theta)) / replicas
    return {
        "replicas": replicas,
        "ms": ms,
        **{name: ms * time_by_kind[name] / total for name in [*KINDS, "the rest"]},
        "mflop": counter.get_total_flops() / 1e6,
        "bytes": 5 * parameters,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--method", default="dpmcl")
    options = parser.parse_args()
    torch.set_num_threads(1)
    a, b = torch.rand(1024, 1024), torch.rand(1024, 1024)
    rate = 2 * 1024**3 / median_of(lambda: a @ b)
    source, target = torch.rand(1 << 24), torch.empty(1 << 24)
    bandwidth = 8 * source.numel() / median_of(lambda: target.copy_(source))
    print(f"matrix product {rate / 1e9:.0f} GFLOP/s, copy {bandwidth / 1e9:.1f} GB/s\n")
    rows = {name: shares(name, options.method) for name in options.networks}
    print(f"| ms of a {options.method} iteration | {' | '.join(rows)} |")
    print(f"|---|{'--:|' * len(rows)}")
    labels = {"replicas": "replicas at once", "ms": "all"}
    for key in ["replicas", "ms", *KINDS, "the rest"]:
        cells = [
            f"{row[key]:.0f}" if key == "replicas" else f"{row[key]:.2f}" for row in rows.values()
        ]
        print(f"| {labels.get(key, key)} | {' | '.join(cells)} |")
    limits = {
        "MFLOP": [f"{row['mflop']:.0f}" for row in rows.values()],
        "at the rate of a large product, ms": [
            f"{row['mflop'] * 1e9 / rate:.2f}" for row in rows.values()
        ],
        "one step's data, read and written once, ms": [
            f"{row['bytes'] * 1e3 / bandwidth:.2f}" for row in rows.values()
        ],
    }
    for label, cells in limits.items():
        print(f"| {label} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
