"""||J_x|| ||dx|| for the theorem's step: measured at the door of every fifty updates."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dpmcl import keys
from dpmcl.batch import Batch
from dpmcl.engine import Engine
from dpmcl.exceptions import SpecError
from dpmcl.memory import Memory
from dpmcl.method import Method, State
from dpmcl.model import Model, Theta
from dpmcl.motion import Motion
from dpmcl.optim import Drift, Theorem
from dpmcl.sampling import Draw, Moved, chunk
from dpmcl.splits import Splits
from dpmcl.stream import Stream
from dpmcl.theory.terms import reach

ROWS = 32
"""Rows of the new task on which ||J_x|| and ||dx|| are measured."""


class StepSize:
    """Tells the optimiser `theorem` how far inputs move; of no use to the others.

    note: told at which tasks the theorem does not apply, and what was done instead.
    """

    def __init__(
        self,
        method: Method,
        model: Model,
        stream: Stream,
        splits: Splits,
        seed: Tensor,
        engine: Engine,
        note: Callable[[str], None] | None = None,
    ) -> None:
        rule = method.rule
        self._rule = rule if isinstance(rule, Theorem) and rule.drift != "none" else None
        self._model, self._stream, self._splits = model, stream, splits
        self._seed, self._engine, self._note = seed, engine, note
        self._broken: dict[int, int] = {}

    def due(self, update: int, every: int) -> bool:
        """Whether the rule is told before this update of a phase."""
        return self._rule is not None and update % every == 0

    def informed(
        self, state: State, held: Memory, place: tuple[int, int], update: int, motion: Motion
    ) -> State:
        """The state with ||J_x|| ||dx|| in its optimiser."""
        assert self._rule is not None
        drift = self._measured(state.theta, held, place, update, motion)
        many, task = int((drift >= 1).sum()), place[0]
        if many and not self._broken and self._note:
            ignores = self._rule.otherwise == "ignore"
            instead = "steps are taken as if dx were 0" if ignores else "no steps are taken"
            self._note(
                f"theorem 1 does not apply at task {task} ('{self._stream.tasks[task]}'): ||J_x|| "
                f"||dx|| = {float(drift.max()):.3g} is not below 1 in {many} of {len(drift)} "
                f"replicas; {instead} there."
            )
        if many:
            self._broken[task] = max(many, self._broken.get(task, 0))
        return state._replace(optimiser=self._rule.informed(state.optimiser, drift))

    def sum_up(self) -> None:
        """Says at which tasks the theorem did not apply."""
        if len(self._broken) > 1 and self._note:
            listed = ", ".join(f"{task} ({many})" for task, many in sorted(self._broken.items()))
            self._note(f"theorem 1 did not apply at tasks (replicas): {listed}.")

    def _measured(
        self, theta: Theta, held: Memory, place: tuple[int, int], update: int, motion: Motion
    ) -> Tensor:
        """||J_x|| ||dx|| of each replica."""
        assert self._rule is not None
        moved: Moved = "exact" if self._rule.drift == "exact" else "estimated"
        draws = {"new": Draw("new", ROWS), "next": Draw("new", ROWS, like="new", moved=moved)}
        drawn = chunk(
            draws,
            self._splits,
            held,
            self._seed,
            place,
            range(update, update + 1),
            1,
            motion=motion,
            purpose=keys.Purpose.PROBE,
        )
        rows = drawn.batches(self._stream, self._model.dtype, 0, slice(None))
        measure = partial(_reach, self._model, self._rule.drift)
        with torch.no_grad():
            found: Tensor = self._engine.map(
                measure, theta, tuple(rows["new"]), tuple(rows["next"])
            )
        return found


def _reach(model: Model, space: Drift, theta: Theta, new: Any, moved: Any) -> Tensor:
    return reach(model, theta, Batch(*new), Batch(*moved), space)


def check_dynamics(method: Method, model: Model, stream: Stream, watched: str) -> None:
    """Raises SpecError where something wants to know of inputs what the stream cannot tell.

    watched: how the monitor is to know dx.
    """
    draws = [draw for phase in method.phases(model, 0) for draw in phase.draws.values()]
    moved = {draw.moved for draw in draws}
    asks = {"monitor.drift": watched, "fourth_term": "exact" if "exact" in moved else ""}
    if isinstance(method.rule, Theorem):
        asks["optimiser.drift"] = method.rule.drift
    for name, how in asks.items():
        if how == "exact" and stream.following is None:
            raise SpecError(
                f"{name} = 'exact' needs a stream that knows its dynamics (oscillator, lorenz, "
                f"burgers), got '{stream.name}'; leave it out, or estimate."
            )
    if "estimated" in moved and stream.kind != "regression":
        raise SpecError(
            "fourth_term = 'estimated' moves inputs and targets of a regression, got the classes "
            f"of '{stream.name}'; use 'off'."
        )
