"""Test, then train: the error on new rows of the model that has not been trained on them yet."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from dpmcl.core.batch import Batch
from dpmcl.core.errors import Errors
from dpmcl.exceptions import SpecError
from dpmcl.methods._method import Phase
from dpmcl.training.evaluation import evaluated_states, row_errors
from dpmcl.training.observer import Observer, Segment
from dpmcl.training.setup import Setup
from dpmcl.training.state import Position, RunState

SPLIT = "arriving"
_SUM, _COUNT = f"{SPLIT}.sum", f"{SPLIT}.rows"


class Arriving(Observer):
    """Evaluates the model on each batch of new rows just before the update that trains on it.

    Only the first phase of a task that draws new rows counts: later phases draw the same rows.

    Args:
        setup: Setup of the run.

    Raises:
        SpecError: `passes` is not 1, the method draws a new row more than once all the same, or it
            chooses the model that is evaluated only before an evaluation.
    """

    def __init__(self, setup: Setup) -> None:
        if setup.method.passes != 1:
            raise SpecError(
                "evaluation.arriving tests each row once before it is trained on, so it needs "
                f"training.passes = 1, got {setup.method.passes or 'draws with replacement'}; set "
                "it, or leave `arriving` out."
            )
        self._draws = [_new_rows_draw(phases) for phases in setup.phases]
        for task, draw in enumerate(self._draws):
            if draw is not None:
                _check_rows_come_once(setup, task, *draw)

    def begin(self, setup: Setup, run: RunState) -> RunState:
        if _SUM in run.values:
            return run
        shape = (len(setup.seeds), setup.tasks)
        empty = {_SUM: np.zeros(shape), _COUNT: np.zeros(shape, dtype=np.int64)}
        return replace(run, values={**run.values, **empty})

    def stop(self, setup: Setup, position: Position, last: int) -> int:
        draw = self._draws[position.task]
        counts = draw is not None and position.phase == draw[0]
        return position.update + 1 if counts else last  # each update changes the model

    def after_segment(self, setup: Setup, run: RunState, segment: Segment) -> RunState:
        task, phase, _ = segment.before.position
        draw = self._draws[task]
        if draw is None or phase != draw[0]:
            return run
        batch = segment.feed.batches(0, slice(None))[draw[1]]
        x, y, w, tasks = (leaf.flatten(1, batch.w.dim() - 1) for leaf in batch[:4])
        with torch.no_grad():
            states, rows = evaluated_states(setup, segment.before), Batch(x, y, w, tasks)
            errors = setup.engine.map(partial(row_errors, setup), states, rows)
        errors = torch.where(w > 0, errors, 0)
        errors[~run.alive] = torch.nan
        values = {name: run.values[name].copy() for name in (_SUM, _COUNT)}
        values[_SUM][:, task] += errors.sum(1).cpu().numpy()
        values[_COUNT][:, task] += (w > 0).sum(1).cpu().numpy()
        return replace(run, values={**run.values, **values})

    def errors(self, setup: Setup, run: RunState) -> dict[str, Errors]:
        """Return the mean error on each task's rows as they arrived, on the diagonal, by split.

        Empty if a task has no phase that draws new rows.

        Args:
            setup: Setup of the run.
            run: State at the end of the run.
        """
        if None in self._draws:
            return {}
        count = run.values[_COUNT]
        mean = np.where(count > 0, run.values[_SUM] / np.maximum(count, 1), np.nan)
        values = np.full((len(mean), 1 + setup.tasks, setup.tasks), np.nan)
        task = np.arange(setup.tasks)
        values[:, 1 + task, task] = mean
        return {SPLIT: Errors(setup.seeds, values, count)}


def _new_rows_draw(phases: Sequence[Phase]) -> tuple[int, str] | None:
    """Return the first phase that draws new training rows and the draw's name, if there is one."""
    for number, phase in enumerate(phases):
        for name, draw in phase.draws.items():
            if (draw.source, draw.split, draw.like) == ("new", "train", None):
                return number, name
    return None


def _check_rows_come_once(setup: Setup, task: int, number: int, name: str) -> None:
    """Raise SpecError if a phase draws a new row more than once, or no model can be tested."""
    phase, method = setup.phases[task][number], setup.method_name
    draw = phase.draws[name]
    updates = -(-setup.task_infos[task].rows // (draw.batch * (draw.block or 1)))
    if draw.replace:
        why = f"draw '{name}' of '{method}' is with replacement; take it from new_rows(),"
    elif phase.updates > updates:
        why = (
            f"'{method}' makes {phase.updates} updates at task {task} ('{setup.stream.tasks[task]}'"
            f"), and one pass has {updates}; leave out its own number of updates (kappa, n_grad),"
        )
    elif setup.evaluation_phases[task]:
        why = (
            f"'{method}' chooses the model that is evaluated only before an evaluation; give it "
            "nothing to choose from (one of `rates`),"
        )
    else:
        return
    raise SpecError(
        f"evaluation.arriving tests each row once before it is trained on, and {why} or leave "
        "`arriving` out."
    )
