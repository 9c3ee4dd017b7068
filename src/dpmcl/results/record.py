"""What is known of one method: its errors, and what they cost."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np

from dpmcl.core.errors import Errors
from dpmcl.core.gradients import Work
from dpmcl.theory.readings import Readings


class Divergence(NamedTuple):
    """Where a replica was frozen: task and phase from 0, update of the phase from 1.

    cause: "not finite", or "cost", above beta for too long (`monitor.MonitorSettings`).
    """

    task: int
    phase: int
    update: int
    cause: Literal["not finite", "cost"] = "not finite"


@dataclass(frozen=True, eq=False)
class Record:
    """One method's results over its seeds.

    errors: by split; "test" is always there. work: by seed. diverged: by seed, where a replica was
    frozen; its errors are NaN from there on. readings: what was watched; None if nothing was.
    """

    errors: Mapping[str, Errors]
    work: Mapping[int, Work] = field(default_factory=dict)
    diverged: Mapping[int, Divergence] = field(default_factory=dict)
    readings: Readings | None = None

    @property
    def test(self) -> Errors:
        """Errors on test rows."""
        return self.errors["test"]


def of_seeds(record: Record, seeds: Collection[int]) -> Record:
    """Return the part of a record that some of its seeds make.

    Args:
        record: One method's results.
        seeds: Those that stay.
    """
    places = [i for i, seed in enumerate(record.test.seeds) if seed in seeds]
    kept = tuple(record.test.seeds[i] for i in places)
    errors = {
        split: Errors(kept, errors.values[places], errors.examples[places])
        for split, errors in record.errors.items()
    }
    work = {seed: work for seed, work in record.work.items() if seed in seeds}
    diverged = {seed: where for seed, where in record.diverged.items() if seed in seeds}
    readings = record.readings
    if readings is not None:
        readings = replace(readings, seeds=kept, values=readings.values[places])
    return Record(errors, work, diverged, readings)


def merge(first: Record, second: Record) -> Record:
    """Both records' seeds, in order; where both have a seed, the first one's stay."""
    errors = {
        split: _merge_errors(first.errors[split], second.errors[split]) for split in first.errors
    }
    diverged = {**second.diverged, **first.diverged}
    work = {**second.work, **first.work}
    readings = _merge_readings(first.readings, second.readings)
    return Record(errors, work, dict(sorted(diverged.items())), readings)


def _merge_readings(first: Readings | None, second: Readings | None) -> Readings | None:
    """Both records' readings at all of their places; NaN where one of them has none."""
    if first is None or second is None:
        return first or second
    places = tuple(sorted({*first.places, *second.places}))
    new = [i for i, seed in enumerate(second.seeds) if seed not in first.seeds]
    seeds = [*first.seeds, *(second.seeds[i] for i in new)]
    values = np.full((len(seeds), len(places), first.values.shape[2]), np.nan)
    at = {place: i for i, place in enumerate(places)}
    values[: len(first.seeds), [at[p] for p in first.places]] = first.values
    values[len(first.seeds) :, [at[p] for p in second.places]] = second.values[new]
    order = np.argsort(seeds)
    return Readings(tuple(seeds[i] for i in order), places, values[order])


def _merge_errors(first: Errors, second: Errors) -> Errors:
    new = [i for i, seed in enumerate(second.seeds) if seed not in first.seeds]
    seeds = [*first.seeds, *(second.seeds[i] for i in new)]
    order = np.argsort(seeds)
    values = np.concatenate([first.values, second.values[new]])[order]
    examples = np.concatenate([first.examples, second.examples[new]])[order]
    return Errors(tuple(seeds[i] for i in order), values, examples)
