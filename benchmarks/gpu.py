"""Run everything that is to be measured on a GPU, within eight minutes.

    python -m benchmarks.gpu [--device cuda] [--seconds 480] [--out benchmarks/gpu.json] [--quick]

The parts run in this order. When the time is over, the remaining parts are skipped, and the report
names them:

1. do captured updates give the results of a CPU's looped ones (float64, every method)?
2. captured updates against the same updates without capture, 50 replicas;
3. an update of each network against a plain loop on the same GPU;
4. the forms of a convolution's weight gradient and of its arithmetic;
5. the estimate of the paper's Table 1;
6. the SINE part of Table 1, run completely (50 tasks, six methods, 50 replicas);
7. the memory of 1 to 200 replicas (`growth.py`).

Not yet run on a GPU. --quick runs each part in seconds, also on a CPU, to check that it works.
"""

import argparse
import json
import time
import traceback
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch

import dpmcl
from benchmarks import __main__ as bench
from benchmarks import engines, growth, measure, plain, problems, report
from benchmarks.gpu_check import digits
from dpmcl import plugins
from dpmcl.engine.batched import Batched

FORMS = tuple(product(("native", "patches"), (None, "tf32", "bf16")))
TOLERANCE = 1e-9
NESTED = {"optimiser": "sgd", "reading": "nested", "inner": 2, "order": 2}
"""With SGD, since Adagrad's first step is a sign, whose derivative magnifies rounding."""


def cases() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield (label, method, settings): every method, and the forms with second derivatives."""
    for name in plugins.names("method"):
        yield name, name, {}
    for name in ("anml", "cml", "oml"):
        yield f"{name} order 2", name, NESTED
    yield "dpmcl exact", "dpmcl", {"third_term": "exact", "zeta": 2}


def agreement(device: str, quick: bool) -> dict[str, float]:
    """Return the largest difference of a parameter between the device (batched) and a CPU (looped).

    The differences are by method.
    """
    stream, differences = digits(), {}
    for label, name, settings in [*cases()][: 2 if quick else None]:
        table = {"batch": 8, "updates": 4 if quick else 20, "memory": 200, **settings}
        on_device, on_cpu = (
            dpmcl.run(
                stream,
                methods={name: table},
                replicas=2,
                device=target,
                engine=engine,
                settings={"dtype": "float64", "network": {"name": "mlp"}, "workers": 1},
            ).theta[name]
            for target, engine in ((device, "batched"), ("cpu", "looped"))
        )
        differences[label] = max(
            (parameter.cpu() - on_cpu[part][key].cpu()).abs().max().item()
            for part, parameters in on_device.items()
            for key, parameter in parameters.items()
        )
        print(f"{label}: {differences[label]:.1e}", flush=True)
    if not all(value <= TOLERANCE for value in differences.values()):
        raise AssertionError(f"a parameter differs by more than {TOLERANCE}: {differences}")
    return differences


def capture(device: str, quick: bool) -> list[dict[str, Any]]:
    """Return milliseconds per update and replica, with and without fixed buffers (captured)."""
    replicas, rows = 2 if quick else 50, []
    for name, method in product(("sine",) if quick else ("sine", "mnist"), ("er", "dpmcl")):
        problem = problems.problem(name, torch.device(device))
        for label, static in (("captured", True), ("as it is", False)):
            rows.append(
                time_updates(problem, f"{method}, {label}", Batched(static=static), replicas, quick)
            )
    return rows


def forms(device: str, quick: bool) -> list[dict[str, Any]]:
    """Return milliseconds per update and replica of ER, for each form of a convolution."""
    rows, replicas = [], 2 if quick else 50
    for name in ("omniglot",) if quick else ("cifar10", "omniglot", "mnist"):
        for convolutions, precision in FORMS:
            problem = problems.problem(name, torch.device(device), precision, convolutions)
            label = f"er, {convolutions}, {precision or 'float32'}"
            rows.append(time_updates(problem, label, Batched(), replicas, quick))
        (loop, _) = plain.contestants(problem, "er", torch.get_num_threads())
        rows.append(row_of(name, loop, quick))
    return rows


def time_updates(
    problem: problems.Problem, label: str, engine: Batched, replicas: int, quick: bool
) -> dict[str, Any]:
    """Time the updates of the method with whose name a label begins, and return their row."""
    method = problem.method(label.split(",")[0])
    phase = method.phases(problem.model, problem.infos[0])[-1].name
    run = engines.Updates(problem, method, phase, engine, replicas=replicas)
    row = row_of(problem.name, measure.Contestant(label, run, replicas), quick)
    del run, engine  # frees the captured graph before the next measurement
    if problem.device.type == "cuda":
        torch.cuda.empty_cache()
    return row


def row_of(network: str, contestant: measure.Contestant, quick: bool) -> dict[str, Any]:
    """Time a contestant, print its row and return it."""
    (timing,) = measure.measure([contestant], 1 if quick else 3, 0.01 if quick else 0.3)
    row = {"network": network, "name": contestant.name, "ms": timing.ms}
    print(row, flush=True)
    return row


def against_plain(device: str, quick: bool) -> Any:
    """Return the report of `python -m benchmarks` with TF32, PyTorch's default in convolutions."""
    return benchmarks(device, quick, "--replicas", "1,50", "--no-runs")


