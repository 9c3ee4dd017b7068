"""Studies and their folders: what is written, how a folder grows, and what it survives."""

import json
import random
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch

import dpmcl
from dpmcl.core.settings import Share
from dpmcl.exceptions import FolderError, SpecError
from dpmcl.methods.naive import Naive
from dpmcl.streams.digits import Digits

UPDATES, BATCH, KAPPA, ZETA, TASKS = 3, 8, 3, 2, 2
SPEC: dict[str, Any] = {
    "replicas": 2,
    "stream": {"name": "digits", "tasks": TASKS},
    "network": {"name": "mlp", "hidden": 8},
    "training": {"updates": UPDATES, "batch": BATCH, "lr": 0.05},
    "methods": {"naive": {}, "er": {}},
    "engine": "looped",
    "device": "cpu",
}
BOTH: dict[str, Any] = {**SPEC, "methods": {"er": {}, "dpmcl": {"kappa": KAPPA, "zeta": ZETA}}}


def contents(folder: Path) -> dict[str, bytes]:
    """Every file's bytes."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def errors(folder: Path) -> list[tuple[Any, ...]]:
    """The rows of errors.parquet."""
    columns = pq.read_table(folder / "errors.parquet").to_pydict()
    return list(zip(*columns.values(), strict=True))


def leaves(theta: Mapping[str, Mapping[str, torch.Tensor]], replica: int) -> dict[str, Any]:
    """One replica's parameters by the name of a file."""
    return {f"{p}.{n}": leaf[replica] for p, part in theta.items() for n, leaf in part.items()}


