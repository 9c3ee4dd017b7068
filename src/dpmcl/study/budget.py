"""Give each method as many updates, or rows of memory, as a budget allows."""

import logging
import math
import re
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, Self, cast

from dpmcl.exceptions import SpecError, shown
from dpmcl.methods._method import Method
from dpmcl.training.bytes_kept import (
    all_task_draws,
    copied_bytes,
    note_bytes,
    row_bytes,
    rows_kept,
)
from dpmcl.training.job import Job, Trainer, read_stream
from dpmcl.training.loop import first_state, planned_work
from dpmcl.training.setup import Setup
from dpmcl.training.spec import Spec

_LOG = logging.getLogger("dpmcl")

Unit = Literal["flops", "rows", "bytes"]

REFERENCE = "dpmcl"
"""The method whose cost, with its present settings, is the budget if there is no number."""

_SUFFIX = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}


@dataclass(frozen=True)
class Budget:
    """A limit on what each method of a run may spend.

    Attributes:
        unit: "flops", operations per task; "rows", rows per task that are backpropagated through
            the complete network (both are means over the tasks of a run); or "bytes", size of what
            is stored besides the network.
        amount: The limit; 0 for the cost of `REFERENCE` with its present settings.
    """

    unit: Unit
    amount: int = 0

    def __str__(self) -> str:
        return f"{self.unit}={self.amount}" if self.amount else self.unit

    @classmethod
    def parse(cls, text: str | None) -> Self | None:
        """Return the budget in a text; None for no budget.

        Args:
            text: As in "flops=2e9", "rows=10000" or "bytes=4M" (k, M, G, T and P are powers of
                1,000); "flops" or "rows" alone for the cost of DPMCL; "printed" or None for the
                updates in the spec.

        Raises:
            SpecError: The text has none of these forms.

        >>> Budget.parse("bytes=4M")
        Budget(unit='bytes', amount=4000000)
        """
        if text is None or text == "printed":
            return None
        if text in ("flops", "rows"):
            return cls(cast(Unit, text))
        pattern = r"(flops|rows|bytes)=(\d+(?:\.\d+)?(?:e\d{1,2})?)([kMGTP]?)"
        match = re.fullmatch(pattern, text)
        amount = round(float(match[2]) * _SUFFIX[match[3]]) if match else 0
        if match is None or amount < 1:
            raise SpecError(
                "A budget is flops=N, rows=N or bytes=N, as in flops=2e9; flops or rows alone, "
                f"for what DPMCL takes; or printed, got {shown(text)}."
            )
        return cls(cast(Unit, match[1]), amount)


def limit(spec: Spec, budget: Budget | None, run: str = "") -> tuple[Spec, Budget | None]:
    """Give each method as many updates or rows of memory as a budget allows, and log how many.

    Args:
        spec: The spec.
        budget: Budget of each method; None for the updates and memory in the spec.
        run: Name of the run in a study, for the log.

    Returns:
        The spec within the budget, and the budget with its amount.

    Raises:
        SpecError: The budget does not allow a method one update or one row of memory; or it has no
            amount, and DPMCL is not among the methods.
    """
    if budget is None:
        return spec, None
    trainer = Trainer(spec, read_stream(spec, spec.seeds[:1]))
    if not budget.amount:
        budget = replace(budget, amount=_reference_cost(trainer, budget))
    methods: dict[str, Method] = {}
    for name in spec.methods:
        limited = _limit_memory if budget.unit == "bytes" else _limit_updates
        methods[name], line = limited(trainer, Job(name, spec.seeds[:1]), budget)
        _LOG.info("%s", f"{run}: {name}: {line}" if run else f"{name}: {line}")
    return replace(spec, methods=methods), budget


def _reference_cost(trainer: Trainer, budget: Budget) -> int:
    """Return the cost per task of DPMCL with its present settings."""
    if REFERENCE not in trainer.spec.methods:
        names = ", ".join(trainer.spec.methods)
        raise SpecError(
            f"A budget without a number is what '{REFERENCE}' takes, which is not among the methods"
            f" of a run ({names}); add it, or name a number, as in {budget.unit}=2e9."
        )
    return math.ceil(cost(trainer.setup(Job(REFERENCE, trainer.spec.seeds[:1])), budget.unit))


