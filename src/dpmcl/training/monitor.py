"""Watches a run: costs, the terms of equation (3), and whether Theorem 1's conditions hold.

A reading is taken before an update, on rows drawn for it alone, so that what is watched and what is
not end with the same bytes. The change of the parameters is the very next update's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import annotated_types as at
import numpy as np
import torch
from torch import Tensor

from dpmcl.core.batch import Batch
from dpmcl.core.memory import Memories
from dpmcl.core.model import Model, Theta, has_convolution
from dpmcl.core.settings import NonNegative, Positive, Rate, Settings
from dpmcl.core.tree import leaves, tree_map
from dpmcl.data.motion import Motion
from dpmcl.data.sampling import Draw, Supply, Weighing, probe
from dpmcl.data.splits import Splits
from dpmcl.data.stream import Stream
from dpmcl.data.task_info import task_infos
from dpmcl.engine import Engine
from dpmcl.methods._method import Method, Phase, State
from dpmcl.optimisers._optimiser import Optimiser
from dpmcl.optimisers.theorem import Drift, Theorem
from dpmcl.theory import discount, terms
from dpmcl.theory.readings import Place, Readings, Watched
from dpmcl.theory.stability import CONDITIONS, Reading, broken, named, reading

_AT_ONCE = 64  # replicas
MOST_ROWS = 32
"""Of the new task, and of earlier ones, unless `rows` says more."""


@dataclass(frozen=True, kw_only=True)
class MonitorSettings(Settings):
    """What is watched while a run goes on; it moves no number, unless it ends a replica.

    watch: "terms" (costs and terms of eq. (3), both estimates), "stability" (norms, dV/dt, and the
    conditions of Theorem 1, said when they break). interval: updates between readings; one comes
    before a task's first update and one before each phase's last. rows: of the new task, and of all
    earlier ones together, on which a reading is taken; None for a method's batch, 32 at most.
    beta: the bound on J; None for the optimiser's own, or else 1000. radius: of the compact set of
    theta; None for ten times the norm that theta starts with. drift: how dx is known, "inputs",
    "features" or "exact" (`optim.Drift`); "auto" is exact where the stream knows its dynamics, else
    by inputs. zeta: steps of theta_B in the look-ahead. exceeding: what happens once J has been
    above beta in `patience` readings in a row: "say", "freeze" the replica, or "stop" the run.
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
        """Whether there is anything to read."""
        return bool(self.watch) or self.exceeding != "say"


def readings_due(number: int, phase: Phase, interval: int) -> list[int]:
    """The updates of a task's phase before which a reading is taken; number: of the phase.

    Not the first of a later phase: the last of the phase before is next to it.
    """
    return sorted({*range(interval if number else 0, phase.updates, interval), phase.updates - 1})


