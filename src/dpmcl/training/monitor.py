"""Monitors a run: costs, the terms of equation (3), and whether Theorem 1's conditions hold.

A reading is taken before an update, on rows drawn for it alone, so that a run ends with the same
bytes with and without the monitor. The change of the parameters in a reading is that of the update.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

import annotated_types as at
import numpy as np
import torch
from torch import Tensor

from dpmcl.core.batch import Batch
from dpmcl.core.memory import Memories
from dpmcl.core.model import Theta
from dpmcl.core.settings import NonNegative, Positive, Rate, Settings
from dpmcl.core.tree import leaves, norm, tree_map
from dpmcl.data.sampling import Draw
from dpmcl.methods._method import Phase, State
from dpmcl.optimisers.theorem import Drift, Theorem
from dpmcl.results.record import Divergence
from dpmcl.theory import discount, terms
from dpmcl.theory.readings import Readings, Watched
from dpmcl.theory.stability import CONDITIONS, Reading, reading
from dpmcl.training.divergence import report_divergence
from dpmcl.training.observer import Observer, Segment
from dpmcl.training.setup import Setup
from dpmcl.training.state import Position, RunState

_READINGS, _POSITIONS = "readings", "readings.positions"
MAX_ROWS = 32
"""Largest default of `rows`."""


@dataclass(frozen=True, kw_only=True)
class MonitorSettings(Settings):
    """Settings of the monitor. It changes no numbers unless `exceeding` ends a replica or the run.

    Attributes:
        watch: "terms" (costs and terms of eq. (3), both estimates), "stability" (norms, dV/dt, and
            the conditions of Theorem 1; a warning is logged when one breaks).
        interval: Updates between readings. Readings are also taken before a task's first update
            and before each phase's last update.
        rows: Rows of the new task, and rows of all earlier tasks together, in a reading; None for
            the method's `batch`, at most 32.
        beta: The bound on J; None for the optimiser's beta, or 1000 if it has none.
        radius: Radius of the compact set of theta; None for ten times the initial norm of theta.
        drift: How dx is found: "inputs", "features" or "exact" (`optimisers.theorem.Drift`).
            "auto" is "exact" if the stream knows its dynamics, and else "inputs".
        zeta: Steps of theta_B in the look-ahead.
        patience: Number of consecutive readings with J above beta after which `exceeding` applies.
        exceeding: "say" does nothing more, "freeze" freezes the replica, "stop" ends the run.
    """

    watch: tuple[Watched, ...] = ()
    interval: Positive = 150
    rows: Positive | None = None
    beta: Rate | None = None
    radius: Rate | None = None
    drift: Literal["auto", "inputs", "features", "exact"] = "auto"
    zeta: Annotated[NonNegative, at.Le(1000)] = 2
    patience: Positive = 3
    exceeding: Literal["say", "freeze", "stop"] = "say"

    @property
    def active(self) -> bool:
        """Return True if readings are needed."""
        return bool(self.watch) or self.exceeding != "say"


def readings_due(number: int, phase: Phase, interval: int) -> list[int]:
    """Return the updates of a task's phase before which a reading is taken.

    The first update of a later phase has none: it follows the last update of the phase before.

    Args:
        number: Number of the phase in its task.
        phase: The phase.
        interval: Updates between readings.
    """
    regular = range(interval if number else 0, phase.updates, interval)
    return sorted({*regular, *range(phase.updates)[-1:]})


class Monitor(Observer):
    """Takes the readings of a run, and warns once for each condition of Theorem 1 that breaks.

    Args:
        settings: Settings of the monitor.
        setup: Setup of the run.
        memories: Memories from which rows of earlier tasks are drawn; None draws from all such
            rows.
    """

    def __init__(
        self, settings: MonitorSettings, setup: Setup, memories: Memories | None = None
    ) -> None:
        self.settings = settings
        self._memories = memories
        self._positions = tuple(
            Position(task, number, update)
            for task, phases in enumerate(setup.phases)
            for number, phase in enumerate(phases)
            for update in readings_due(number, phase, settings.interval)
        )
        self._index = {position: i for i, position in enumerate(self._positions)}
        self._radius = 10 * torch.func.vmap(norm)(setup.start.theta)
        if settings.radius is not None:
            self._radius = torch.full_like(self._radius, settings.radius)
        rule, dynamic = setup.method.rule, setup.stream.following is not None
        auto: Drift = "exact" if dynamic else "inputs"
        self._space: Drift = auto if settings.drift == "auto" else settings.drift
        # The bound on J: the setting, the optimiser's, or the smallest in the paper.
        self._beta = settings.beta or (rule.beta if isinstance(rule, Theorem) else 1000.0)

    def begin(self, setup: Setup, run: RunState) -> RunState:
        if "stability" in self.settings.watch:
            verdict = discount.verdict(setup.method.discounting)
            if verdict.outcome in ("diverges", "unclear"):
                setup.warn(f"discount: {verdict.line}", once="discount")
        report_divergence(setup, run.diverged, "cost", stop=self.settings.exceeding == "stop")
        values, positions = run.values.get(_READINGS), np.array(self._positions)
        if values is None or not np.array_equal(run.values[_POSITIONS], positions):
            values = np.full((len(setup.seeds), len(positions), len(Reading._fields)), np.nan)
        return replace(run, values={**run.values, _READINGS: values, _POSITIONS: positions})

    def stop(self, setup: Setup, position: Position, last: int) -> int:
        # an update with a reading is a segment by itself
        task, phase, first = position
        if position in self._index:
            return first + 1
        due = (u for u in range(first + 1, last) if (task, phase, u) in self._index)
        return next(due, last)

    def after_segment(self, setup: Setup, run: RunState, segment: Segment) -> RunState:
        number = self._index.get(segment.before.position)
        if number is None:
            return run
        values = run.values[_READINGS]
        values[:, number] = self._take_readings(setup, run, segment)
        if "stability" in self.settings.watch:
            self._warn_of_broken(setup, values, number)
        task, phase, update = segment.before.position
        diverged = {
            replica: Divergence(task, phase, update + 1, "cost")
            for replica in self._replicas_above_beta(values, number)
            if replica not in run.diverged
        }
        report_divergence(setup, diverged, "cost", stop=self.settings.exceeding == "stop")
        return replace(run, diverged={**run.diverged, **diverged})

    def readings(self, setup: Setup, run: RunState) -> Readings:
        """Return all readings of a run.

        Args:
            setup: Setup of the run.
            run: State at the end of the run.
        """
        return Readings(setup.seeds, self._positions, run.values[_READINGS])

    def _take_readings(self, setup: Setup, run: RunState, segment: Segment) -> np.ndarray:
        """Return the readings of all replicas, float64 (replicas, quantities)."""
        before, after = segment.before.replicas, run.replicas
        n = self.settings.rows or min(setup.method.batch, MAX_ROWS)
        moved: Literal["exact", "estimated"] = "exact" if self._space == "exact" else "estimated"
        earlier, run_before = Draw("earlier", n), segment.before
        if self._memories is not None:
            earlier, run_before = Draw("memory", n), replace(run_before, memories=self._memories)
        draws = {
            "new": Draw("new", n),
            "past": earlier,
            "next": Draw("new", n, like="new", moved=moved),
        }
        weighing = setup.weighing(segment.before.position.task)
        rows = setup.probe(draws, run_before, weighing)
        with torch.no_grad():
            change = tree_map(lambda a, b: a - b, after.theta, before.theta)
            measure = partial(self._replica_reading, setup=setup)
            readings = setup.engine.map(measure, before, change, rows, self._radius)
        values = torch.stack([leaf.to(torch.float64) for leaf in leaves(tuple(readings))], 1)
        values[~run.alive] = torch.nan
        return values.cpu().numpy()

    def _replica_reading(
        self, state: State, change: Theta, rows: dict[str, Batch], radius: Tensor, *, setup: Setup
    ) -> Reading:
        """Return the reading of one replica; rows["next"] are rows["new"] moved by dx."""
        model, theta = setup.model.holding(state.buffers), state.theta
        b_N, b_P, b_next = rows["new"], rows["past"], rows["next"]
        features = self._space == "features"
        sensitivity = terms.sensitivity(model, theta, b_N, b_P, features=features)
        move = terms.moved(model, theta, b_N, b_next, features=features)
        ahead = J_next = torch.full_like(radius, torch.nan)
        if "terms" in self.settings.watch:
            rule, zeta = setup.method.rule, self.settings.zeta
            ahead = terms.look_ahead(model, theta, b_N, b_P, rule=rule, zeta=zeta)
            J_next = model.cost(theta, b_next)
        beta = torch.full_like(radius, self._beta)
        return reading(
            sensitivity,
            theta,
            change,
            move,
            beta=beta,
            radius=radius,
            ahead=ahead,
            J_N_next=J_next,
        )

    def _replicas_above_beta(self, values: np.ndarray, number: int) -> list[int]:
        """Return the replicas whose J was above beta in each of the last `patience` readings."""
        patience = self.settings.patience
        if self.settings.exceeding == "say" or number + 1 < patience:
            return []
        last = values[:, number + 1 - patience : number + 1]
        J, beta = (last[:, :, Reading._fields.index(name)] for name in ("J", "beta"))
        above = ~(beta >= J) & ~np.isnan(beta)
        return [int(replica) for replica in np.flatnonzero(above.all(1))]

    def _warn_of_broken(self, setup: Setup, values: np.ndarray, number: int) -> None:
        """Warn of the conditions that are broken at a reading."""
        task, _, update = position = self._positions[number]
        readings = Readings(setup.seeds, (position,), values[:, number : number + 1])
        for name, where in readings.broken.items():
            if not where.any():
                continue
            condition = CONDITIONS[name]
            largest = float(np.nanmax(np.where(where, condition.shows(readings), -np.inf)))
            setup.warn(
                f"{name}: {condition.rule} broke at update {update} of task {task} "
                f"('{setup.stream.tasks[task]}') in {int(where.sum())} of {len(where)} replicas "
                f"(largest {largest:.3g}); {condition.advice}.",
                once=name,
            )
