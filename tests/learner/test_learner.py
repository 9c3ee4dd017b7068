"""A learner is a run whose rows come chunk by chunk: the same step, the same numbers."""

import numpy as np
import pytest
import torch

import dpmcl
from conftest import TINY_SPEC, refused
from dpmcl import DataError, Learner, SpecError
from dpmcl.core.tree import leaves
from dpmcl.data.stream import Stream
from dpmcl.streams.python import Python
from dpmcl.training.job import Job, Trainer
from dpmcl.training.keeper import Keeping
from dpmcl.training.spec import Spec

CLOUDS = np.random.default_rng(0).normal(size=(60, 3)) + np.repeat(np.eye(3) * 6, 20, axis=0)
NAMES = np.repeat(["a", "b", "c"], 20)


def learner(**settings):
    return Learner({"name": "mlp", "hidden": 8}, **{"updates": 30, "batch": 8, "lr": 0.1, **settings})


def trained(stream: Stream, method: str, settings: dict, seeds: int = 2):
    """A run's setup and final parameters, looped."""
    table = {**TINY_SPEC, "replicas": seeds, "stream": {"name": "python", "digest": ""}}
    spec = Spec.parse({**table, "methods": {method: settings}})
    object.__setattr__(spec, "stream", Python(digest="").holding(stream))
    trainer = Trainer(spec, stream)
    job = Job(method, spec.seeds)
    return trainer.setup(job), trainer.run(job, Keeping())


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("er", {"updates": 5, "memory": 7, "optimiser": "adam"}),
        ("naive", {"passes": 1}),
        ("dpmcl", {"updates": 4, "zeta": 2, "memory": 7, "schedule": "cosine"}),
        ("er", {"updates": 3, "memory": 9, "discount": "exponential", "reset_at_task": True}),
        ("dpmcl", {"updates": 3, "memory_policy": "resample", "memory": 40, "zeta": 1}),
        ("oml", {"n_meta": 3, "n_grad": 2, "memory": 7}),
    ],
    ids=str,
)
def test_fed_the_rows_of_a_run_a_learner_ends_with_its_parameters(method, settings):
    x = torch.randn(90, 3, generator=torch.Generator().manual_seed(0)).double()
    y = torch.arange(90) % 6 + 10
    stream = Stream.from_arrays(x, y, classes_per_task=2)
    settings = {"batch": 8, **settings}
    setup, outcome = trained(stream, method, settings)
    if setup.method.trains_on_validation:
        settings["validation"] = 0.25
    network, classes = TINY_SPEC["network"], np.arange(10, 16)
    for seed in (0, 1):
        fed = Learner(network, method=method, classes=classes, seed=seed, engine="looped", **settings)
        fed._config.network.table or None
        for task in range(3):
            parts = []
            for rows in (setup.splits.train, setup.splits.validation):
                low, high = rows.offset[seed, task : task + 2].tolist()
                parts.append(rows.row[seed, low:high])
            fed = _fed(fed, x, y, parts)
        for a, b in zip(leaves(outcome.theta), leaves(fed._known.run.replicas.theta), strict=True):
            assert torch.equal(a[seed], b[0])


def _fed(fed, x, y, parts):
    train, validation = parts
    if fed._validation:
        fed._split = lambda part: {  # the run's own validation rows
            name: type(part)(x[rows], y[rows] - 10)
            for name, rows in (("train", train), ("validation", validation))
        }
    return fed.learn(x[train], y[train])