def same(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def refuse(*_: Any) -> None:
    raise AssertionError("something was trained")


@dataclass(frozen=True, kw_only=True)
class Mine(Naive):
    """A user's own method: naive, with weights that shrink."""

    shrink: Share = 0.5

    def phases(self, model: Any, task: int) -> Sequence[Any]:
        (phase,) = super().phases(model, task)

        def update(*arguments: Any) -> Any:
            state = phase.update(*arguments)
            theta = {
                part: {name: leaf * (1 - self.shrink) for name, leaf in leaves.items()}
                for part, leaves in state.theta.items()
            }
            return state._replace(theta=theta)

        return [replace(phase, update=update)]


MINE = f"{Mine.__module__}:{Mine.__qualname__}"


# without a folder


def test_a_result(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    calls: list[tuple[str, int, int]] = []
    result = dpmcl.run(SPEC, watch=lambda *call: calls.append(call))
    assert list(tmp_path.iterdir()) == []  # nothing is written
    assert list(result.records) == ["naive", "er"]
    found = result.errors["er"]
    assert found.seeds == (0, 1)
    np.testing.assert_array_equal(found.examples, [[36, 36], [36, 36]])  # a fifth of 178 and 182
    np.testing.assert_array_equal(np.isnan(found.values[0]), [[0, 0], [0, 1], [0, 0]])
    wrong = found.values * 36
    np.testing.assert_allclose(wrong, wrong.round(), atol=1e-9)
    for method in ("naive", "er"):
        done = [done for name, done, _ in calls if name == method]
        assert done == sorted(done)
        assert done[0] == 0
        assert (method, UPDATES * TASKS, UPDATES * TASKS) in calls
    e = found.values
    _, row = result.rows(("backward_transfer",))
    assert row["cme_mean"] == pytest.approx(e[:, TASKS].mean())
    assert row["nte_mean"] == pytest.approx(e[:, TASKS, TASKS - 1].mean())
    assert row["backward_transfer_mean"] == pytest.approx((e[:, 1, 0] - e[:, 2, 0]).mean())
    assert [row["method"] for row in json.loads(result.table("json"))] == ["naive", "er"]
    assert result.table().split("\n")[2].split()[:3] == ["digits", "naive", "2"]
    assert len(result.plot(tmp_path / "curves.png", smooth=1).axes) == 2
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_arguments_of_run():
    settings = {"training.lr": 0.5, "network.hidden": 4}
    changes = {"methods": ["er"], "replicas": 1, "seed": 4, "tasks": 3, "engine": "batched"}
    result = dpmcl.run(SPEC, settings=settings, **changes)
    assert list(result.errors) == ["er"]
    assert result.errors["er"].seeds == (4,)
    assert result.errors["er"].tasks == 3
    assert result.spec["training"]["lr"] == 0.5
    assert result.spec["network"] == {"name": "mlp", "hidden": 4}
    assert result.spec["engine"] == "batched"
    assert SPEC["stream"] == {"name": "digits", "tasks": TASKS}


def test_work_is_counted():
    work = {name: record.work for name, record in dpmcl.run(BOTH).records.items()}
    assert set(work["er"]) == set(work["dpmcl"]) == {0, 1}
    er, ours = work["er"][1], work["dpmcl"][1]
    assert er.gradient_evaluations == UPDATES * TASKS
    assert er.rows_backpropagated == UPDATES * TASKS * BATCH
    assert ours.gradient_evaluations == KAPPA * (2 + ZETA) * TASKS
    rows = [n for name, n in vars(ours).items() if name in ("rows_backpropagated", "rows_head")]
    assert sum(rows) == KAPPA * TASKS * (5 + 2 * ZETA) * BATCH


def test_global_random_states_are_left_alone():
    def states() -> tuple[Any, ...]:
        name, words, *rest = np.random.get_state()  # noqa: NPY002
        state = torch.random.get_rng_state().tolist()
        return state, (name, words.tolist(), *rest), random.getstate()

    results = []
    for seed in (1, 4):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        before = states()
        results.append(dpmcl.run(BOTH))
        assert states() == before
    first, second = results
    for name in BOTH["methods"]:
        np.testing.assert_array_equal(first.errors[name].values, second.errors[name].values)
        assert same(leaves(first.theta[name], 1), leaves(second.theta[name], 1))


def test_a_replica_depends_on_its_seed_alone():
    """And a method not on the others."""
    many = dpmcl.run(BOTH, seed=0, replicas=4)
    for name in BOTH["methods"]:
        alone = dpmcl.run(BOTH, methods=[name], seed=3, replicas=1)
        np.testing.assert_array_equal(alone.errors[name].values[0], many.errors[name].values[3])
        theta = leaves(many.theta[name], 3)
        assert same(leaves(alone.theta[name], 0), theta)
        other = leaves(many.theta[name], 2)
        assert not any(torch.equal(theta[key], other[key]) for key in theta)


def test_a_class_of_ones_own(tmp_path):
    result = dpmcl.run(SPEC, methods=["naive", Mine], out=tmp_path)
    assert list(result.errors) == ["naive", MINE]
    assert tomllib.loads((tmp_path / "spec.toml").read_text())["methods"][MINE] == {"shrink": 0.5}
    assert dpmcl.load(tmp_path).errors[MINE].seeds == (0, 1)
    theta = leaves(result.theta[MINE], 1)
    file = tmp_path / "parameters" / MINE.replace(":", ".") / "seed-1.safetensors"
    assert same(safetensors.torch.load_file(file), theta)
    by_name = dpmcl.run({**SPEC, "methods": {MINE: {"shrink": 0.5}}})
    assert same(leaves(by_name.theta[MINE], 1), theta)
    other = dpmcl.run(SPEC, methods=[Mine], settings={f'methods."{MINE}".shrink': 0.0})
    assert same(leaves(other.theta[MINE], 1), leaves(result.theta["naive"], 1))
    with pytest.raises(SpecError, match="shrink must be less than 1"):
        dpmcl.run({**SPEC, "methods": {MINE: {"shrink": 1.0}}})


# the folder


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> tuple[Path, Any]:
    """A run folder with er and dpmcl, and what `run` returned. Read it only."""
    folder = tmp_path_factory.mktemp("stored") / "run"
    return folder, dpmcl.run(BOTH, out=folder)


def test_the_files_of_a_folder(stored):
    folder, result = stored
    assert list(contents(folder)) == [
        ".lock",
        "code.json",
        "environment.json",
        "errors.parquet",
        *(f"parameters/{m}/seed-{s}.safetensors" for m in ("dpmcl", "er") for s in (0, 1)),
        "spec.toml",
        "stream.json",
        "work.json",
    ]
    for method, theta in result.theta.items():
        for seed in (0, 1):
            file = folder / "parameters" / method / f"seed-{seed}.safetensors"
            assert same(safetensors.torch.load_file(file), leaves(theta, seed))
    assert json.loads((folder / "stream.json").read_text()) == {
        "name": "digits",
        "kind": "classification",
        "tasks": ["0", "1"],
        "classes": [str(digit) for digit in range(10)],
        "scenario": "class-incremental, 1 class a task, order alphabetical",
        "digest": Digits(tasks=2).build([0]).digest(),
    }
    work = json.loads((folder / "work.json").read_text())
    assert work["er"]["1"] == vars(result.records["er"].work[1])
    environment = json.loads((folder / "environment.json").read_text())
    assert {(e["method"], *e["seeds"]) for e in environment} == {("er", 0, 1), ("dpmcl", 0, 1)}
    for entry in environment:
        assert entry["torch"] == torch.__version__
        assert (entry["engine"], entry["device"]) == ("looped", "cpu")
        assert entry["repeats"] == "byte for byte"


def test_spec_toml_is_complete_and_a_source(stored, tmp_path):
    folder, result = stored
    text = (folder / "spec.toml").read_text()
    spec = tomllib.loads(text)
    assert spec == result.spec
    assert spec["training"]["lr"] == 0.05
    assert spec["training"]["memory"] == 20000
    assert spec["methods"]["dpmcl"]["third_term"] == "constant"
    (tmp_path / "my.toml").write_text(text)
    for source in (tmp_path / "my.toml", str(folder), spec):
        again = dpmcl.run(source, out=tmp_path / "run")
        assert again.spec == spec
        np.testing.assert_array_equal(again.errors["er"].values, result.errors["er"].values)


def test_errors_parquet(stored):
    folder, result = stored
    schema = pq.read_schema(folder / "errors.parquet")
    assert dict(zip(schema.names, map(str, schema.types), strict=True)) == {
        "method": "string", "seed": "int64", "after": "int64", "task": "int64", "split": "string",
        "error": "double", "examples": "int64",
    }  # fmt: skip
    places = [(-1, 0), (-1, 1), (0, 0), (1, 0), (1, 1)]
    assert errors(folder) == [
        (method, seed, *at, "test", result.errors[method].values[seed, 1 + at[0], at[1]], 36)
        for method in ("dpmcl", "er")
        for seed in (0, 1)
        for at in places
    ]


def test_load_gives_what_run_gave(stored):
    folder, result = stored
    loaded = dpmcl.load(folder)
    assert loaded.spec == result.spec
    assert loaded.table("json") == result.table("json")
    assert list(loaded.records) == ["er", "dpmcl"]
    assert loaded.theta == {}
    unstored = dpmcl.run(BOTH)
    for name in BOTH["methods"]:
        np.testing.assert_array_equal(loaded.errors[name].values, unstored.errors[name].values)
        np.testing.assert_array_equal(loaded.errors[name].examples, unstored.errors[name].examples)


@pytest.mark.parametrize("engine", ["looped", "batched"])
def test_the_same_spec_gives_the_same_bytes(engine, tmp_path):
    for name in ("first", "second"):
        dpmcl.run(BOTH, engine=engine, out=tmp_path / name)
    first, second = contents(tmp_path / "first"), contents(tmp_path / "second")
    assert first.pop("environment.json")
    assert second.pop("environment.json")
    assert first == second


def test_further_splits_and_future_tasks_are_further_rows(tmp_path):
    settings = {"evaluation.train": True, "evaluation.future": True}
    result = dpmcl.run(SPEC, methods=["er"], replicas=1, settings=settings, out=tmp_path)
    places = [(after, task) for after in (-1, 0, 1) for task in (0, 1)]
    assert [row[1:5] for row in errors(tmp_path)] == [
        (0, *place, split) for split in ("test", "train") for place in places
    ]
    plain = dpmcl.run(SPEC, methods=["er"], replicas=1).errors["er"].values
    seen = np.isfinite(plain)
    np.testing.assert_array_equal(result.errors["er"].values[seen], plain[seen])
    training = dpmcl.load(tmp_path).records["er"].errors["train"]
    assert np.isfinite(training.values).all()
    np.testing.assert_array_equal(training.examples, [[107, 109]])
    (row,) = result.rows(("forward_transfer",))
    assert row["forward_transfer_mean"] is not None


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
    ("change", "trained", "methods", "seeds"),
    [
        ({"replicas": 3}, {("naive", 2), ("er", 2)}, ["naive", "er"], (0, 3)),
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
def test_a_folder_grows_by_what_is_missing(change, trained, methods, seeds, folder):
    old, was = errors(folder), contents(folder)
    calls: set[str] = set()
    result = dpmcl.run(SPEC, **change, out=folder, watch=lambda name, *_: calls.add(name))
    assert calls == {method for method, _ in trained}
    assert {row[:2] for row in errors(folder)} - {row[:2] for row in old} == trained
    assert [row for row in errors(folder) if row[:2] not in trained] == old
    now = contents(folder)
    for name in was:
        assert not name.startswith("parameters") or now[name] == was[name]
    assert trained or now == was
    spec = tomllib.loads((folder / "spec.toml").read_text())
    assert list(result.records) == list(spec["methods"]) == methods
    assert (spec["seed"], spec["replicas"]) == seeds
    fresh = dpmcl.run(SPEC, **change)
    for method, seed in trained:
        mine, theirs = (r.errors[method].seeds.index(seed) for r in (result, fresh))
        np.testing.assert_array_equal(
            result.errors[method].values[mine], fresh.errors[method].values[theirs]
        )
        file = f"parameters/{method}/seed-{seed}.safetensors"
        assert same(safetensors.torch.load(now[file]), leaves(fresh.theta[method], theirs))
        assert seed in result.records[method].work


def test_a_grown_folder_equals_one_made_at_once(folder, tmp_path):
    dpmcl.run(SPEC, replicas=3, out=folder)
    dpmcl.run(SPEC, replicas=3, out=tmp_path / "at once")
    grown, made = contents(folder), contents(tmp_path / "at once")
    entries = [json.loads(files.pop("environment.json")) for files in (grown, made)]
    assert grown == made
    assert [e["seeds"] for e in entries[0]] == [[0, 1], [0, 1], [2], [2]]


@pytest.mark.parametrize(
    ("settings", "entry", "old", "new"),
    [
        ({"training.lr": 0.5}, "training.lr", "0.05", "0.5"),
        ({"training.memory_policy": "resample"}, "training.memory_policy", "reservoir", "resample"),
        ({"stream.split": [0.5, 0.25, 0.25]}, "stream.split", "[0.6, 0.2, 0.2]", "[0.5, 0.25"),
        ({"network.hidden": 9}, "network.hidden", "8", "9"),
        ({"evaluation.future": True}, "evaluation.future", "False", "True"),
        ({"dtype": "float64"}, "dtype", "float32", "float64"),
        ({"methods.er.lr": 0.5}, "methods.er.lr", "nothing", "0.5"),
        ({"monitor.exceeding": "freeze"}, "monitor.exceeding", "say", "freeze"),
    ],
)
def test_another_setting_is_refused(settings, entry, old, new, folder):
    was = contents(folder)
    with pytest.raises(FolderError) as caught:
        dpmcl.run(SPEC, settings=settings, replicas=3, out=folder, watch=refuse)
    line = str(caught.value)
    assert "\n" not in line
    for word in (str(folder), entry, old, new, "--out"):
        assert word in line
    assert contents(folder) == was


def test_device_engine_and_what_is_said_may_differ(folder):
    old = errors(folder)
    settings = {"monitor.beta": 9.0, "on_divergence": "stop", "threads": 2}
    dpmcl.run(SPEC, engine="batched", device="auto", replicas=3, out=folder, settings=settings)
    assert [row for row in errors(folder) if row[1] < 2] == old
    entries = json.loads((folder / "environment.json").read_text())
    assert [e["engine"] for e in entries] == ["looped", "looped", "batched", "batched"]
    assert entries[-1]["seeds"] == [2]


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path):
    def stop(method: str, done: int, total: int) -> None:
        if method == "er" and done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dpmcl.run(SPEC, out=tmp_path / "run", watch=stop)
    assert {row[0] for row in errors(tmp_path / "run")} == {"naive"}
    calls: set[str] = set()
    dpmcl.run(SPEC, out=tmp_path / "run", watch=lambda name, *_: calls.add(name))
    assert calls == {"er"}
    dpmcl.run(SPEC, out=tmp_path / "fresh")
    assert errors(tmp_path / "run") == errors(tmp_path / "fresh")
