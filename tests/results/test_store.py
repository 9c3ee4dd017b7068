"""A run folder is read as it was written, or refused in one line; records merge by seed."""

import json
import re
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from conftest import complaint
from dpmcl.core.errors import Errors
from dpmcl.core.gradients import Work
from dpmcl.exceptions import FolderError, SpecError
from dpmcl.results import store
from dpmcl.results.record import Divergence, Record, merge
from dpmcl.results.store import Protocol, Rule, StreamInfo
from dpmcl.theory.readings import Readings

SPEC = {"stream": "s", "methods": {"er": {}, "dpmcl": {}}}
STREAM = StreamInfo("s", "classification", ("a", "b"), ("x", "y"), digest="abc")
NAMES = [field.name for field in fields(Work)]


def record(*seeds: int, shift: float = 0.0) -> Record:
    """Errors before, after and on two tasks, work, a divergence and predictions of some seeds."""
    n = len(seeds)
    values = np.arange(6.0).reshape(1, 3, 2) / 10 + np.reshape(seeds, (n, 1, 1)) + shift
    values[:, 1, 1] = np.nan
    return Record(
        {s: Errors(seeds, values, np.full((n, 2), 36)) for s in ("test", "train")},
        {seed: Work(*range(seed, seed + len(NAMES))) for seed in seeds},
        {s: Divergence(1, 0, 7) if s % 2 else Divergence(0, 0, 2, "cost") for s in seeds},
        predictions={
            "test": np.arange(n * 4).reshape(n, 2, 2) + np.reshape(seeds, (n, 1, 1)),
            "train": np.full((n, 3), 0.5 + shift, np.float32),
        },
    )


def save(folder: Path, **records: Record) -> None:
    store.save_start(folder, SPEC, STREAM, {})
    store.save_records(folder, records)


def assert_same(first: Record, second: Record) -> None:
    assert first.test.seeds == second.test.seeds
    for split in ("test", "train"):
        for a, b in ((getattr(r.errors[split], n) for r in (first, second))
                     for n in ("values", "examples")):  # fmt: skip
            np.testing.assert_array_equal(a, b)
    assert (first.work, first.diverged) == (second.work, second.diverged)
    assert first.predictions is not None and second.predictions is not None
    for name, values in first.predictions.items():
        np.testing.assert_array_equal(values, second.predictions[name], strict=True)


def test_a_folder_is_read_as_it_was_written(tmp_path):
    plain = Record(record(0).errors)
    save(tmp_path, dpmcl=record(0, 3), er=plain)
    loaded = store.load(tmp_path)
    assert (loaded.spec, loaded.stream) == (SPEC, STREAM)
    assert list(loaded.records) == ["er", "dpmcl"]  # the spec's order
    assert_same(loaded.records["dpmcl"], record(0, 3))
    assert loaded.records["er"].predictions is None
    assert loaded.records["er"].work == {}
    assert list(pq.read_table(tmp_path / "errors.parquet")["seed"].to_pylist()[::5]) == [
        0, 3, 0, 3, 0, 0,
    ]  # fmt: skip


def test_records_merge_by_seed():
    parts = {(0, 3): record(0, 3), (1,): record(1, shift=9.0), (2,): record(2)}
    merged = merge(parts[0, 3], merge(parts[1,], parts[2,]))
    assert merged.test.seeds == (0, 1, 2, 3)
    assert merged.predictions is not None
    for at, part in ((list(seeds), part) for seeds, part in parts.items()):
        for split, errors in part.errors.items():
            np.testing.assert_array_equal(merged.errors[split].values[at], errors.values)
            np.testing.assert_array_equal(merged.errors[split].examples[at], errors.examples)
        assert {seed: merged.work[seed] for seed in at} == part.work
        assert {seed: merged.diverged[seed] for seed in at} == part.diverged
        np.testing.assert_array_equal(merged.predictions["train"][at], part.predictions["train"])
    np.testing.assert_array_equal(merged.predictions["test"][:, 0, 0], [0, 1, 2, 7])
    assert merge(record(0), Record(record(1).errors)).predictions is None
    with pytest.raises(ValueError, match="different seeds"):
        merge(record(0, 3), record(3))
    wide = replace(record(1), predictions={"test": np.zeros((1, 3, 2)), "train": np.zeros((1, 3))})
    for pair in ((record(0), wide), (wide, record(0))):
        with pytest.raises(SpecError, match="the same number of test rows, got 2 and 3"):
            merge(*pair)


def test_readings_of_other_seeds_and_positions_merge():
    first, last = (0, 0, 0), (1, 0, 0)
    watched = replace(record(0, 3), readings=Readings((0, 3), (last,), np.ones((2, 1, 5))))
    again = replace(record(1), readings=Readings((1,), (first, last), np.full((1, 2, 5), 2.0)))
    merged = merge(merge(watched, record(2)), again).readings
    assert (merged.seeds, merged.positions) == ((0, 1, 2, 3), (first, last))
    expected = [[np.nan, 1], [2, 2], [np.nan, np.nan], [np.nan, 1]]
    np.testing.assert_array_equal(merged.values[:, :, 4], expected)


