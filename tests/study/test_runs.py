"""Studies and their folders: their files, extension by further results, and refusals."""

import json
import random
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch

import dpmcl
from conftest import TINY_SPEC, contents, fail_if_trained, refused, run_study, same_bits
from dpmcl.core.generators import states
from dpmcl.exceptions import FolderError
from dpmcl.streams.digits import Digits
from dpmcl.study import runs
from dpmcl.training.spec import Spec

UPDATES, BATCH, KAPPA, ZETA, TASKS = 3, 8, 3, 2, 2
SPEC: dict[str, Any] = {
    **TINY_SPEC,
    "replicas": 2,
    "training": {"updates": UPDATES, "batch": BATCH, "lr": 0.05},
    "methods": {"naive": {}, "er": {}},
}
BOTH: dict[str, Any] = {**SPEC, "methods": {"er": {}, "dpmcl": {"kappa": KAPPA, "zeta": ZETA}}}


def errors(folder: Path) -> list[tuple[Any, ...]]:
    """The rows of errors.parquet."""
    columns = pq.read_table(folder / "errors.parquet").to_pydict()
    return list(zip(*columns.values(), strict=True))


def parameters(folder: Path, method: str, seed: int) -> dict[str, torch.Tensor]:
    path = folder / "parameters" / method / f"seed-{seed}.safetensors"
    return safetensors.torch.load_file(path)


