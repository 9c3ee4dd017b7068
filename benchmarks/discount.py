"""Show whether J(t) converges, is bounded or grows under eight discounts, for 500 tasks.

    python -m benchmarks.discount [--tasks 500] [--out FILE.png]

Trains er on SINE: 20 rows of 10 outputs a task, a dense network of 32 hidden units, 20 updates a
task, ten replicas, one process. After every task all tasks seen are evaluated; the result is one
tensor of losses (mean squared errors of test rows), and each J(t) is a sum over it. For comparison
it also computes the J(t) of the lemma, whose losses do not change with t, from the losses of the
last parameters. Prints tables and draws a figure.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch

import dpmcl
from dpmcl import plugins
from dpmcl.discounts._discount import Discount, gamma
from dpmcl.results.figures import save
from dpmcl.theory.discount import verdict

SETTINGS = {
    "stream.rows": 20,
    "stream.outputs": 10,
    "network": {"name": "mlp", "hidden": 32},
    "methods.er.updates": 20,
    "methods.er.lr": 0.01,
    "evaluation.evaluate_every": 1,
    "workers": 1,
    "device": "cpu",
}
CASES = {
    "time": (
        ("constant", {"name": "constant"}),
        ("power, p = 1", {"name": "power", "p": 1.0}),
        ("power, p = 2", {"name": "power", "p": 2.0}),
        ("exponential, rate 0.05", {"name": "exponential", "rate": 0.05}),
    ),
    "age": (
        ("constant", {"name": "constant"}),
        ("power, p = 0.5", {"name": "power", "p": 0.5}),
        ("exponential, rate 0.05", {"name": "exponential", "rate": 0.05}),
        ("window, width 20", {"name": "window", "width": 20}),
    ),
}
STYLES = {
    "constant": ("#000000", "-"),
    "power": ("#D55E00", "--"),
    "power, p = 2": ("#0072B2", "-."),
    "exponential": ("#009E73", "-"),
    "window": ("#CC79A7", "--"),
}
TITLES = {
    "time": "by time, gamma(tau): the oldest tasks count most",
    "age": "by age, gamma(t - tau): the newest tasks count most",
}


def partial_sums(losses: np.ndarray, discount: Discount) -> np.ndarray:
    """Return J(t), equation (1) in steps of one task: sum over tau <= t of gamma times tau's loss.

    Args:
        losses: (replicas, after, task), as `Errors.after`; losses of tasks later than `after` are
            not read. Or (replicas, task), losses that do not change with t.
        discount: gamma.

    Returns:
        Float64, (replicas, tasks).
    """
    if losses.ndim == 2:
        losses = np.repeat(losses[:, None], losses.shape[1], 1)
    sums = np.empty(losses.shape[:2])
    for t in range(losses.shape[1]):
        sums[:, t] = losses[:, t, : t + 1] @ gamma(discount, t, torch.arange(t + 1)).numpy()
    return sums


def losses_of(tasks: int) -> np.ndarray:
    """Return the losses of a run, (replicas, after, task)."""
    start = time.perf_counter()
    result = dpmcl.run("sine", methods=["er"], replicas=10, tasks=tasks, settings=SETTINGS)
    print(f"{tasks} tasks: {time.perf_counter() - start:.0f} s\n", flush=True)
    return result.errors["er"].after


def sums(losses: np.ndarray, rule: Discount) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean J(t) over replicas: of the run, and with the last parameters throughout."""
    run = partial_sums(losses, rule)
    fixed = partial_sums(losses[:, -1], rule)
    return run.mean(0), fixed.mean(0)


def table(by: str, rules: dict[str, Discount], losses: np.ndarray) -> None:
    tasks = losses.shape[1]
    marks = [tasks // 10, tasks // 4, tasks // 2, tasks]
    largest = np.nanmax(losses)
    print(f"J(t) by {by}, mean over replicas; in brackets with the last parameters throughout\n")
    print(f"| gamma | {' | '.join(f't = {m}' for m in marks)} | L sum gamma | highest | verdict |")
    print(f"|---|{'--:|' * (len(marks) + 2)}---|")
    for name, rule in rules.items():
        run, fixed = sums(losses, rule)
        convergence, bound = verdict(rule), rule.total * largest
        cells = " | ".join(f"{run[m - 1]:.3g} ({fixed[m - 1]:.3g})" for m in marks)
        highest = partial_sums(losses, rule).max()
        if not highest <= bound:
            raise AssertionError(f"{name}: {highest} is above the bound {bound}")
        words = f"{convergence.outcome}, {convergence.statement}"
        print(f"| {name} | {cells} | {bound:.3g} | {highest:.3g} | {words} |")
    print()


def draw(rules: dict[str, dict[str, Discount]], losses: np.ndarray, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 4.8), layout="constrained")
    t = np.arange(1, losses.shape[1] + 1)
    panels = figure.subplots(1, 2, sharey=True)
    for ax, (by, discounts) in zip(panels, rules.items(), strict=True):
        for name, rule in discounts.items():
            colour, dashes = STYLES.get(name, STYLES[name.split(",")[0]])
            run, fixed = sums(losses, rule)
            label = f"{name}: {verdict(rule).outcome}"
            ax.plot(t, run, color=colour, linewidth=0.7, alpha=0.45)
            ax.plot(t, fixed, dashes, color=colour, linewidth=2, label=label)
        ax.set_title(TITLES[by], fontsize=10)
        ax.set_xlabel("tasks seen, t")
        ax.set_yscale("log")
        ax.set_xlim(0, len(t))
        ax.grid(alpha=0.25, linewidth=0.5)
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(
            frameon=False, fontsize=9, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.16)
        )
    panels[0].set_ylabel("J(t), mean of ten replicas")
    figure.suptitle(
        "J(t) under different discounts. Thin: of a run. Thick: of its last parameters, all along",
        fontsize=11,
    )
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", type=int, default=500, help="20 or more")
    default = Path(__file__).parent.parent / "docs" / "figures" / "discount.png"
    parser.add_argument("--out", type=Path, default=default)
    options = parser.parse_args()
    if options.tasks < 20:
        parser.error("takes 20 tasks at least")
    losses = losses_of(options.tasks)
    rules = {
        by: {name: plugins.from_setting("discount", {**case, "by": by}) for name, case in cases}
        for by, cases in CASES.items()
    }
    for by, discounts in rules.items():
        table(by, discounts, losses)
    draw(rules, losses, options.out)


if __name__ == "__main__":
    main()