def test_a_crash_may_leave_other_files_ahead_of_the_errors(tmp_path):
    save(tmp_path, er=record(0))
    old = (tmp_path / "errors.parquet").read_bytes()
    store.save_records(tmp_path, {"er": record(0, 1), "dpmcl": record(0)})
    (tmp_path / "errors.parquet").write_bytes(old)
    loaded = store.load(tmp_path).records
    assert list(loaded) == ["er"]
    assert loaded["er"].test.seeds == tuple(loaded["er"].work) == (0,)
    assert loaded["er"].predictions is not None
    assert len(loaded["er"].predictions["test"]) == 1


def test_a_job_that_is_stored_while_the_folder_is_read(tmp_path, monkeypatch):
    save(tmp_path, er=record(0))
    real = store.errors_file.read

    def read(path: Path, tasks: int) -> Any:
        save(tmp_path, er=record(0, 1))
        return real(path, tasks)

    monkeypatch.setattr(store.errors_file, "read", read)
    er = store.load(tmp_path).records["er"]
    assert er.test.seeds == (0, 1)
    assert er.work.keys() == er.diverged.keys() == {0, 1}


def test_work_of_an_older_folder_and_of_another(tmp_path):
    save(tmp_path, er=record(0))
    work = {"gradient_evaluations": 3, "rows_backpropagated": 4}
    (tmp_path / "work.json").write_text(json.dumps({"er": {"0": work}}))
    loaded = store.load(tmp_path).records["er"].work[0]
    assert asdict(loaded) == {**asdict(Work()), **work}
    (tmp_path / "work.json").write_text(json.dumps({"er": {"0": {**work, "more": 1}}}))
    with pytest.raises(FolderError, match=r"is damaged: work\.json.*'more'.*gradient_evaluations"):
        store.load(tmp_path)


def drop(column: str) -> Any:
    def change(path: Path) -> None:
        pq.write_table(pq.read_table(path).drop_columns([column]), path)

    return change


def predict(values: Any, seeds: str) -> Any:
    return lambda path: save_file({"test/er": values}, path, {"seeds": seeds})


@pytest.mark.parametrize(
    ("name", "change", "word"),
    [
        ("errors.parquet", b"PAR1 nonsense PAR1", ""),
        ("errors.parquet", lambda path: path.write_bytes(path.read_bytes()[:300]), ""),
        ("errors.parquet", drop("examples"), "examples"),
        ("spec.toml", b"\xff\xfe", "codec"),
        ("spec.toml", lambda path: path.write_text(path.read_text() + "lr = 1\n"), "was edited"),
        ("stream.json", None, r"stream\.json is missing"),
        ("stream.json", b"{", r"stream\.json: Invalid JSON"),
        ("work.json", b'{"er": {"0": {"gradient_evaluations": -1}}}', "greater than or equal to 0"),
        ("divergence.json", b'{"er": {"0": {"task": 1}}}', "phase"),
        ("protocol.json", b'{"budget": "flops", "rules": []}', "pattern"),
        ("environment.json", b'[{"torch": "2.1', "Invalid JSON"),
        ("environment.json", b"[1]", "an object"),
        ("predictions.safetensors", b"\0", ""),
        ("predictions.safetensors", predict(np.zeros((2, 3)), "{}"), "'er'"),
        ("predictions.safetensors", predict(np.zeros(2) > 0, '{"er": [0, 3]}'), "'er'"),
        ("predictions.safetensors", predict(np.zeros(2), "x"), "JSON"),
    ],
)
def test_a_damaged_folder_is_one_line(name, change, word, tmp_path):
    save(tmp_path, er=record(0, 3))
    path = tmp_path / name
    if change is None:
        path.unlink()
    elif callable(change):
        change(path)
    else:
        path.write_bytes(change)
    line = complaint(store.load, tmp_path, error=FolderError)
    assert re.search(f"{tmp_path} is damaged: .*{word}", line)


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(FolderError, match=r"has no spec\.toml.*dpmcl run"):
        store.load(tmp_path)
    with pytest.raises(FolderError, match=r"does not exist.*dpmcl run"):
        store.load(tmp_path / "nowhere")
    save(tmp_path / "one", er=record(0))
    with pytest.raises(FolderError, match=r"holds run folders; give them, as in .*/\*/\."):
        store.load(tmp_path)
    save(tmp_path / "run", er=record(0))
    with pytest.raises(FolderError, match=r"is a file of a run folder; give the folder"):
        store.load(tmp_path / "run" / "errors.parquet")


def test_a_protocol_passed_if_no_rule_is_violated():
    kept, broken = Rule("a rule", []), Rule("another rule", ["er"])
    passed = [Protocol(None, [kept, rule]).to_table()["passed"] for rule in (kept, broken)]
    assert passed == [True, False]
