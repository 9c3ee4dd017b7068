"""What is known of one method: its errors, and what they cost."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dpmcl.divergence import Divergence
from dpmcl.evaluation import Errors
from dpmcl.gradients import Work


@dataclass(frozen=True, eq=False)
class Record:
    """One method's results over its seeds.

    errors: by split; "test" is always there. work: by seed. diverged: by seed, where a replica was
    frozen; its errors are NaN from there on.
    """

    errors: Mapping[str, Errors]
    work: Mapping[int, Work] = field(default_factory=dict)
    diverged: Mapping[int, Divergence] = field(default_factory=dict)

    @property
    def test(self) -> Errors:
        """Errors on test rows."""
        return self.errors["test"]


def merge(first: Record, second: Record) -> Record:
    """Both records' seeds, in order; where both have a seed, the first one's stay."""
    errors = {
        split: _merge_errors(first.errors[split], second.errors[split]) for split in first.errors
    }
    diverged = {**second.diverged, **first.diverged}
    return Record(errors, {**second.work, **first.work}, dict(sorted(diverged.items())))


def _merge_errors(first: Errors, second: Errors) -> Errors:
    new = [i for i, seed in enumerate(second.seeds) if seed not in first.seeds]
    seeds = [*first.seeds, *(second.seeds[i] for i in new)]
    order = np.argsort(seeds)
    values = np.concatenate([first.values, second.values[new]])[order]
    examples = np.concatenate([first.examples, second.examples[new]])[order]
    return Errors(tuple(seeds[i] for i in order), values, examples)
