"""Compare guards of DPMCL's third term on digits, MNIST and Omniglot.

    python -m benchmarks.guard digits|mnist|omniglot|omniglot-adam [--replicas 3] [--tasks 15]
        [--case NAME ...] [--out benchmarks/guard.json]

The printed term, J_PN - J_PN(theta_B), is unbounded below; each case bounds it, or the step, in
another way. Reports the errors and the largest J = J_N + J_P, read every fifty updates. Images are
read from $DPMCL_DATA. A case that is already in the file is not run again.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import dpmcl

CASES: dict[str, dict[str, Any]] = {
    "none": {},
    "clip": {"guard": "clip"},
    "square": {"guard": "square"},
    "square, a tenth": {"guard": "square", "third_weight": 0.1},
    "off": {"third_term": "off"},
    "first": {"third_term": "first"},
    "exact": {"third_term": "exact"},
    "opposite sign": {"third_weight": -1.0},
    "exact, opposite sign": {"third_term": "exact", "third_weight": -1.0},
    "clip, opposite sign": {"guard": "clip", "third_weight": -1.0},
    "theorem, eq. (4)": {"optimiser": {"name": "theorem", "beta": 10.0}, "lr": 0.1},
    "theorem, V_theta": {
        "optimiser": {"name": "theorem", "beta": 2.0, "form": "V_theta"},
        "lr": 0.1,
    },
    "theorem, eq. (4), clip": {
        "optimiser": {"name": "theorem", "beta": 10.0},
        "lr": 0.1,
        "guard": "clip",
    },
}
"""Settings of DPMCL that differ from the problem's."""

PROBLEMS: dict[str, dict[str, Any]] = {
    "digits": {"methods.dpmcl.lr": 0.02, "training.updates": 100, "methods.dpmcl.zeta": 2},
    "mnist": {"methods.dpmcl.lr": 0.01},
    "omniglot": {"training.optimiser": "adagrad", "methods.dpmcl.lr": 0.01},
    "omniglot-adam": {"methods.dpmcl.lr": 1e-4},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("problem", choices=list(PROBLEMS))
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--tasks", type=int)
    parser.add_argument("--case", action="append", choices=list(CASES))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/guard.json"))
    arguments = parser.parse_args()
    for case in arguments.case or CASES:
        done = json.loads(arguments.out.read_text("utf-8")) if arguments.out.exists() else {}
        key = f"{arguments.problem}, {case}"
        if key not in done:
            done[key] = measure(arguments, case)
            arguments.out.write_text(json.dumps(done, indent=1) + "\n", "utf-8")
        print(key, json.dumps(done[key]), flush=True)


def measure(arguments: argparse.Namespace, case: str) -> dict[str, Any]:
    """Return the errors after the last task, the largest J and the least third term."""
    changes = {
        f"training.{key}" if key == "optimiser" else f"methods.dpmcl.{key}": value
        for key, value in CASES[case].items()
    }
    settings = {**PROBLEMS[arguments.problem], **changes, "monitor.interval": 50, "workers": 1}
    result = dpmcl.run(
        arguments.problem.removesuffix("-adam"),
        methods=["dpmcl"],
        replicas=arguments.replicas,
        tasks=arguments.tasks,
        settings=settings,
        monitor=["terms"],
    )
    row = result.rows()[0]
    readings = result.readings["dpmcl"]
    within = [i for i, position in enumerate(readings.positions) if position[2] > 0]
    settled = readings["J"][:, within]  # at a task's start J_N is of a task not yet learned
    with np.errstate(all="ignore"):
        worst = np.nanmax(settled, 1)
        third = np.nanmin(readings["third_difference"], 1)
    return {
        "replicas": row["replicas"],
        "tasks": len(result.stream.tasks),
        "CME": [row["cme_mean"], row["cme_se"]],
        "NTE path": row["nte_path_mean"],
        "diverged": row["diverged"],
        "largest J within a task, by replica": [float(f"{v:.3g}") for v in worst],
        "least third term, by replica": [float(f"{v:.3g}") for v in third],
    }


if __name__ == "__main__":
    main()
