"""Check on a GPU that captured updates give a CPU's numbers, and time them.

    python -m benchmarks.gpu_check [--root DIR] [--device cuda] [--out runs/gpu_check.json]

Runs every method on generated images like digits, and on real MNIST if DIR holds MNIST/raw:
captured on the device and looped on the CPU, in float64. Prints the largest difference of a
parameter; exits with status 1 if one exceeds 1e-9. Then times the updates of 50 replicas in
float32, captured and eager, without the capture itself. With --device cpu the fixed buffers are
used without a graph.
"""

import argparse
import json
import math
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.engines import random_rows
from benchmarks.report import machine
from dpmcl import plugins
from dpmcl.core.model import Model, initial_weights
from dpmcl.data.splits import split
from dpmcl.data.stream import Stream
from dpmcl.data.task_info import task_infos
from dpmcl.engine import Batched, Feed, Looped
from dpmcl.methods._method import Method
from dpmcl.training.loop import train
from dpmcl.training.setup import Setup

TOLERANCE = 1e-9
TWO_LOOPS = ("anml", "cml", "oml")


def methods(batch: int, updates: int) -> dict[str, Method]:
    """Return every method, and the forms that differentiate through inner updates, by name."""
    by_name = {
        name: plugins.find("method", name)(batch=batch, updates=updates, memory=200)
        for name in plugins.names("method")
    }
    for name in TWO_LOOPS:
        # SGD: Adagrad's first step is a sign, whose derivative magnifies rounding to 1e-9 at times.
        by_name[f"{name} order 2"] = replace(
            by_name[name], optimiser="sgd", reading="nested", inner=2, order=2
        )
    by_name["dpmcl exact"] = replace(by_name["dpmcl"], third_term="exact", zeta=2)
    return by_name


def digits() -> Stream:
    """Return images of 8x8 bytes, ten classes of 30, in clouds around random means."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(10).repeat_interleave(30)
    means = torch.randint(0, 200, (10, 1, 8, 8), generator=generator)
    noise = torch.randint(0, 56, (len(y), 1, 8, 8), generator=generator)
    x = (means[y] + noise).to(torch.uint8)
    return Stream.from_arrays(x, y, name="digits", tasks=2)


def problems(root: str | None) -> dict[str, tuple[Stream, str]]:
    """Return streams of two tasks and the names of their networks, by name."""
    by_name = {"digits": (digits(), "mlp")}
    if root:
        settings = plugins.find("stream", "mnist")(root=root, tasks=2)
        by_name["mnist"] = (settings.build((0,)), settings.network)
    return by_name


def model_of(stream: Stream, network: str, dtype: torch.dtype) -> Model:
    settings, shape = plugins.find("network", network)(), tuple(stream.x.shape[1:])
    return Model.build(
        lambda: settings.build(shape, stream.outputs),
        stream.kind,
        stream.example(dtype),
        stream.outputs,
        dtype=dtype,
    )


def difference(method: Method, stream: Stream, network: str, device: torch.device) -> float:
    """Return the largest difference of a parameter between the device and a CPU.

    Two replicas in float64, captured on the device and looped on the CPU.
    """
    seeds, thetas = (0, 1), []
    for target, engine in ((device, Batched(static=True)), (torch.device("cpu"), Looped())):
        moved = stream.to(target)
        splits = split(moved, seeds, (0.6, 0.2, 0.2))
        model = model_of(moved, network, torch.float64)
        setup = Setup(
            method=method,
            model=method.prepare(model),
            stream=moved,
            splits=splits,
            seeds=seeds,
            engine=engine,
        )
        thetas.append(train(setup).replicas.theta)
    return max(
        (a.cpu() - b.cpu()).abs().max().item()
        for part, parameters in thetas[0].items()
        for a, b in zip(parameters.values(), thetas[1][part].values(), strict=True)
    )


def speed(
    method: Method, stream: Stream, network: str, engine: Batched, replicas: int, updates: int
) -> float:
    """Return milliseconds per update of all replicas, in a method's last phase and float32."""
    device = stream.x.device
    model = method.prepare(model_of(stream, network, torch.float32))
    info = task_infos(stream, split(stream, (0,), (0.6, 0.2, 0.2)))[0]
    phase = method.phases(model, info)[-1]
    theta = initial_weights(model, range(replicas))
    state = engine.map(lambda theta: method.start(theta, info), theta)
    drawn = random_rows(phase, stream, replicas, updates)

    def time_once() -> float:
        wait(device)
        begin = time.perf_counter()
        engine.advance(phase.update, state, Feed(drawn, stream, torch.float32))
        wait(device)
        return time.perf_counter() - begin

    time_once()  # warms up, and captures
    return 1000 * min(time_once(), time_once()) / updates


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", help="folder that holds MNIST/raw")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--replicas", type=int, default=50, help="replicas of the timings")
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("runs/gpu_check.json"))
    arguments = parser.parse_args()

    device, rows, worst = torch.device(arguments.device), [], 0.0
    print("problem  method          difference   captured ms   eager ms")
    for problem, (stream, network) in problems(arguments.root).items():
        moved = stream.to(device)
        for name, method in methods(32, arguments.updates).items():
            error = difference(replace(method, batch=8), stream, network, device)
            captured, eager = (
                speed(method, moved, network, engine, arguments.replicas, arguments.updates)
                for engine in (Batched(static=True), Batched(static=False))
            )
            print(f"{problem:<8} {name:<14} {error:>11.1e} {captured:>13.3f} {eager:>10.3f}")
            worst = max(worst, math.inf if math.isnan(error) else error)
            rows.append(
                {
                    "problem": problem,
                    "method": name,
                    "difference": error,
                    "captured_ms": captured,
                    "eager_ms": eager,
                }
            )
    report = {"machine": machine(device), "replicas": arguments.replicas, "rows": rows}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    print(f"largest difference: {worst:.1e}; written to {arguments.out}")
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
