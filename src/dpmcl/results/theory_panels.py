"""What a figure of the theory shows: the lines, marks and levels of each panel."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from dpmcl.results.figures import mean_and_error
from dpmcl.theory.readings import Readings

_FEW = 100.0  # times J's largest: how far above it beta may lie and still be drawn


class Panel(NamedTuple):
    """One quantity against tasks.

    Attributes:
        name: Name of the axis.
        look: What to look for.
        lines: Values of each line, (replicas, readings), by its label.
        level: Height that the lines are compared with.
        decades: Decades of a scale that is linear nearer 0; None for a log scale.
        marks: Masks (replicas, readings) by label, marked where any replica is True.
        scale: Name of the scale; panels with the same one share it.
    """

    name: str
    look: str
    lines: Mapping[str, Callable[[Readings], np.ndarray]]
    level: float | None = 0.0
    decades: int | None = 4
    marks: Mapping[str, Callable[[Readings], np.ndarray]] = {}
    scale: str = ""


def _of(name: str, sign: int = 0) -> Callable[[Readings], np.ndarray]:
    """Return the reader of a quantity; with sign = 1, of its positive values alone."""
    return lambda r: np.where(r[name] > 0, r[name], np.nan) if sign else r[name]


def terms(unit: str) -> list[Panel]:
    """Return the panels of the four terms of equation (3).

    Args:
        unit: Unit of a cost, in words.
    """
    return [
        Panel(
            "costs",
            f"First and second term: the costs\n({unit})",
            {"$J_N$, on the new task": _of("J_N"), "$J_P$, on all earlier tasks": _of("J_P")},
            level=None,
        ),
        Panel(
            r"$V_\theta^\top \Delta\theta$",
            "Third term: the update;\nabove 0, it lowers the cost",
            {
                r"proof: $-J\ J_\theta^\top \Delta\theta$ (cost squared)": _of("third_proof"),
                r"difference: $J_{PN} - J_{PN}(\theta_B)$ (cost)": _of("third_difference"),
            },
            scale="terms",
        ),
        Panel(
            r"$V_x^\top \Delta x$",
            "Fourth term: the change of the inputs;\nabove 0, it lowers the cost",
            {
                r"proof: $-J\ J_x^\top \Delta x$ (cost squared)": _of("fourth_proof"),
                r"difference: $J_N(x) - J_N(x + \Delta x)$ (cost)": _of("fourth_difference"),
            },
            scale="terms",
        ),
    ]


def stability(readings: Mapping[str, Readings], targets: bool) -> list[Panel]:
    """Return the panels of the quantities that Theorem 1 bounds.

    Args:
        readings: Readings by method.
        targets: Whether targets move as well as inputs.
    """
    bounds = np.concatenate([one["beta"].ravel() for one in readings.values()])
    bounds = np.unique(bounds[np.isfinite(bounds)])
    most = max(_most(mean_and_error(one["J"])[0]) for one in readings.values())
    near = _FEW * most
    said = " or ".join(f"{beta:g}{' (far above)' if beta > near else ''}" for beta in bounds)
    reach = r"$\|J_x\|\ \|\Delta x\|" + (r" + \|J_y\|\ \|\Delta y\|$" if targets else "$")
    return [
        Panel(
            "$J$",
            rf"cost: at most $\beta$ = {said}",
            {
                "$J = J_N + J_P$": _of("J"),
                r"$\beta$": lambda r: np.where(r["beta"] <= near, r["beta"], np.nan),
            },
            level=None,
        ),
        Panel(
            "reach",
            "inputs: below 1",
            {reach: _of("reach")},
            level=1.0,
        ),
        Panel(
            r"step $\alpha$",
            "The step taken, and the theorem's;\nmarks: in some replica",
            {
                r"taken: $-J_\theta^\top \Delta\theta\ /\ \|J_\theta\|^2$": _of("alpha", 1),
                "the theorem's numerator, equation (4)'s denominator": _of("alpha_theorem", 1),
            },
            level=None,
            decades=None,
            marks={
                "theorem's not positive: does not apply": lambda r: r["alpha_theorem"] <= 0,
                "taken negative: $J$ rises": lambda r: r["alpha"] < 0,
            },
        ),
        Panel(
            "$dV/dt$",
            "rate: at most 0",
            {
                "as printed, (A.2.7)": _of("dV_dt"),
                r"with $\Delta\theta = \alpha V_\theta$ put in": _of("dV_dt_substituted"),
            },
        ),
    ]


def _most(values: np.ndarray) -> float:
    """Return the largest absolute value that is finite; 0 if none is."""
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))


def tasks_done(readings: Readings, tasks: int) -> np.ndarray:
    """Return when each reading was taken, in tasks: task + updates done in it / updates of it.

    A phase's last reading comes before its last update. A task that a method did not get through is
    taken to be as long as the one before.

    Args:
        readings: Readings of one method.
        tasks: Tasks of the stream.
    """
    updates: dict[tuple[int, int], int] = {}
    for task, phase, update in readings.positions:
        updates[task, phase] = max(update + 1, updates.get((task, phase), 0))
    last = max(task for task, _ in updates)
    if last < tasks - 1:
        for (task, phase), n in list(updates.items()):
            if task == last - 1:
                updates[last, phase] = max(n, updates.get((last, phase), 0))
    done: dict[tuple[int, int], int] = {}
    total: dict[int, int] = {}
    for task, phase in sorted(updates):
        done[task, phase] = total.get(task, 0)
        total[task] = done[task, phase] + updates[task, phase]
    return np.array([t + (done[t, p] + u) / total[t] for t, p, u in readings.positions])