class Monitor:
    """Takes one method's readings.

    note: told, once for each condition, where it first broke in this call.
    """

    def __init__(
        self,
        settings: MonitorSettings,
        method: Method,
        model: Model,
        stream: Stream,
        splits: Splits,
        seeds: Sequence[int],
        engine: Engine,
        note: Callable[[str], None] | None = None,
    ) -> None:
        self.settings, self.method, self.model = settings, method, model
        self._stream, self._splits, self._engine, self._note = stream, splits, engine, note
        self._seeds = tuple(seeds)
        self._seed = torch.tensor(self._seeds, dtype=torch.int64, device=model.device)
        self.places: tuple[Place, ...] = tuple(
            (task, number, update)
            for task, info in enumerate(task_infos(stream, splits))
            for number, phase in enumerate(method.phases(model, info))
            for update in readings_due(number, phase, settings.interval)
        )
        self._index = {place: i for i, place in enumerate(self.places)}
        shape = (len(self._seeds), len(self.places), len(Reading._fields))
        self.values = np.full(shape, np.nan)
        self._said: set[str] = set()
        self._radius: Tensor | None = None
        dynamic = stream.following is not None
        auto: Drift = "exact" if dynamic else "inputs"
        self._space: Drift = auto if settings.drift == "auto" else settings.drift

    def begin(self, theta: Theta) -> None:
        """What a run starts with. theta: of all replicas, before the first task."""
        start = torch.func.vmap(terms.norm)(theta)
        radius = self.settings.radius
        self._radius = 10 * start if radius is None else torch.full_like(start, radius)
        if "stability" in self.settings.watch:
            found = discount.verdict(self.method.discounting)
            if found.outcome in ("diverges", "unclear"):
                self._say("discount", found.line)

    def restore(self, values: np.ndarray) -> None:
        """Takes over the readings of a run that goes on."""
        self.values = values.copy()

    def readings(self) -> Readings:
        """All readings so far."""
        return Readings(self._seeds, self.places, self.values)

    def due(self, place: Place) -> bool:
        """Whether a reading is taken before this update."""
        return place in self._index

    def take(
        self,
        place: Place,
        before: State,
        after: State,
        held: Memories,
        motion: Motion,
        weighing: Weighing | None,
        alive: Tensor,
    ) -> list[int]:
        """Takes a reading. before, after: the states around the update.

        motion, weighing: the task's. Returns the replicas whose J has been above beta for too long.
        """
        task, number, update = place
        n = self.settings.rows or min(self.method.batch, MOST_ROWS)
        moved: Literal["exact", "estimated"] = "exact" if self._space == "exact" else "estimated"
        draws = {
            "new": Draw("new", n),
            "past": Draw("earlier", n),
            "next": Draw("new", n, like="new", moved=moved),
        }
        supply = Supply(self._splits, held, self._seed, motion, weighing)
        drawn = probe(draws, supply, (task, number), update)
        rows = drawn.batches(self._stream, self.model.dtype, 0, slice(None))
        with torch.no_grad():
            change = tree_map(lambda a, b: a - b, after.theta, before.theta)
            assert self._radius is not None
            measure = partial(
                _one, self.model, self.settings, self._space, self.method.rule, self.beta
            )
            found = self._mapped(
                measure,
                before.theta,
                change,
                rows["new"],
                rows["past"],
                rows["next"],
                self._radius,
            )
        place_at = self._index[place]
        values = torch.stack([leaf.to(torch.float64) for leaf in leaves(tuple(found))], 1)
        values[~alive] = torch.nan
        self.values[:, place_at] = values.cpu().numpy()
        if "stability" in self.settings.watch:
            for name, where in self._breaks(slice(place_at, place_at + 1)).items():
                self._say_broken(name, where[:, 0], place_at)
        return self._exceeding(place_at)

    def _mapped(self, measure: Callable[..., Reading], *trees: Any) -> Reading:
        """The readings of all replicas: small networks' at once, since a reading is short."""
        found: Reading
        if self._engine.name == "batched" and not has_convolution(self.model):
            found = torch.func.vmap(measure, chunk_size=_AT_ONCE)(*trees)
        else:
            found = self._engine.map(measure, *trees)
        return found

    @property
    def beta(self) -> float:
        """The bound on J: the setting, the optimiser's own, or the paper's smallest."""
        rule = self.method.rule
        return self.settings.beta or (rule.beta if isinstance(rule, Theorem) else 1000.0)

    def _breaks(self, at: slice) -> dict[str, np.ndarray]:
        found = broken(self.values[:, at])
        return {name: where for name, where in found.items() if where.any()}

    def _exceeding(self, place_at: int) -> list[int]:
        """The replicas above beta in the last readings, as many as the settings' patience."""
        if self.settings.exceeding == "say" or place_at + 1 < self.settings.patience:
            return []
        last = self.values[:, place_at + 1 - self.settings.patience : place_at + 1]
        J, beta = (last[:, :, Reading._fields.index(name)] for name in ("J", "beta"))
        above = ~(beta >= J) & ~np.isnan(beta)
        return [int(replica) for replica in np.flatnonzero(above.all(1))]

    def _say_broken(self, name: str, where: np.ndarray, place_at: int) -> None:
        condition = CONDITIONS[name]
        task, _, update = self.places[place_at]
        values = named(self.values[:, place_at])
        shown = float(np.nanmax(np.where(where, condition.shows(values), -np.inf)))
        self._say(
            name,
            f"{condition.rule} broke at update {update} of task {task} "
            f"('{self._stream.tasks[task]}') in {int(where.sum())} of {len(where)} replicas "
            f"(largest {shown:.3g}); {condition.advice}.",
        )

    def _say(self, name: str, line: str) -> None:
        if name not in self._said and self._note is not None:
            self._note(f"{name}: {line}")
        self._said.add(name)


def _one(
    model: Model,
    settings: MonitorSettings,
    space: Drift,
    rule: Optimiser,
    beta: float,
    theta: Theta,
    change: Theta,
    b_N: Batch,
    b_P: Batch,
    b_next: Batch,
    radius: Tensor,
) -> Reading:
    """The reading of one replica. b_next: b_N's rows once they have moved."""
    found = terms.sensitivity(model, theta, b_N, b_P, space)
    move = terms.moved(model, theta, b_N, b_next, space)
    ahead = J_next = torch.full_like(radius, torch.nan)
    if "terms" in settings.watch:
        ahead = terms.look_ahead(model, theta, b_N, b_P, rule, settings.zeta)
        J_next = model.cost(theta, b_next)
    bound = torch.full_like(radius, beta)
    return reading(found, theta, change, move, bound, radius, ahead, J_next)
