"""A learner goes on where a replica of a run ended."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from test_learner import CLOUDS, NAMES, parameters

import dpmcl
from conftest import TINY_SPEC, refused, same_bits
from dpmcl import SpecError, Stream, plugins
from dpmcl.core.tree import at
from dpmcl.data import labelled
from dpmcl.exceptions import FolderError
from dpmcl.training.job import read_stream, scaled_and_split

CHUNK = {"colour": ["r", "g"], "size": [1.0, 2.0]}
SPEC = {**TINY_SPEC, "replicas": 2, "methods": {"er": {"memory": 9}}, "engine": "auto"}


def table(path):
    rows = [f"{x:.3f},{c},{k}" for x, c, k in zip(CLOUDS[:, 0], "rg" * 30, NAMES, strict=True)]
    path.write_text("\n".join(["size,colour,kind", *rows]) + "\n")
    return {**SPEC, "stream": {"name": "table", "path": str(path), "target": "kind"}}


def test_it_predicts_what_the_run_predicted_and_goes_on(tmp_path):
    settings = {"evaluation.predictions": True}
    first = dpmcl.run(SPEC, out=tmp_path / "run", settings=settings)
    for result in (first, dpmcl.load(tmp_path / "run")):
        learner = result.learner("er", seed=1)
        assert same_bits(at(first.theta["er"], 1), tuple(leaf[0] for leaf in parameters(learner)))
        assert learner._known.chunks == 2
        assert len(learner._known.held.x) == 9
        spec = first.made
        stream, splits = scaled_and_split(spec, read_stream(spec, (1,)), (1,))
        row = splits.test.row[0]
        predicted = result.records["er"].predictions["test"][1]
        assert (learner.predict(stream.x[row]) == learner.classes_[predicted]).all()
        assert learner.classes_.dtype == np.int64
        learner.learn(stream.x[row], learner.classes_[stream.y[row]])
        assert learner._known.chunks == 3
        assert (learner.save(tmp_path / "saved") / "learner.json").exists()


def test_a_table_keeps_its_columns_categories_and_scales(tmp_path):
    spec = table(tmp_path / "rows.csv")
    result = dpmcl.run(spec, out=tmp_path / "run")
    learner = result.learner("er", seed=1)
    rows = CHUNK
    assert {*learner.predict(rows)} <= {"a", "b", "c"}
    assert (learner.predict({**rows, "kind": [None, None]}) == learner.predict(rows)).all()
    refused(lambda: learner.predict({**rows, "colour": ["r", "b"]}), "got 'b' in row 1")
    scale = learner._known.setup.stream.scale
    assert scale is not None
    assert scale.x_deviation[0, 0] != 1
    (tmp_path / "rows.csv").unlink()
    again = dpmcl.load(tmp_path / "run").learner("er", seed=1)
    assert (again.predict_proba(rows) == learner.predict_proba(rows)).all()


def test_a_memory_that_holds_rows_repeatedly_has_room_for_new_ones():
    """Of the 36 rows of the run 240 entered; of the learner's chunk 80 do. Of 400 slots 80 stay."""
    stream = Stream.from_arrays(CLOUDS, NAMES, classes_per_task=1)
    settings = {"training.updates": 20, "training.batch": 4, "training.memory": 400, "workers": 1}
    learner = dpmcl.run(stream, methods=["er_ace"], replicas=1, settings=settings).learner("er_ace")
    learner.learn(CLOUDS[:4], NAMES[:4])
    (filled,), held = learner._known.run.memories["train"].filled.tolist(), learner._known.held
    tasks = held.task[held.row["train"][0, :filled]].tolist()
    assert sorted(set(tasks[:240])) == [0, 1, 2]
    assert tasks[240:] == [3] * 80


def test_rows_of_a_long_memory_are_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr("dpmcl.training.last_state.MAX_BYTES", 0)
    monkeypatch.setattr("dpmcl.training.last_state.held_rows", None)  # they may not fit in memory
    spec = table(tmp_path / "rows.csv")
    result = dpmcl.run(spec, out=tmp_path / "long")
    monkeypatch.undo()
    kept = dpmcl.run(spec, out=tmp_path / "short")
    states = [
        load_file(tmp_path / name / "states/er/seed-1.safetensors") for name in ("long", "short")
    ]
    assert [len(state["held.x"]) for state in states] == [0, 9]
    learner, other = (
        each.learner("er", seed=1).learn(CHUNK, ["a", "b"]) for each in (result, kept)
    )
    assert same_bits(parameters(learner), parameters(other))
    (tmp_path / "rows.csv").write_text((tmp_path / "rows.csv").read_text().replace("a\n", "b\n", 1))
    refused(lambda: result.learner("er"), "have changed", error=FolderError)


def test_every_method_predicts_as_its_run_did_and_goes_on_or_says_why_not():
    methods = {name: {"memory": 9} for name in plugins.names("method")}
    result = dpmcl.run({**SPEC, "methods": methods}, settings={"evaluation.predictions": True})
    stream, splits = scaled_and_split(result.made, read_stream(result.made, (1,)), (1,))
    rows = stream.x[splits.test.row[0]]
    for name in methods:
        learner = result.learner(name, seed=1)
        predicted = result.records[name].predictions["test"][1]
        assert (learner.predict(rows) == learner.classes_[predicted]).all(), name
        with (
            pytest.raises(SpecError, match="only its memory") if name == "joint" else nullcontext()
        ):
            learner.learn(rows, learner.predict(rows))


def test_inputs_that_a_stream_leaves_unscaled_stay_so(tmp_path):
    x = CLOUDS * 100
    data = replace(labelled.from_arrays(x, NAMES), scaled=torch.tensor([True, True, False]))
    result = dpmcl.run(
        Stream.of(data), methods=["er"], replicas=1, settings={"training.updates": 2}
    )
    learner = result.learner("er").learn(x[:9], NAMES[:9])
    stream = learner._known.setup.stream
    assert stream.scaled.tolist() == [True, True, False]
    again = dpmcl.Learner.load(learner.save(tmp_path / "one"))
    assert again._known.setup.stream.scaled.tolist() == [True, True, False]
    assert (again.predict_proba(x) == learner.predict_proba(x)).all()


def test_what_is_not_there_is_refused(tmp_path):
    result = dpmcl.run(Stream.from_arrays(CLOUDS, NAMES), methods=["er"], replicas=1,
                       settings={"training.updates": 2})  # fmt: skip
    assert result.learner("er").learn(CLOUDS, NAMES).evaluate(CLOUDS, NAMES) < 0.7
    refused(lambda: result.learner("err"), "Did you mean 'er'", error=SpecError)
    refused(lambda: result.learner("er", seed=7), "seeds [0]", error=SpecError)
    folder = tmp_path / "run"
    dpmcl.run(SPEC, out=folder)
    for file in folder.glob("states/*/*"):
        file.unlink()
    with pytest.raises(FolderError, match="no state of 'er'"):
        dpmcl.load(folder).learner("er")
