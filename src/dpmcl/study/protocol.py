"""Check results for a fair comparison, and store the outcome, the protocol, beside them.

Updates on test rows, or on rows of later tasks, are refused when rows are drawn (`data.sampling`);
only draws with moved = "exact", as for DPMCL's fourth term, have rows of the next task, and their
methods are named here. The other checks need results: that all methods had the same splits and
evaluation, and did not exceed their budget.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from dpmcl.core.errors import Errors
from dpmcl.core.gradients import Work
from dpmcl.results import store
from dpmcl.results.record import Record
from dpmcl.results.store import Protocol, Rule, Stored
from dpmcl.study.budget import Budget

_LOG = logging.getLogger("dpmcl")


def check_and_save(folder: Path, budget: Budget | None = None) -> Stored:
    """Check the protocol of a run folder's results, write protocol.json, and log violations.

    Args:
        folder: The run folder.
        budget: Budget of each method; None for that of an earlier check, if there was one.

    Returns:
        The content of the folder.

    Raises:
        FolderError: The folder is not a run folder, or a file in it is damaged.
    """
    stored = store.load(folder)
    if budget is None and stored.protocol is not None:
        budget = Budget.parse(stored.protocol.budget)
    checked = check(stored.records, len(stored.stream.tasks), budget)
    for rule in checked.rules:
        for line in rule.violations:
            _LOG.warning("%s: %s", folder, line)
    if stored.records and checked != stored.protocol:
        store.save_protocol(folder, checked)
        stored = replace(stored, protocol=checked)
    return stored


def check(records: Mapping[str, Record], tasks: int, budget: Budget | None = None) -> Protocol:
    """Return the rules of a fair comparison, each with its violations.

    Args:
        records: Results by method.
        tasks: Number of tasks of the stream.
        budget: Budget of each method; None if there was none.
    """
    looked = [
        f"{name}: it learned from rows of the next task (moved = 'exact')."
        for name, record in records.items()
        if any(work.rows_ahead for work in record.work.values())
    ]
    rows = _differences(records, lambda errors: errors.examples, "on other rows")
    times = _differences(records, lambda errors: np.isnan(errors.values), "at other times")
    rules = [
        Rule("No update learned from test rows, or from rows of tasks to come", looked),
        Rule("All methods were tested on the same rows", list(rows)),
        Rule("All methods were tested at the same times", list(times)),
    ]
    if budget is not None:
        overspent = list(_overspent(records, tasks, budget))
        rules.append(Rule(f"No method took more than {budget}", overspent))
    return Protocol(None if budget is None else str(budget), rules)


def _differences(
    records: Mapping[str, Record], values: Callable[[Errors], np.ndarray], difference: str
) -> Iterator[str]:
    """Yield a line for each method and seed whose values differ from the first method's."""
    first: dict[int, tuple[str, np.ndarray]] = {}
    for name, record in records.items():
        for seed, mine in zip(record.test.seeds, values(record.test), strict=True):
            if seed in record.diverged:  # its errors are missing
                continue
            first_method, theirs = first.setdefault(seed, (name, mine))
            if not np.array_equal(mine, theirs):
                yield f"{name} and {first_method}, seed {seed}: they were tested {difference}."


def _overspent(records: Mapping[str, Record], tasks: int, budget: Budget) -> Iterator[str]:
    """Yield a line for each method that exceeded its budget."""
    per_task = "" if budget.unit == "bytes" else " a task"
    for name, record in records.items():
        spent = max((_spent(work, tasks, budget) for work in record.work.values()), default=0)
        if spent > budget.amount:
            allowed = f"{budget.amount:,} were allowed"
            yield f"{name}: it took {spent:,.0f} {budget.unit}{per_task}, and {allowed}."


def _spent(work: Work, tasks: int, budget: Budget) -> float:
    """Return the cost of a replica in the unit of a budget."""
    if budget.unit == "bytes":
        return work.memory_bytes + work.notes_bytes + work.copies_bytes
    return (work.flops if budget.unit == "flops" else work.rows_backpropagated) / tasks
