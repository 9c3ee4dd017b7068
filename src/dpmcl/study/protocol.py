"""The protocol of a fair comparison, checked on results.

That no update learns from test rows, or from rows of tasks to come, is refused where rows are drawn
(`data.sampling`). What only results can show is checked here: that all methods had the same splits
and evaluation, and kept to their budget.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dpmcl.core.gradients import Work
from dpmcl.results.record import Record
from dpmcl.study.budget import Budget


def violations(records: Mapping[str, Record], tasks: int, budget: Budget | None) -> list[str]:
    """Return where methods of a run were not treated alike, a line for each.

    Args:
        records: Results by method.
        tasks: Tasks of the stream.
        budget: What each method was to spend; None where it was not limited.
    """
    out = []
    first: dict[int, tuple[str, np.ndarray, np.ndarray]] = {}
    for name, record in records.items():
        errors = record.test
        for place, seed in enumerate(errors.seeds):
            examples, evaluated = errors.examples[place], ~np.isnan(errors.values[place])
            other, rows, cells = first.setdefault(seed, (name, examples, evaluated))
            if not np.array_equal(rows, examples):
                out.append(f"{name} and {other}, seed {seed}: they were tested on other rows.")
            if seed not in record.diverged and (evaluated & ~cells).any():
                out.append(f"{name} and {other}, seed {seed}: they were tested at other times.")
        out += _overspent(name, record, tasks, budget)
    return out


def described(records: Mapping[str, Record], tasks: int, budget: Budget | None) -> dict[str, Any]:
    """Return what is stored with a study about a run's protocol.

    Args:
        records: Results by method.
        tasks: Tasks of the stream.
        budget: What each method was to spend.
    """
    found = violations(records, tasks, budget)
    return {
        "training rows": "train and validation rows of tasks seen; others are refused as drawn",
        "budget": None if budget is None else f"{budget.on}={budget.amount}",
        "passed": not found,
        "violations": found,
    }


def _overspent(name: str, record: Record, tasks: int, budget: Budget | None) -> list[str]:
    """Return a line for a method that spent more than its budget."""
    if budget is None:
        return []
    most = max((_spent(work, tasks, budget) for work in record.work.values()), default=0)
    if most <= budget.amount:
        return []
    each = "" if budget.on == "bytes" else " a task"
    return [f"{name}: it took {most:,.0f} {budget.on}{each}, and {budget.amount:,} were allowed."]


def _spent(work: Work, tasks: int, budget: Budget) -> float:
    """Return what a replica spent of what a budget is of."""
    if budget.on == "bytes":
        return work.memory_bytes + work.notes_bytes + work.copies_bytes
    return (work.flops if budget.on == "flops" else work.rows_backpropagated) / tasks
