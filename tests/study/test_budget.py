"""Budgets: the cost of each method, counted after its run."""

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest

import dpmcl
from dpmcl import Phase, gradient
from dpmcl.exceptions import SpecError
from dpmcl.methods.er import ER
from dpmcl.study.budget import Budget, cost, limit
from dpmcl.training.job import Job, Trainer, read_stream
from dpmcl.training.spec import Spec

METHODS = ("naive", "er", "dpmcl", "oml", "ewc", "joint")


def spec_of(*methods: str, **training) -> Spec:
    table = {
        "stream": {"name": "digits", "tasks": 2},
        "network": {"name": "mlp", "hidden": 8},
        "training": {"updates": 20, "batch": 8, "memory": 40, **training},
        "methods": list(methods),
        "replicas": 2,
    }
    return Spec.parse(table)


@pytest.mark.parametrize("text", ["flops=2e6", "rows=500"])
def test_every_method_has_as_many_updates_as_fit(text: str, caplog) -> None:
    caplog.set_level("INFO", "dpmcl")
    budget = Budget.parse(text)
    before = Trainer(spec_of(*METHODS), read_stream(spec_of(*METHODS), (0,)))
    spec, _ = limit(before.spec, budget)
    for name, line in zip(METHODS, caplog.messages, strict=True):
        setup = before.setup(Job(name, (0,)))
        method = spec.methods[name]
        more = {key: getattr(method, key) + 1 for key in method.counts if getattr(method, key)}
        spent = cost(replace(setup, method=method), budget.unit)
        assert (
            spent
            <= budget.amount
            < cost(replace(setup, method=replace(method, **more)), budget.unit)
        )
        assert f"{math.ceil(spent):,} {budget.unit} a task" in line and line.startswith(name)
    assert spec.methods["naive"].updates > 4 * spec.methods["dpmcl"].kappa * (text[0] == "f")
    spent = dpmcl.run(spec.to_table(), methods=["dpmcl"], replicas=1).records["dpmcl"].work[0]
    assert spent.flops == 2 * cost(
        replace(before.setup(Job("dpmcl", (0,))), method=spec.methods["dpmcl"]), "flops"
    )


class Growing(ER):
    """Takes a gradient for each task seen, as GEM does."""

    def phases(self, model, task):
        def update(state, batches, key):
            for _ in range(task.number + 1):
                grads, J = gradient(model.cost)(state.theta, batches["new"], key[0])
            return self.descend(state, grads, J)

        return [Phase("train", self.updates_of(task), {"new": self.new_rows()}, update)]


def test_updates_may_cost_more_from_task_to_task() -> None:
    table = {**spec_of("er").to_table(), "stream": {"name": "digits", "tasks": 4}}
    methods = {f"{__name__}:Growing": {}}
    spec, _ = limit(Spec.parse({**table, "methods": methods}), Budget.parse("rows=500"))
    (method,) = spec.methods.values()
    assert method.updates == 500 // (8 * (1 + 2 + 3 + 4) / 4)


def test_rows_that_enter_during_a_task_count_too() -> None:
    spec, _ = limit(spec_of("er_ace", "der", "la_maml"), Budget.parse("bytes=20k"))
    row, logits = 4 * 64 + 8, 4 * 10
    assert spec.methods["der"].memory == 20_000 // (row + logits)
    assert 0 < spec.methods["la_maml"].memory < spec.methods["er_ace"].memory == 19_990 // row


def test_bytes_buy_rows_of_memory(caplog) -> None:
    caplog.set_level("INFO", "dpmcl")
    row = 4 * 64 + 8  # an image of 8x8 in float32, and its class number
    spec, _ = limit(spec_of("naive", "er", "oml"), Budget.parse("bytes=2k"), "study")
    assert spec.methods["er"].memory == 2000 // row
    assert spec.methods["oml"].memory == 2000 // (2 * row)  # and as many validation rows
    assert caplog.messages[0] == "study: naive: keeps no rows, and 0 bytes of other things"
    work = dpmcl.run({**spec.to_table(), "replicas": 1}).records["er"].work[0]
    assert work.memory_bytes == 2000 // row * row
    assert (work.notes_bytes, work.copies_bytes) == (0, 0)


def test_a_method_that_draws_from_all_rows_keeps_them_all(caplog) -> None:
    methods: Any = {"joint": {}, "oml": {"reading": "original"}}
    spec = Spec.parse({**spec_of("joint").to_table(), "methods": methods})
    trainer = Trainer(spec, read_stream(spec, (0,)))
    splits = trainer.setup(Job("joint", (0,))).splits
    train, validation = (int(splits.named(name).offset[0, -1]) for name in ("train", "validation"))
    kept = {"joint": train * (4 * 64 + 8), "oml": (train + validation) * (4 * 64 + 8)}
    with pytest.raises(
        SpecError, match=f"'oml' draws from all rows .* {kept['oml']:,} bytes; give"
    ):
        limit(spec, Budget("bytes", kept["joint"]))
    caplog.set_level("INFO", "dpmcl")
    limit(spec, Budget("bytes", kept["oml"]))
    assert caplog.messages == [
        f"{name}: draws from all rows of the tasks seen: {rows:,} bytes of {kept['oml']:,}"
        for name, rows in kept.items()
    ]
    records = dpmcl.run({**spec.to_table(), "replicas": 1}).records
    assert {name: record.work[0].memory_bytes for name, record in records.items()} == kept


@pytest.mark.parametrize(
    "text", ["bytes", "flops=0", "time=3", "flops=-1", "rows=1.5.2", "rows=1e999"]
)
def test_what_is_no_budget_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"A budget is flops=N"):
        Budget.parse(text)


def test_without_a_number_every_method_has_what_dpmcl_takes() -> None:
    spec, budget = limit(spec_of("er", "dpmcl"), Budget.parse("flops"))
    work = dpmcl.run({**spec.to_table(), "replicas": 1}).records
    assert budget.amount == work["dpmcl"].work[0].flops / 2  # two tasks
    assert 0.9 * budget.amount < work["er"].work[0].flops / 2 <= budget.amount
    assert spec.methods["dpmcl"] == spec_of("dpmcl").methods["dpmcl"]
    assert Budget.parse("printed") is None
    with pytest.raises(SpecError, match="'dpmcl' takes, which is not among the methods"):
        limit(spec_of("er"), Budget.parse("rows"))


@dataclass(frozen=True, kw_only=True)
class Stubborn(ER):
    """Makes the same number of updates for any value of `updates`."""

    def updates_of(self, task, block: int = 1) -> int:
        return 20


@pytest.mark.parametrize(
    ("text", "message", "spec"),
    [
        ("rows=3", "must allow each method one update", spec_of("er")),
        ("rows=50", "passes = 1 sets them too", spec_of("er", passes=1)),
        ("bytes=5", "must allow each method one row of memory", spec_of("er")),
        ("bytes=2k", "'ewc' keeps 9,052 bytes; give more than 2,000", spec_of("er", "ewc")),
        ("rows=80", "name all its numbers of updates there", spec_of(f"{__name__}:Stubborn")),
    ],
)
def test_a_budget_that_cannot_be_kept_is_refused(text: str, message: str, spec: Spec) -> None:
    with pytest.raises(SpecError, match=message):
        limit(spec, Budget.parse(text))