def cost(setup: Setup, unit: Unit) -> Fraction:
    """Return the cost of a task for one replica, the mean over the tasks of a run.

    Args:
        setup: Setup of the method.
        unit: The unit, "flops" or "rows".
    """
    work = planned_work(setup)
    return Fraction(work.flops if unit == "flops" else work.rows_backpropagated, setup.tasks)


def _limit_updates(trainer: Trainer, job: Job, budget: Budget) -> tuple[Method, str]:
    """Return a method with the updates that a budget allows, and a line about them."""
    method: Method = trainer.spec.methods[job.method]
    if method.passes is not None:
        raise SpecError(
            f"A budget of {budget.unit} sets the updates of '{job.method}', and passes = "
            f"{method.passes} sets them too; leave out one of the two."
        )
    setup = trainer.setup(job)

    def cost_of(method: Method) -> Fraction:
        return cost(replace(setup, method=method), budget.unit)

    # Updates cost in proportion to their number; the rest, such as EWC's Fisher, does not change.
    spent, of_twice = cost_of(method), cost_of(method.scaled(Fraction(2)) or method)
    of_updates = of_twice - spent
    factor = 1 + (budget.amount - spent) / of_updates if of_updates > 0 else Fraction(1)
    scaled = method.scaled(factor)
    if scaled is None:
        raise SpecError(
            f"A budget must allow each method one update, and with one '{job.method}' costs more "
            f"than {budget.amount:,} {budget.unit} a task; give more."
        )
    spent = cost_of(scaled)
    if spent > budget.amount:
        raise SpecError(
            f"A budget scales the settings in a method's `counts`, and '{job.method}' still costs "
            f"{math.ceil(spent):,} {budget.unit} of {budget.amount:,}; name all its numbers of "
            "updates there."
        )
    counts = {key: getattr(scaled, key) for key in scaled.counts}
    updates = ", ".join(f"{key} {value:,}" for key, value in counts.items() if value is not None)
    return scaled, f"{updates}: {math.ceil(spent):,} {budget.unit} a task of {budget.amount:,}"


def _limit_memory(trainer: Trainer, job: Job, budget: Budget) -> tuple[Method, str]:
    """Return a method with the rows of memory that a budget allows, and a line about them."""
    method: Method = trainer.spec.methods[job.method]
    setup = trainer.setup(job)
    run = first_state(setup)
    copies = copied_bytes(run)
    if copies > budget.amount:
        raise SpecError(
            f"A budget must hold what each method keeps beside rows, and '{job.method}' keeps "
            f"{copies:,} bytes; give more than {budget.amount:,}, or leave the method out."
        )
    if all_task_draws(setup):
        held = {name: memory.position.shape[1] for name, memory in run.memories.items()}
        kept = copies + round(rows_kept(setup, held) * row_bytes(setup))
        if kept > budget.amount:
            raise SpecError(
                f"A budget must hold the rows that each method draws from, and '{job.method}' "
                f"draws from all rows of the tasks seen, {kept:,} bytes; give more than "
                f"{budget.amount:,}, or leave the method out."
            )
        return method, f"draws from all rows of the tasks seen: {kept:,} bytes of {budget.amount:,}"
    remembers = any(phase.remember for phase in setup.phases[0])
    if method.stores == "never" and not remembers and not method.trains_on_validation:
        return method, f"keeps no rows, and {copies:,} bytes of other things"
    split = 2 if method.trains_on_validation else 1  # it has a second memory, of validation rows
    rows = (budget.amount - copies) // (split * row_bytes(setup) + note_bytes(setup, run))
    if rows < 1:
        raise SpecError(
            f"A budget must allow each method one row of memory, and '{job.method}' keeps "
            f"{copies:,} bytes beside it; give more than {budget.amount:,}."
        )
    return replace(method, memory=rows), f"{rows:,} rows of memory, for {budget.amount:,} bytes"
