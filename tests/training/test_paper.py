"""All that the paper ran, in small: four streams, six methods, real pixels, real loaders."""

import numpy as np
import pytest

import dpmcl
from dpmcl.study.api import Request

SIX = ["naive", "dpmcl", "oml", "cml", "anml", "er"]
SMALL = {
    "training.updates": 4,
    "training.batch": 4,
    "evaluation.test_rows": 20,
    "network.hidden": 16,
    "methods.dpmcl.kappa": 2,
    "methods.dpmcl.zeta": 1,
    **{f"methods.{m}.{n}": 2 for m in ("oml", "cml", "anml") for n in ("n_meta", "n_grad")},
}


ODD = {"training.batch": 64, "training.memory": 10**6}


@pytest.mark.data
@pytest.mark.parametrize(
    ("preset", "replicas", "odd"),
    [
        ("sine", 2, {}),
        ("omniglot", 2, {"training.batch": 1}),
        ("mnist", 1, {}),
        ("cifar10", 1, ODD),
    ],
)
def test_every_stream_runs_with_every_method(preset, replicas, odd, data, monkeypatch):
    monkeypatch.setenv("DPMCL_DATA", str(data))
    result = dpmcl.run(f"paper-{preset}", replicas=replicas, tasks=3, settings={**SMALL, **odd})
    assert list(result.records) == SIX
    for errors in result.errors.values():
        lower = np.tril_indices(3)
        assert np.isfinite(errors.after[:, lower[0], lower[1]]).all()
        assert np.isnan(errors.after[:, 0, 1:]).all()
    rows = {row["method"]: row for row in result.rows()}
    assert rows["dpmcl"]["gradient_evaluations"] == 3 * 2 * 3
    assert rows["er"]["rows_backpropagated"] == 3 * 4 * odd.get("training.batch", 4)


TABLE = {  # appendix B.3: lr, replicas, tasks, hidden, outputs, kappa, zeta, N_meta, N, D_P, batch
    "sine": (1e-3, 50, 50, 100, 100, 300, 2, 150, 300, 1000, 64),
    "omniglot": (1e-4, 50, 50, 100, 50, 200, 2, 100, 200, 20000, 8),
    "mnist": (1e-4, 50, 10, 512, 10, 300, 5, 150, 300, 20000, 32),
    "cifar10": (1e-4, 50, 10, 512, 10, 600, 5, 300, 600, 100000, 512),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_printed_settings_are_the_papers(name):
    spec = Request(f"paper-{name}").spec()
    dp, oml = spec.methods["dpmcl"], spec.methods["oml"]
    found = (
        dp.lr, spec.replicas, spec.stream.tasks, spec.network.hidden, TABLE[name][4],
        dp.kappa, dp.zeta, oml.n_meta, dp.updates, dp.memory, dp.batch,
    )  # fmt: skip
    assert found == TABLE[name]
    assert dp.optimiser == "adagrad"
    assert oml.n_grad == oml.n_meta
    assert list(spec.methods) == SIX


@pytest.mark.parametrize("name", ["sine", "omniglot", "mnist", "cifar10"])
def test_a_short_name_differs_from_the_paper_in_its_step_and_replicas_only(name):
    first, second = (Request(source).spec().to_table() for source in (name, f"paper-{name}"))
    for key in ("stream", "network", "evaluation", "dtype"):
        assert first[key] == second[key]
    step = {"optimiser", "lr"}
    methods = [
        {
            name: {k: v for k, v in own.items() if k not in step}
            for name, own in t["methods"].items()
        }
        for t in (first, second)
    ]
    assert methods[0] == methods[1]
    kept = [{k: v for k, v in t["training"].items() if k not in step} for t in (first, second)]
    assert kept[0] == kept[1]