def same(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


# without a folder


def test_without_a_folder_nothing_is_written_and_global_generators_are_left_alone(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    before = states()
    result = dpmcl.run(SPEC)
    assert states() == before
    assert list(result.records) == ["naive", "er"]
    assert result.errors["er"].values.shape == (2, 1 + TASKS, TASKS)
    assert list(tmp_path.iterdir()) == []
    torch.rand(1), np.random.rand(), random.random()  # noqa: NPY002
    assert same_bits(result.theta, dpmcl.run(SPEC).theta)


def test_progress_counts_the_updates_of_all_replicas_and_of_all_methods():
    calls: list[tuple[str, int, int]] = []
    run_study(Spec.parse(SPEC), progress=lambda *call: calls.append(call))
    total = 2 * UPDATES * TASKS
    for method, of in (("naive", total), ("er", total), (runs.ALL, None)):
        shares = [done / whole for name, done, whole in calls if name == method]
        assert shares == sorted(shares) and shares[-1] == 1
        assert of is None or {whole for name, _, whole in calls if name == method} == {of}
    calls.clear()
    dpmcl.run(SPEC, progress=lambda *call: calls.append(call))
    assert {name for name, *_ in calls} == {"naive", "er"}


def test_a_spec_file_and_a_run_folder_are_sources(stored, tmp_path):
    folder, result = stored
    text = (folder / "spec.toml").read_text()
    (tmp_path / "my.toml").write_text(text)
    for source in (tmp_path / "my.toml", str(folder), tomllib.loads(text)):
        again = dpmcl.run(source, methods=["er"])
        assert {**again.spec, "methods": {}} == {**result.spec, "methods": {}}
        np.testing.assert_array_equal(again.errors["er"].values, result.errors["er"].values)


# the folder


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> tuple[Path, Any]:
    """A run folder with er and dpmcl, and what `run` returned. Read it only."""
    folder = tmp_path_factory.mktemp("stored") / "run"
    return folder, dpmcl.run(BOTH, out=folder)


def test_the_files_of_a_folder(stored):
    folder, _ = stored
    assert list(contents(folder)) == [
        ".lock",
        "code.json",
        "environment.json",
        "errors.parquet",
        *(f"parameters/{m}/seed-{s}.safetensors" for m in ("dpmcl", "er") for s in (0, 1)),
        "protocol.json",
        "spec.toml",
        *(f"states/{m}/seed-{s}.safetensors" for m in ("dpmcl", "er") for s in (0, 1)),
        "stream.json",
        "work.json",
    ]
    # Names are sorted: the order of a set differs between processes.
    assert list(json.loads((folder / "code.json").read_text())) == ["dpmcl", "er"]


def test_errors_parquet(stored):
    folder, result = stored
    table = pq.read_table(folder / "errors.parquet")
    names = ["method", "seed", "after", "task", "split", "error", "examples"]
    assert table.column_names == names
    assert [str(t) for t in table.schema.types] == [
        "string", "int64", "int64", "int64", "string", "double", "int64",
    ]  # fmt: skip
    rows = errors(folder)
    places = [(-1, 0), (-1, 1), (0, 0), (1, 0), (1, 1)]
    assert [row[:5] for row in rows] == [
        (method, seed, *place, "test")
        for method in ("dpmcl", "er")
        for seed in (0, 1)
        for place in places
    ]
    for method, seed, after, task, _, error, examples in rows:
        assert error == result.errors[method].values[seed, 1 + after, task]
        assert examples == 36


def test_parameters_are_the_trained_ones(stored):
    folder, result = stored
    for method in ("er", "dpmcl"):
        for seed in (0, 1):
            parts = result.theta[method].items()
            expected = {f"{part}.{k}": v[seed] for part, theta in parts for k, v in theta.items()}
            assert same(parameters(folder, method, seed), expected)


def test_json_files(stored):
    folder, _ = stored
    stream = json.loads((folder / "stream.json").read_text())
    assert stream == {
        "name": "digits",
        "kind": "classification",
        "tasks": ["0", "1"],
        "classes": [str(digit) for digit in range(10)],
        "scenario": "class-incremental, 1 class a task, order alphabetical",
        "digest": Digits(tasks=2).build([0]).digest(),
        "fields": [],
    }
    work = json.loads((folder / "work.json").read_text())
    steps = TASKS * KAPPA
    expected = {
        "er": (UPDATES * TASKS, UPDATES * TASKS * BATCH, 0),
        "dpmcl": (steps * (2 + ZETA), steps * 3 * BATCH, steps * (1 + ZETA) * 2 * BATCH),
    }
    names = ("gradient_evaluations", "rows_backpropagated", "rows_head")
    for method, numbers in expected.items():
        for seed in ("0", "1"):
            assert tuple(work[method][seed][name] for name in names) == numbers
    environment = json.loads((folder / "environment.json").read_text())
    assert [(e["method"], e["seeds"]) for e in environment] == [("dpmcl", [0, 1]), ("er", [0, 1])]
    assert {entry["engine"] for entry in environment} == {"looped"}


# growing


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> dict[str, bytes]:
    """The files of a folder with naive and er, seeds 0 and 1."""
    folder = tmp_path_factory.mktemp("small")
    dpmcl.run(SPEC, out=folder)
    return contents(folder)


@pytest.fixture
def folder(small, tmp_path) -> Path:
    """A run folder of one's own, with naive and er, seeds 0 and 1."""
    for name, content in small.items():
        path = tmp_path / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("change", "trained", "held", "seeds"),
    [
        ({"seed": 2, "replicas": 1}, {("naive", 2), ("er", 2)}, ["naive", "er"], (0, 3)),
        ({"seed": 5, "replicas": 1}, {("naive", 5), ("er", 5)}, ["naive", "er"], (5, 1)),
        (
            {"methods": ["joint", "er"], "replicas": 3},
            {("joint", 0), ("joint", 1), ("joint", 2), ("er", 2)},
            ["naive", "er", "joint"],
            (0, 3),
        ),
        ({"replicas": 1}, set(), ["naive", "er"], (0, 2)),
    ],
)
def test_a_folder_grows_by_what_is_missing(change, trained, held, seeds, folder):
    old, before = errors(folder), contents(folder)
    updates: dict[str, int] = {}  # by method, those of the missing seeds alone
    result = dpmcl.run(
        SPEC, **change, out=folder, progress=lambda name, _, total: updates.update({name: total})
    )
    each = {"naive": 2 * UPDATES, "er": 2 * UPDATES, "joint": 3 * UPDATES}  # joint: twice in task 2
    counts = Counter(method for method, _ in trained)
    assert updates == {method: each[method] * count for method, count in counts.items()}
    assert {(row[0], row[1]) for row in errors(folder)} - {(r[0], r[1]) for r in old} == trained
    assert [row for row in errors(folder) if (row[0], row[1]) not in trained] == old
    for name in before:
        if name.startswith("parameters"):
            assert (folder / name).read_bytes() == before[name]
    assert list(result.records) == held
    spec = tomllib.loads((folder / "spec.toml").read_text())
    assert list(spec["methods"]) == held
    assert (spec["seed"], spec["replicas"]) == seeds
    for method, seed in trained:
        assert parameters(folder, method, seed)
        assert seed in result.records[method].work


def test_a_grown_folder_equals_one_made_at_once(folder, tmp_path):
    dpmcl.run(SPEC, replicas=3, out=folder)
    dpmcl.run(SPEC, replicas=3, out=tmp_path / "at once")
    grown, at_once = contents(folder), contents(tmp_path / "at once")
    entries = [json.loads(files.pop("environment.json")) for files in (grown, at_once)]
    assert grown == at_once
    assert [[e["seeds"] for e in of] for of in entries] == [[[0, 1, 2]] * 2] * 2
    again = contents(folder)
    dpmcl.run(SPEC, out=folder, progress=fail_if_trained)
    assert contents(folder) == again


@pytest.mark.parametrize(
    ("settings", "entry", "old", "new"),
    [
        ({"training.lr": 0.5}, "training.lr", "0.05", "0.5"),
        ({"stream.split": [0.5, 0.25, 0.25]}, "stream.split", "[0.6, 0.2, 0.2]", "[0.5, 0.25"),
        ({"dtype": "float64"}, "dtype", "float32", "float64"),
        ({"methods.er.lr": 0.5}, "methods.er.lr", "nothing", "0.5"),
    ],
)
def test_another_setting_is_refused(settings, entry, old, new, folder):
    before = contents(folder)
    again = {"settings": settings, "replicas": 3, "out": folder, "progress": fail_if_trained}
    words = (str(folder), entry, old, new, "--out")
    refused(lambda: dpmcl.run(SPEC, **again), *words, error=FolderError)
    assert contents(folder) == before
