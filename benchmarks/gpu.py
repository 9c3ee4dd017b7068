"""All that is to be measured on a GPU, within eight minutes.

    python benchmarks/gpu.py [--device cuda] [--seconds 480] [--out benchmarks/gpu.json] [--quick]

In this order, each part left out (and named in the report) once the time is over:

1. do captured updates do what a CPU's looped ones do (`gpu_check.py`, float64)?
2. an update of each network, against a plain loop on the same GPU, 1 and 50 replicas;
3. the forms of a convolution's weight gradient and of its arithmetic, CIFAR10 and Omniglot;
4. the estimate of the paper's Table 1;
5. the SINE part of it, run whole (50 tasks, six methods, 50 replicas), beside its estimate;
6. the memory of 1 to 200 replicas (`growth.py`).

Not yet run on a GPU. --quick does each part in seconds, to see that the script works.
"""

import argparse
import json
import time
import traceback
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import torch

import gpu_check
import growth
from dpmcl import bench
from dpmcl.bench import engines, measure, plain, problems, report
from dpmcl.study import study
from dpmcl.study.api import Request

FORMS = tuple(product(("native", "patches"), (None, "tf32", "bf16")))


def agreement(device: str, quick: bool) -> dict[str, Any]:
    """The largest difference of a parameter, captured there and looped on the CPU, by method."""
    wanted = gpu_check.methods(8, 4 if quick else 20)
    if quick:
        wanted = {"er": wanted["er"], "dpmcl": wanted["dpmcl"]}
    stream, place = gpu_check.digits(), torch.device(device)
    return {
        name: gpu_check.difference(method, stream, "mlp", place) for name, method in wanted.items()
    }


def against_plain(device: str, quick: bool) -> dict[str, Any]:
    """`dpmcl bench` with TF32, which PyTorch's own convolutions use as well."""
    found = bench.bench(
        "sine" if quick else "all",
        replicas=(1, 2) if quick else (1, 50),
        repeats=1 if quick else 3,
        seconds=0.01 if quick else 0.3,
        warm_up=0.0,
        device=device,
        precision="tf32",
        methods=("er",) if quick else ("er", "dpmcl"),
    )
    print(bench.text(found), flush=True)
    return found


def forms(device: str, quick: bool) -> list[dict[str, Any]]:
    """Milliseconds an update and replica of ER, for each form of a convolution."""
    found, place, replicas = [], torch.device(device), 2 if quick else 50
    for name in ("omniglot",) if quick else ("cifar10", "omniglot", "mnist"):
        for convolutions, precision in FORMS:
            one = problems.problem(name, place, precision, convolutions)
            engine = engines.choose_for(one, "batched", replicas)
            run = engines.Updates(one, one.method("er"), 0, engine, replicas)
            label = f"{convolutions}, {precision or 'float32'}"
            found.append(timed(name, measure.Contestant(label, run, replicas), quick))
            del engine, run  # and what was captured, before the next one comes
            if device == "cuda":
                torch.cuda.empty_cache()
        found.append(timed(name, plain.contestants(one, torch.get_num_threads())[0], quick))
    return found


def timed(network: str, contestant: measure.Contestant, quick: bool) -> dict[str, Any]:
    (timing,) = measure.measure([contestant], 1 if quick else 3, 0.01 if quick else 0.3)
    row = {"network": network, "form": contestant.name, "ms": timing.ms}
    print(row, flush=True)
    return row


def estimate(device: str, quick: bool) -> dict[str, Any]:
    """What Table 1 takes, by cell and in all."""
    found = bench.bench(
        "sine" if quick else "all",
        replicas=(2,) if quick else (50,),
        repeats=1 if quick else 2,
        seconds=0.01 if quick else 0.2,
        warm_up=0.0,
        device=device,
        precision="tf32",
        study="table1",
    )
    print(bench.text(found), flush=True)
    return found


def whole_stream(device: str, quick: bool) -> dict[str, float]:
    """Seconds of SINE as the paper has it, all methods and replicas, reading and storing apart."""
    request = Request("paper-sine").update(device=device, precision="tf32")
    if quick:
        request.tasks(2).update(replicas=2).set(["training.updates=4", "methods.dpmcl.kappa=2"])
        request.set([f"methods.{m}.n_{k}=2" for m in ("oml", "cml", "anml") for k in KINDS])
    begin, ends = time.perf_counter(), {}

    def watch(method: str, done: int, total: int) -> None:
        if done == total:
            ends[method] = time.perf_counter() - begin

    study.run(request.spec(), watch=watch)
    return {**ends, "all": time.perf_counter() - begin}


KINDS = ("meta", "grad")


def memory(device: str, quick: bool) -> dict[str, list[float]]:
    """MiB at the peak for each number of replicas, each in a process of its own."""
    many = (1, 2) if quick else growth.REPLICAS
    return {
        name: [
            growth.alone(growth.by_replicas, growth.Case(name, 3, 1000, count, device))
            for count in many
        ]
        for name in (("er",) if quick else growth.METHODS)
    }


PARTS: dict[str, Callable[[str, bool], Any]] = {
    "agreement": agreement,
    "against_plain": against_plain,
    "forms": forms,
    "estimate": estimate,
    "whole_stream": whole_stream,
    "memory": memory,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "gpu.json")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    found: dict[str, Any] = {"machine": report.machine(torch.device(options.device))}
    begin = time.perf_counter()
    for name, part in PARTS.items():
        start = time.perf_counter()
        if start - begin > options.seconds:
            found[name] = "left out: the time was over"
            continue
        try:
            result = part(options.device, options.quick)
        except Exception:  # the other parts are worth having all the same
            result = {"failed": traceback.format_exc()}
            print(result["failed"], flush=True)
        took = time.perf_counter() - start
        found[name] = {"seconds": took, "result": result}
        print(f"{name}: {took:.0f} s", flush=True)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print(f"{options.out}: {time.perf_counter() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
