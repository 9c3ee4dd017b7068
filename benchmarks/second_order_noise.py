"""Measure the error of gradients through inner updates in float32.

    python benchmarks/second_order_noise.py

Compares the gradient by theta of one update on scikit-learn's digits in float32 with that in
float64, for the same rows and the initial weights, which float32 represents exactly. Prints the
norm of the difference divided by the norm: the median and the largest of twenty seeds. Takes less
than a minute.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from dpmcl.core.model import Model, initial_weights
from dpmcl.core.tree import at, norm, tree_map
from dpmcl.data.scaling import fit_scale
from dpmcl.data.splits import split
from dpmcl.data.task_info import task_infos
from dpmcl.methods._method import Method
from dpmcl.methods.dpmcl import DPMCL
from dpmcl.methods.oml import OML
from dpmcl.study.api import Request

SEEDS = range(20)
SGD = {"optimiser": "sgd", "lr": 0.01}
CASES: list[tuple[str, type[Method], dict[str, Any]]] = [
    *((f"dpmcl, third_term exact, zeta {z}", DPMCL, {"zeta": z}) for z in (1, 2, 5)),
    *((f"oml, nested, order 2, inner {k}", OML, {"inner": k}) for k in (1, 5)),
]
FIXED = {DPMCL: {"third_term": "exact", "step": "joint"}, OML: {"reading": "nested", "order": 2}}


def gradients(cls: type[Method], settings: dict[str, Any], dtype: torch.dtype) -> Iterator[Any]:
    """Yield the gradient of the first update of the second task, for each seed."""

    @dataclass(frozen=True, kw_only=True)
    class Recording(cls):  # type: ignore[misc, valid-type]
        taken: list[Any] = field(default_factory=list)

        def descend(self, state: Any, grads: Any, cost: Any = None) -> Any:
            self.taken.append(grads)
            return super().descend(state, grads, cost)

    spec = Request("digits").spec()
    stream = spec.stream.build(SEEDS)
    splits = split(stream, SEEDS, spec.stream.split)
    stream = fit_scale(stream, splits)
    shape, outputs = stream.x.shape[1:], stream.outputs
    single, double = (
        Model.build(
            lambda: spec.network.build(shape, outputs),
            stream.kind,
            stream.example(t),
            outputs,
            dtype=t,
        )
        for t in (torch.float32, torch.float64)
    )
    model = single if dtype == torch.float32 else double
    method = Recording(**settings)
    infos = task_infos(stream, splits)
    (phase,) = method.phases(model, infos[1])
    for seed in SEEDS:
        theta = tree_map(lambda leaf: leaf.to(dtype), at(initial_weights(single, [seed]), 0))
        batches = {}
        for name, draw in phase.draws.items():
            pool = splits.named(draw.split)
            rows = pool.row[seed, : int(pool.offset[seed, 2])]  # of the first two tasks
            size = (draw.batch,) if draw.block is None else (draw.block, draw.batch)
            generator = torch.Generator().manual_seed(seed)
            drawn = rows[torch.randint(len(rows), size, generator=generator)]
            present = torch.ones(size, dtype=torch.bool)
            batches[name] = stream.batch(
                drawn, present, torch.zeros_like(drawn), dtype, replica=seed
            )
        method.taken.clear()
        state, key = method.start(theta, infos[0]), torch.zeros(phase.keys, 2, dtype=torch.int64)
        phase.update(state, batches, key)
        yield tree_map(lambda leaf: leaf.double(), method.taken[0])


def main() -> None:
    torch.set_num_threads(1)
    print("| gradient | inner rule | median | largest |")
    print("|---|---|--:|--:|")
    for name, cls, changes in CASES:
        for rule in ({}, SGD):
            settings = {**FIXED[cls], **changes, **rule}
            rounded, exact = (
                list(gradients(cls, settings, t)) for t in (torch.float32, torch.float64)
            )
            errors = torch.tensor(
                [
                    float(norm(tree_map(lambda x, y: x - y, a, b)) / norm(b))
                    for a, b in zip(rounded, exact, strict=True)
                ]
            )
            inner = rule.get("optimiser", "adagrad")
            print(f"| {name} | {inner} | {errors.median():.1e} | {errors.max():.1e} |", flush=True)


if __name__ == "__main__":
    main()
