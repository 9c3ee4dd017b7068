"""Fills the error tensor: evaluates before the first task and after each."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from dpmcl.core.errors import Errors
from dpmcl.data.splits import Rows
from dpmcl.methods._method import State
from dpmcl.training.evaluation import Evaluation, evaluate, predict
from dpmcl.training.loop import rehearsed
from dpmcl.training.memories import has_own
from dpmcl.training.observer import Observer
from dpmcl.training.setup import Setup
from dpmcl.training.state import RunState

_PREFIX = "errors."


@dataclass(frozen=True)
class Score(Observer):
    """Evaluates the replicas.

    Attributes:
        evaluation: What is evaluated, and when.
    """

    evaluation: Evaluation

    def begin(self, setup: Setup, run: RunState) -> RunState:
        if all(_PREFIX + split in run.values for split in self._splits):
            return run
        shape = (len(setup.seeds), 1 + setup.tasks, setup.tasks)
        empty = {_PREFIX + split: np.full(shape, np.nan) for split in self._splits}
        return self._evaluated(setup, replace(run, values={**run.values, **empty}), after=-1)

    def after_task(self, setup: Setup, run: RunState) -> RunState:
        return self._evaluated(setup, run, after=run.position.task - 1)

    def errors(self, setup: Setup, run: RunState) -> dict[str, Errors]:
        """Return the error tensors of a run by split.

        Args:
            setup: The run's.
            run: Its last state.
        """
        return {
            split: Errors(
                setup.seeds,
                run.values[_PREFIX + split],
                self._rows(setup, split).offset.diff(dim=1).cpu().numpy(),
            )
            for split in self._splits
        }

    def predictions(self, setup: Setup, run: RunState) -> dict[str, np.ndarray] | None:
        """Return the final predictions on test rows (`evaluation.predict`), if they are kept.

        Args:
            setup: The run's.
            run: Its last state.
        """
        if not self.evaluation.predictions:
            return None
        state = _shown(setup, rehearsed(setup, run, setup.tasks - 1))
        return predict(setup, state, self._rows(setup, "test"))

    @property
    def _splits(self) -> tuple[str, ...]:
        return ("test", "train") if self.evaluation.train else ("test",)

    def _rows(self, setup: Setup, split: str) -> Rows:
        rows, most = setup.splits.named(split), self.evaluation.test_rows
        return rows if most is None else rows.at_most(most)

    def _evaluated(self, setup: Setup, run: RunState, after: int) -> RunState:
        tasks = self.evaluation.tasks(after, setup.tasks)
        rehearsal = rehearsed(setup, run, after) if after >= 0 else run
        state = _shown(setup, rehearsal)
        values: Mapping[str, np.ndarray] = dict(run.values)
        for split in self._splits:
            errors = evaluate(setup, state, self._rows(setup, split), tasks)
            errors[~run.alive] = torch.nan
            values[_PREFIX + split][:, 1 + after] = errors.cpu().numpy()
        return replace(run, values=values, work=rehearsal.work)


def _shown(setup: Setup, run: RunState) -> State:
    """Return the states whose models are evaluated."""
    if not has_own(setup.method, "evaluated"):
        return run.replicas
    state: State = setup.engine.map(setup.method.evaluated, run.replicas)
    return state
