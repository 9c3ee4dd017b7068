"""||J_x|| ||dx||, which the step size of Theorem 1 needs: measured before every fifty updates."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from dpmcl.core.memory import Memories
from dpmcl.core.model import Model, Theta
from dpmcl.data.motion import Motion
from dpmcl.data.sampling import Draw, Moved, Supply, probe
from dpmcl.data.splits import Splits
from dpmcl.data.stream import Stream
from dpmcl.engine import Engine
from dpmcl.methods._method import Method, State
from dpmcl.optimisers.theorem import Theorem
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
        self,
        state: State,
        held: Memories,
        place: tuple[int, int],
        update: int,
        motion: Motion,
        alive: Tensor,
    ) -> State:
        """The state with ||J_x|| ||dx|| in its optimiser. alive: replicas that are not frozen."""
        assert self._rule is not None
        reached = self._measured(self._rule, state.theta, held, place, update, motion)
        beyond, task = (reached >= 1) & alive, place[0]
        many = int(beyond.sum())
        if many and not self._broken and self._note:
            ignores = self._rule.otherwise == "ignore"
            instead = "steps are taken as if dx were 0" if ignores else "no steps are taken"
            self._note(
                f"theorem 1 does not apply at task {task} ('{self._stream.tasks[task]}'): ||J_x|| "
                f"||dx|| = {float(reached[beyond].max()):.3g} is not below 1 in {many} of "
                f"{len(reached)} replicas; {instead} there."
            )
        if many:
            self._broken[task] = max(many, self._broken.get(task, 0))
        return state._replace(optimiser=self._rule.informed(state.optimiser, reached))

    def sum_up(self) -> None:
        """Says at which tasks the theorem did not apply, of those that this call trained."""
        if len(self._broken) > 1 and self._note:
            listed = ", ".join(f"{task} ({many})" for task, many in sorted(self._broken.items()))
            self._note(f"theorem 1 did not apply at tasks (replicas): {listed}.")

    def _measured(
        self,
        rule: Theorem,
        theta: Theta,
        held: Memories,
        place: tuple[int, int],
        update: int,
        motion: Motion,
    ) -> Tensor:
        """||J_x|| ||dx|| of each replica."""
        moved: Moved = "exact" if rule.drift == "exact" else "estimated"
        draws = {"new": Draw("new", ROWS), "next": Draw("new", ROWS, like="new", moved=moved)}
        drawn = probe(draws, Supply(self._splits, held, self._seed, motion), place, update)
        rows = drawn.batches(self._stream, self._model.dtype, 0, slice(None))
        measure = partial(reach, self._model, space=rule.drift)
        with torch.no_grad():
            found: Tensor = self._engine.map(measure, theta, rows["new"], rows["next"])
        return found
