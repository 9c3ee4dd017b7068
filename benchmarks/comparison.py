"""Compares all methods at equal FLOPs, each at the best of the same four rates.

    python -m benchmarks.comparison digits mnist [--replicas 3] [--memory 200] [--out DIR]

Five tasks of two classes. Every method may take a task what DPMCL takes at the updates of the spec,
and keeps as many rows; bytes of notes and of copied weights are shown beside. Rates are chosen on
rows held out of the training rows of the first two tasks, on two seeds that the runs do not use. A
run that was stopped goes on; what is stored is not run again. `dpmcl report` makes the page.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpmcl import presets
from dpmcl.study import study
from dpmcl.study.budget import Budget, within
from dpmcl.study.tune import Search, tune
from dpmcl.training import spec
from dpmcl.training.spec import Spec

METHODS: Mapping[str, Mapping[str, Any]] = {
    "naive": {},
    "er": {},
    "replay": {},
    "dpmcl": {"guard": "clip"},
    "dpmcl_off": {"method": "dpmcl", "third_term": "off"},
    **{name: {} for name in ("oml", "er_ace", "agem", "der", "derpp", "mir", "cls_er", "la_maml")},
    **{name: {} for name in ("lor", "gdumb", "ewc", "si", "lwf")},
}
"""Those with a memory, and three without."""

RATES = [0.003, 0.01, 0.03, 0.1]


def table_of(stream: str, memory: int, replicas: int, updates: int | None) -> dict[str, Any]:
    """Return the spec of a comparison, before rates are chosen."""
    table = spec.normalised(spec.read(presets.text(stream), stream))
    table["methods"] = {name: dict(settings) for name, settings in METHODS.items()}
    table["replicas"] = replicas
    training: dict[str, Any] = {"memory": memory}
    if updates is not None:
        training["updates"] = updates
    return spec.changed(
        table, {"training": training, "stream": {"classes_per_task": 2, "tasks": 5}}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("streams", nargs="+")
    parser.add_argument("--memory", type=int, default=200, help="rows")
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--updates", type=int, help="DPMCL's kappa; the preset's by default")
    parser.add_argument("--out", type=Path, default=Path("results/comparison"))
    asked = parser.parse_args()
    for stream in asked.streams:
        name = f"{stream}-{asked.memory}"
        table = table_of(stream, asked.memory, asked.replicas, asked.updates)
        equal, budget, lines = within(Spec.parse(table), Budget.parse("flops"))
        print(*lines, sep="\n")
        search = Search(space={"training.lr": RATES}, tasks=2, replicas=2)
        tuned, lines = tune(equal.to_table(), search, asked.out / f"{name}-rates")
        print(*lines, sep="\n")
        run = study.Planned(Spec.parse(tuned), asked.out / name, budget=budget)
        (result,) = study.run_all([run])
        print(result.table())


if __name__ == "__main__":
    main()
