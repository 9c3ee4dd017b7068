"""Compare methods at equal FLOPs, each at the best of the same four learning rates.

    python -m benchmarks.comparison digits mnist [--replicas 3] [--memory 200] [--out DIR]
    python -m benchmarks.comparison digits --paper --every-rate --replicas 20
    python -m benchmarks.comparison sine --paper --replicas 10
    python -m benchmarks.comparison omniglot --paper --tasks 20 --updates 100 --replicas 8
    python -m benchmarks.comparison digits --bytes 340k --replicas 20
    python -m benchmarks.comparison mnist --tasks 10 --classes 1 --updates 100 --replicas 8

Runs all methods on five tasks of two classes, or on those of --tasks and --classes. With --paper it
runs the methods that show whether DPMCL's third term is worth its cost, on the stream and with the
memory of the preset.

Every method may use as many FLOPs a task as DPMCL does with the updates of the spec. All methods
keep as many rows or, with --bytes, as many bytes of rows, notes and copied weights together. Rates
are chosen on rows held out of the training rows of the first two tasks, with two seeds that the
runs do not use. With --paper differences are smaller, so rates are chosen on six tasks and five
seeds; on Omniglot, where a rate chosen on few tasks is too high for many, on twenty tasks and two
seeds. With --every-rate all four are run, to show the effect of the choice. A run that was stopped
is resumed; stored results are not computed again.
"""

import argparse
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpmcl import presets
from dpmcl.study.budget import Budget, limit
from dpmcl.study.plan import variants
from dpmcl.study.runs import Planned, run_all
from dpmcl.study.studies import planned_runs
from dpmcl.study.tune import Search, tune
from dpmcl.training import spec
from dpmcl.training.spec import Spec

METHODS: Mapping[str, Mapping[str, Any]] = {
    "naive": {},
    "er": {},
    "replay": {},
    "dpmcl": {"guard": "clip"},
    "dpmcl_off": {"method": "dpmcl", "third_term": "off"},
    **{name: {} for name in ("oml", "er_ace", "agem", "der", "derpp", "mir", "lor", "gdumb")},
    "cls_er": {"plastic_decay": 0.9, "stable_decay": 0.99},
    "la_maml": {},
    **{name: {} for name in ("ewc", "si", "lwf")},
}
"""Settings of the methods with a memory and of three without, by name.

Runs have about 1,000 updates, so CLS-ER's averages are ten times as fast as by default; the
defaults would still contain the first task at the end.
"""

OF_THE_PAPER = ("er", "oml", "dpmcl", "dpmcl_off", "replay", "derpp")
"""DPMCL with and without its third term, and the methods that a reader would use instead."""

RATES = {"sine": [0.0003, 0.001, 0.003, 0.01], "omniglot": [0.0001, 0.0003, 0.001, 0.003]}
"""Learning rates of streams whose preset has Adam; other streams have `USUAL_RATES`."""

USUAL_RATES = [0.003, 0.01, 0.03, 0.1]

EXTENT = {"omniglot": (20, 2)}
"""Tasks and seeds on which rates are chosen with --paper; on other streams six and five."""


def table_of(stream: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the spec of a comparison as a table, before rates are chosen."""
    table = spec.normalised(spec.parse_toml(presets.text(stream), stream))
    names = OF_THE_PAPER if options.paper else tuple(METHODS)
    table["methods"] = {name: dict(METHODS[name]) for name in names}
    table["replicas"] = options.replicas
    training: dict[str, Any] = {} if options.paper else {"memory": options.memory}
    if options.updates is not None:
        training["updates"] = options.updates
    stream_table: dict[str, Any] = {}
    if not options.paper:
        stream_table = {"classes_per_task": options.classes, "tasks": 5}
    if options.tasks is not None:
        stream_table["tasks"] = options.tasks
    return spec.with_changes(table, {"training": training, "stream": stream_table})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("streams", nargs="+")
    parser.add_argument("--memory", type=int, default=200, help="rows")
    parser.add_argument("--bytes", help="bytes of rows, notes and copies; overrides --memory")
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--updates", type=int, help="DPMCL's kappa; the preset's by default")
    parser.add_argument("--tasks", type=int, help="tasks of the stream")
    parser.add_argument("--classes", type=int, default=2, help="classes a task, without --paper")
    parser.add_argument("--paper", action="store_true", help="is the third term worth its cost?")
    parser.add_argument("--every-rate", action="store_true", help="run all four rates too")
    parser.add_argument("--out", type=Path, default=Path("results/comparison"))
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for stream in options.streams:
        name = stream if options.paper else f"{stream}-{options.bytes or options.memory}"
        if options.tasks is not None and not options.paper:
            name += f"-{options.tasks}-tasks"
        table = table_of(stream, options)
        limited, budget = limit(Spec.parse(table), Budget.parse("flops"))
        if options.bytes is not None:
            limited, _ = limit(limited, Budget.parse(f"bytes={options.bytes}"))
        rates = RATES.get(stream, USUAL_RATES)
        tasks, seeds = EXTENT.get(stream, (6, 5)) if options.paper else (2, 2)
        search = Search(space={"training.lr": rates}, tasks=tasks, replicas=seeds)
        tuned, lines = tune(limited.to_table(), search, options.out / f"{name}-rates")
        print(*lines, sep="\n")
        runs = [Planned(Spec.parse(tuned), options.out / name, budget=budget)]
        if options.every_rate:
            at_each_rate = variants(limited.to_table(), {"training.lr": rates})
            runs += planned_runs(at_each_rate, options.out / f"{name}-every-rate")
        print(run_all(runs)[0].table())


if __name__ == "__main__":
    main()