def estimate(device: str, quick: bool) -> Any:
    """Return the report of `python -m benchmarks --study table1`."""
    return benchmarks(device, quick, "--study", "table1", "--run-replicas", "50")


def benchmarks(device: str, quick: bool, *words: str) -> Any:
    """Return the report of `python -m benchmarks`."""
    out = Path("runs/gpu_bench.json")
    options = ["--device", device, "--repeats", "2", "--out", str(out), *words]
    if device == "cuda":
        options += ["--precision", "tf32"]
    bench.main([*(["sine"] if quick else problems.NETWORKS), *options, *["--quick"] * quick])
    return json.loads(out.read_text("utf-8"))


def whole_stream(device: str, quick: bool) -> dict[str, float]:
    """Return the seconds of the paper's SINE up to the end of each method."""
    settings = {"training.updates": 4, "methods.dpmcl.kappa": 2} if quick else {}
    for name, count in product(("oml", "cml", "anml"), ("n_meta", "n_grad")):
        settings |= {f"methods.{name}.{count}": 2} if quick else {}
    begin, ends = time.perf_counter(), {}

    def progress(method: str, done: int, total: int) -> None:
        if done == total:
            ends[method] = time.perf_counter() - begin

    replicas, tasks = (2, 2) if quick else (None, None)
    dpmcl.run(
        "paper-sine",
        replicas=replicas,
        tasks=tasks,
        device=device,
        settings=settings,
        progress=progress,
    )
    return {**ends, "all": time.perf_counter() - begin}


def memory(device: str, quick: bool) -> dict[str, list[float]]:
    """Return the peak memory in MiB by method, for each number of replicas in its own process."""
    return {
        name: [
            growth.call_in_process(growth.peak_memory, growth.Case(name, 3, 1000, count, device))
            for count in ((1, 2) if quick else growth.REPLICAS)
        ]
        for name in (("er",) if quick else growth.METHODS)
    }


PARTS: tuple[Callable[[str, bool], Any], ...] = (
    agreement,
    capture,
    against_plain,
    forms,
    estimate,
    whole_stream,
    memory,
)


def main() -> None:
    """Run one part after another, and write the report after each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--seconds", type=float, default=480.0, help="begin no part after these")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "gpu.json")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    results: dict[str, Any] = {"machine": report.machine(torch.device(options.device))}
    begin = time.perf_counter()
    for part in PARTS:
        start = time.perf_counter()
        if start - begin > options.seconds:
            results[part.__name__] = "left out: the time was over"
            continue
        try:
            result = part(options.device, options.quick)
        except Exception:  # the other parts can still be measured
            result = {"failed": traceback.format_exc()}
            print(result["failed"], flush=True)
        seconds = time.perf_counter() - start
        results[part.__name__] = {"seconds": seconds, "result": result}
        print(f"{part.__name__}: {seconds:.0f} s", flush=True)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    print(f"{options.out}: {time.perf_counter() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
