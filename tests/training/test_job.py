"""Jobs: cut from the seeds asked for, checked before training, the same alone and in a spec."""

from dataclasses import dataclass

import pytest
import torch

import dpmcl
from conftest import SHARES, refused
from dpmcl.core.tree import leaves
from dpmcl.data.scaling import fit_scale
from dpmcl.data.splits import split
from dpmcl.data.stream import Stream
from dpmcl.exceptions import SpecError
from dpmcl.methods.naive import Naive
from dpmcl.training.job import Job, Trainer, fingerprint_of_data, read_stream
from dpmcl.training.keeper import Keeping
from dpmcl.training.spec import Spec


def trainer(*methods: str, **top) -> Trainer:
    spec = Spec.parse({
        "stream": {"name": "digits", "tasks": 2}, "network": {"name": "mlp", "hidden": 4},
        "training": {"updates": 3, "batch": 4}, "methods": list(methods), "replicas": 3, "seed": 5,
        "device": "cpu", "engine": "looped", **top,
    })  # fmt: skip
    return Trainer(spec, read_stream(spec, spec.seeds))


def test_every_seed_of_every_method_is_in_one_job_and_runs_as_in_a_study():
    job_trainer = trainer("er", "naive")
    jobs = job_trainer.jobs()
    for name in ("er", "naive"):
        assert [s for job in jobs if job.method == name for s in job.seeds] == [5, 6, 7]
    seen = []
    outcome = job_trainer.run(jobs[0], Keeping(), lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] == 2 * 3 * len(jobs[0].seeds)
    assert not outcome.resumed
    whole = dpmcl.run(job_trainer.spec.to_table())
    for a, b in zip(leaves(outcome.state.theta), leaves(whole.theta["er"]), strict=True):
        assert torch.equal(a, b[: len(a)])


SINE = {"name": "sine", "tasks": 2, "rows": 20, "outputs": 3}


@pytest.mark.parametrize(
    ("top", "message"),
    [
        ({"monitor": {"drift": "exact"}}, "'exact' needs a stream that knows"),
        ({"evaluation": {"arriving": True}}, "needs training.passes = 1"),
        ({"evaluation": {"confusion": True}, "stream": SINE}, "a regression has none"),
    ],
)
def test_a_job_is_checked_before_a_folder_is_begun(top, message, tmp_path):
    table = trainer("er", **top).spec.to_table()
    refused(lambda: dpmcl.run(table, out=tmp_path / "run"), message, error=SpecError)
    assert not (tmp_path / "run").exists()


def test_the_engine_is_chosen_by_the_largest_batch_of_all_methods(monkeypatch):
    batches = []
    monkeypatch.setattr("dpmcl.training.job.choose", lambda *_, batch, **__: batches.append(batch))
    for methods in ({"er": {"batch": 9}, "naive": {}}, {"er": {}, "naive": {"batch": 9}}):
        _ = trainer(methods=methods).engine
    assert batches == [9, 9]


@pytest.mark.parametrize(
    ("flops", "sizes"), [(10**10, [7, 7]), (2 * 10**13, [4, 4, 4, 2]), (10**15, [1] * 14)]
)
def test_jobs_that_would_take_hours_are_cut_by_their_flops(flops, sizes, monkeypatch):
    job_trainer = trainer("er", replicas=14, engine="batched")
    monkeypatch.setattr(Trainer, "flops", lambda self, method: flops)
    assert [len(seeds) for seeds in job_trainer.groups("er")] == sizes


@dataclass(frozen=True, kw_only=True)
class Distils(Naive):
    """After a task, passes two rows through the network."""

    def end_of_task(self, state, model, task):
        model.predict(state.theta, torch.zeros(2, *task.input_shape))
        return state


def test_flops_of_a_run_are_those_that_its_training_takes():
    der, oml = {"enters": "after"}, {"reading": "original"}
    methods = {"dpmcl": {}, "ewc": {}, "joint": {}, "der": der, "oml": oml}
    job_trainer = trainer(replicas=1, methods={**methods, f"{__name__}:Distils": {}})
    planned = {name: job_trainer.flops(name) for name in job_trainer.spec.methods}
    counted = {
        name: job_trainer.run(Job(name, (5,)), Keeping()).record.work[5].flops for name in planned
    }
    assert planned == counted
    products = 2 * (64 * 4 + 4 * 4 + 4 * 4 + 4 * 10)  # the four layers, for one row
    naive = trainer("naive").flops("naive")
    assert planned[f"{__name__}:Distils"] == naive + 2 * 2 * products


def test_a_fingerprint_of_data_does_not_depend_on_their_scale():
    stream = Stream.from_table({"size": [*range(12)], "kind": ["a", "b"] * 6}, target="kind")
    scaled = fit_scale(stream, split(stream, [0], SHARES))
    assert scaled.digest() != stream.digest()
    assert fingerprint_of_data(scaled) == fingerprint_of_data(stream) == stream.digest()
