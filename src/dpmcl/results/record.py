"""Results of one method: errors, costs, divergence, readings and predictions."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np

from dpmcl.core.errors import Errors
from dpmcl.core.gradients import Work
from dpmcl.theory.readings import Readings


class Divergence(NamedTuple):
    """Update at which a replica was frozen, and the cause.

    Attributes:
        task: Number of the task, from 0.
        phase: Number of the phase within the task, from 0.
        update: Number of the update within the phase, from 1.
        cause: "not finite" for a state that is not finite; "cost" for a cost that exceeded beta
            for too long (`monitor.MonitorSettings`).
    """

    task: int
    phase: int
    update: int
    cause: Literal["not finite", "cost"] = "not finite"


@dataclass(frozen=True, eq=False)
class Record:
    """Results of one method over its seeds.

    Attributes:
        errors: Errors by split; "test" is always among them.
        work: Cost of the updates, by seed.
        diverged: Update at which a replica was frozen, by seed. Its errors are NaN from there on.
        readings: Readings of the theory monitor; None if it was off.
        predictions: Predictions by split, or by another name that a method evaluates: integer or
            float arrays (seeds, ...) in the order of `test.seeds`. None if they were not stored.
    """

    errors: Mapping[str, Errors]
    work: Mapping[int, Work] = field(default_factory=dict)
    diverged: Mapping[int, Divergence] = field(default_factory=dict)
    readings: Readings | None = None
    predictions: Mapping[str, np.ndarray] | None = None

    @property
    def test(self) -> Errors:
        """Errors on test rows."""
        return self.errors["test"]


def select_seeds(record: Record, seeds: Collection[int]) -> Record:
    """Return the results of some of a record's seeds.

    Args:
        record: Results of one method.
        seeds: Seeds to select; those without results are ignored.
    """
    indices = [i for i, seed in enumerate(record.test.seeds) if seed in seeds]
    selected = tuple(record.test.seeds[i] for i in indices)
    errors = {
        split: Errors(selected, errors.values[indices], errors.examples[indices])
        for split, errors in record.errors.items()
    }
    work = {seed: work for seed, work in record.work.items() if seed in seeds}
    diverged = {seed: where for seed, where in record.diverged.items() if seed in seeds}
    readings = record.readings
    if readings is not None:
        readings = replace(readings, seeds=selected, values=readings.values[indices])
    predictions = record.predictions
    if predictions is not None:
        predictions = {name: values[indices] for name, values in predictions.items()}
    return Record(errors, work, diverged, readings, predictions)


def merge(first: Record, second: Record) -> Record:
    """Merge two records of the same method, splits and tasks, with the seeds in order.

    Args:
        first: Record whose results are used for seeds that both records have.
        second: The other record.

    Returns:
        The record of all seeds.
    """
    new = [i for i, seed in enumerate(second.test.seeds) if seed not in first.test.seeds]
    seeds = [*first.test.seeds, *(second.test.seeds[i] for i in new)]
    order = np.argsort(seeds)

    def join(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.concatenate([a, b[new]])[order]

    errors = {}
    for split, ours in first.errors.items():
        theirs = second.errors[split]
        values, examples = join(ours.values, theirs.values), join(ours.examples, theirs.examples)
        errors[split] = Errors(tuple(sorted(seeds)), values, examples)
    predictions = None
    if first.predictions is not None and second.predictions is not None:
        others = second.predictions
        predictions = {name: join(ours, others[name]) for name, ours in first.predictions.items()}
    return Record(
        errors,
        {**second.work, **first.work},
        dict(sorted({**second.diverged, **first.diverged}.items())),
        _merge_readings(first.readings, second.readings),
        predictions,
    )


def _merge_readings(first: Readings | None, second: Readings | None) -> Readings | None:
    """Return the readings of both at all positions; NaN where one of them has no reading."""
    if first is None or second is None:
        return first or second
    positions = tuple(sorted({*first.positions, *second.positions}))
    new = [i for i, seed in enumerate(second.seeds) if seed not in first.seeds]
    seeds = [*first.seeds, *(second.seeds[i] for i in new)]
    values = np.full((len(seeds), len(positions), first.values.shape[2]), np.nan)
    index_of = {position: i for i, position in enumerate(positions)}
    values[: len(first.seeds), [index_of[p] for p in first.positions]] = first.values
    values[len(first.seeds) :, [index_of[p] for p in second.positions]] = second.values[new]
    order = np.argsort(seeds)
    return Readings(tuple(sorted(seeds)), positions, values[order])
