"""Results of one method: errors, costs, divergence, readings and predictions."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np

from dpmcl.core.errors import Errors
from dpmcl.core.gradients import Work
from dpmcl.exceptions import SpecError
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


def folder_name(method: str) -> str:
    """Return the name of a method's folders in a run folder.

    Args:
        method: Name of the method in the spec.
    """
    return method.replace(":", ".")


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
    """Merge records of the same method, splits and tasks.

    Args:
        first, second: The records, which have no seed in common.

    Returns:
        The record of all seeds, in order of the seeds.

    Raises:
        ValueError: They have a seed in common.
        SpecError: Their predictions are for different numbers of rows.
    """
    both = (*first.test.seeds, *second.test.seeds)
    if len({*both}) < len(both):
        raise ValueError(f"Records to merge must have different seeds, got {both}.")
    order, seeds = np.argsort(both), tuple(sorted(both))

    def join(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.concatenate([a, b])[order]

    errors = {}
    for split, ours in first.errors.items():
        theirs = second.errors[split]
        values, examples = join(ours.values, theirs.values), join(ours.examples, theirs.examples)
        errors[split] = Errors(seeds, values, examples)
    predictions = None
    if first.predictions is not None and second.predictions is not None:
        others = second.predictions
        for name, values in first.predictions.items():
            if values.shape[1:] != others[name].shape[1:]:
                raise unequal_rows(*sorted((values.shape[1], others[name].shape[1])))
        predictions = {
            name: join(values, others[name]) for name, values in first.predictions.items()
        }
    return Record(
        errors,
        {**first.work, **second.work},
        dict(sorted({**first.diverged, **second.diverged}.items())),
        _merge_readings(seeds, first.readings, second.readings),
        predictions,
    )


def unequal_rows(fewest: int, most: int) -> SpecError:
    """Return the error for predictions of replicas that have different numbers of test rows.

    Args:
        fewest, most: Numbers of test rows.
    """
    return SpecError(
        "Replicas whose predictions are kept must have the same number of test rows, got "
        f"{fewest} and {most}; run into a new folder without evaluation.predictions (or confusion),"
        " or with evaluation.test_rows at most the fewest test rows of a task."
    )


def _merge_readings(seeds: tuple[int, ...], *parts: Readings | None) -> Readings | None:
    """Return the readings of some seeds at all positions; NaN where there is no reading."""
    known = [readings for readings in parts if readings is not None]
    if not known:
        return None
    positions = sorted({position for readings in known for position in readings.positions})
    column_of = {position: column for column, position in enumerate(positions)}
    values = np.full((len(seeds), len(positions), known[0].values.shape[2]), np.nan)
    for readings in known:
        rows = [seeds.index(seed) for seed in readings.seeds]
        columns = [column_of[position] for position in readings.positions]
        values[np.ix_(rows, columns)] = readings.values
    return Readings(seeds, tuple(positions), values)
