"""Compare DPMCL with an exact, an estimated and no fourth term, on streams with known dynamics.

    python -m benchmarks.fourth_term [--replicas 10] [--updates 100] [--out FILE]

Tasks are windows of an oscillator with drifting stiffness (seen and unseen by the model), of
Lorenz' and of Burgers' equation. The fourth term is the cost on the new task's rows moved by dx;
`exact` moves them by the equation, `estimated` by the difference of the task means. For each case:
CME and NTE after the last task, NTE over all tasks, and the error on the next task before it is
learned. A case that is already in the file (benchmarks/fourth_term.json) is not run again.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import dpmcl

STREAMS: dict[str, dict[str, Any]] = {
    "oscillator": {},
    "oscillator, stiffness unseen": {"stream.observed": False},
    "lorenz": {},
    "burgers": {},
}
CASES: dict[str, dict[str, Any]] = {
    "off": {},
    "estimated": {"fourth_term": "estimated"},
    "exact": {"fourth_term": "exact"},
    "exact, A.3's sign": {"fourth_term": "exact", "fourth_weight": -1.0},
    "off, half as many updates more": {"more": 1.5},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--replicas", type=int, default=10)
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/fourth_term.json"))
    arguments = parser.parse_args()
    print("| stream | fourth term | CME | NTE | NTE path | next task, unseen |", flush=True)
    print("|---|---|--:|--:|--:|--:|", flush=True)
    for stream in STREAMS:
        for case in CASES:
            done = json.loads(arguments.out.read_text("utf-8")) if arguments.out.exists() else {}
            size = f"{arguments.replicas} replicas, {arguments.updates} updates"
            key = f"{stream}: {case}; {size}"
            if key not in done:
                done[key] = measure(stream, case, arguments.replicas, arguments.updates)
                arguments.out.write_text(json.dumps(done, indent=1) + "\n", "utf-8")
            cells = " | ".join("{:.4f} ({:.4f})".format(*done[key][c]) for c in COLUMNS)
            print(f"| {stream} | {case} | {cells} |", flush=True)


COLUMNS = ("CME", "NTE", "NTE path", "next task")


def measure(stream: str, case: str, replicas: int, updates: int) -> dict[str, list[float]]:
    """Return mean and standard error over seeds, by column."""
    changes = dict(CASES[case])
    updates = round(updates * changes.pop("more", 1))
    settings = {
        "training.lr": 0.01,
        "training.updates": updates,
        "methods.dpmcl.zeta": 2,
        "methods.dpmcl.guard": "clip",
        "evaluation.future": True,
        "workers": 1,
        **STREAMS[stream],
        **{f"methods.dpmcl.{key}": value for key, value in changes.items()},
    }
    name = stream.split(",")[0]
    result = dpmcl.run(name, methods=["dpmcl"], replicas=replicas, settings=settings)
    after = result.errors["dpmcl"].after
    tasks = after.shape[1]
    values = {
        "CME": after[:, -1].mean(1),
        "NTE": after[:, -1, -1],
        "NTE path": np.stack([after[:, k, k] for k in range(tasks)], 1).mean(1),
        "next task": np.stack([after[:, k, k + 1] for k in range(tasks - 1)], 1).mean(1),
    }
    return {
        column: [float(v.mean()), float(v.std(ddof=1) / len(v) ** 0.5)]
        for column, v in values.items()
    }


if __name__ == "__main__":
    main()
