"""A model in use without a line of Python: `dpmcl learn`, `predict`, `inspect`, `export`."""

import csv

import numpy as np
import torch
from test_learner import CLOUDS, NAMES
from torch.nn import functional

import dpmcl
from conftest import TINY_SPEC, refused
from dpmcl.core.lock import locked
from dpmcl.exceptions import FolderError


def write(path, rows, kinds, **columns):
    names = ["a", "b", "c", *columns]
    more = list(zip(*columns.values(), strict=True)) or [()] * len(rows)
    with path.open("w") as file:
        table = csv.writer(file)
        table.writerow([*names, "kind"])
        table.writerows([*x, *m, k] for x, m, k in zip(rows, more, kinds, strict=True))


def test_a_model_is_made_extended_and_asked(tmp_path, command):
    order = np.random.default_rng(0).permutation(60)
    x, y = CLOUDS[order], NAMES[order]
    old = np.flatnonzero(y != "c")
    write(tmp_path / "old.csv", x[old], y[old])
    write(tmp_path / "new.csv", x, y)
    status, out, err = command("learn", "m", "old.csv", "--target", "kind", "--set", "lr=0.1")
    assert (status, err) == (0, "")
    assert out == "Learner(replay, mlp, 1 chunk, 36 rows, classes a, b)\n"
    status, out, err = command("learn", "m", "new.csv")
    assert out.startswith("Learner(replay, mlp, 2 chunks, 90 rows, classes a, b, c) (error before")
    assert err == f"New class 'c', first in row {[*y].index('c')}.\n"
    assert command("predict", "m", "new.csv", "--out", "told.csv")[0] == 0
    with (tmp_path / "told.csv").open() as file:
        predicted = list(csv.DictReader(file))
    assert [*predicted[0]] == ["label", "p(a)", "p(b)", "p(c)"]
    assert np.mean([row["label"] for row in predicted] == y) > 0.9
    assert command("predict", "m", "old.csv")[1].startswith("label,p(a),p(b),p(c)\n")
    status, out, _ = command("inspect", "m")
    assert out.split("\n")[2].split()[:2] == ["0", "4"]
    assert "forgetting" in out


def test_several_targets_are_columns_of_the_predictions(tmp_path, command):
    x, y = {"a": CLOUDS[:, 0], "b": CLOUDS[:, 1]}, CLOUDS[:, 1:]
    learner = dpmcl.Learner(updates=5).learn(x, y)
    learner.save(tmp_path / "m")
    status, out, _ = command("inspect", "m")
    assert status == 0 and out.startswith(f"{learner!r}\nA report needs rows that were held out")
    write(tmp_path / "rows.csv", CLOUDS, NAMES)
    assert "'c' is new" in command("predict", "m", "rows.csv")[2]
    np.savetxt(tmp_path / "rows.csv", CLOUDS[:, :2], delimiter=",", header="a,b", comments="")
    assert command("predict", "m", "rows.csv", "--out", "told.csv")[0] == 0
    with (tmp_path / "told.csv").open() as file:
        header, *values = csv.reader(file)
    assert header == ["value 0", "value 1"]
    assert np.array(values, float).tolist() == learner.predict(x).tolist()


def test_wrong_rows_are_said_and_nothing_is_lost(tmp_path, command):
    write(tmp_path / "old.csv", CLOUDS, NAMES)
    write(tmp_path / "more.csv", CLOUDS, NAMES, d=[1] * 60)
    (tmp_path / "less.csv").write_text("a,b,kind\n1,2,a\n")
    (tmp_path / "empty.csv").write_text("a,b,c,kind\n1,2,3,a\n1,,3,a\n")
    (tmp_path / "torn.csv").write_text("a,b,c,kind\n1,2,3,a\n1,2\n")
    assert command("learn", "m", "old.csv")[0] == 2
    assert command("learn", "m", "old.csv", "--target", "kind")[0] == 0
    before = sorted((file.name, file.read_bytes()) for file in (tmp_path / "m").iterdir())
    for arguments, part in (
        (("learn", "m", "more.csv"), "'d' is new"),
        (("learn", "m", "less.csv"), "'c' is missing"),
        (
            ("learn", "m", "empty.csv"),
            "row 1 lacks one (empty, NA or NaN; 1 in all). Fill or drop these rows, or begin",
        ),
        (("learn", "m", "torn.csv"), "torn.csv"),
        (("learn", "m", "none.csv"), "none.csv"),
        (("learn", "m", "old.csv", "--method", "naive"), "for a new one"),
        (("learn", "n", "old.csv", "--target", "kin"), "No column 'kin'"),
        (("predict", "none", "old.csv"), "holds no learner"),
        (("predict", "m", "old.csv", "--out", "old.csv"), "--out would replace the rows"),
    ):
        status, out, err = command(*arguments)
        assert (status, out, err.count("\n")) == (2, "", 1), err
        assert part in err
    assert before == sorted((file.name, file.read_bytes()) for file in (tmp_path / "m").iterdir())
    assert not (tmp_path / "n").exists()


def test_settings_of_one_table_are_joined(tmp_path, command):
    """The last of them replaced the others: a model had no weight decay, and nothing said so."""
    write(tmp_path / "rows.csv", CLOUDS, NAMES)
    settings = ("optimiser.weight_decay=0.5", "optimiser.name=sgd", "updates=1")
    options = (text for setting in settings for text in ("--set", setting))
    assert command("learn", "m", "rows.csv", "--target", "kind", *options)[0] == 0
    method = dpmcl.Learner.load(tmp_path / "m")._config.method
    assert method.to_table()["optimiser"] == {"name": "sgd", "weight_decay": 0.5}


def test_a_model_that_no_command_could_read_is_refused(tmp_path, command):
    write(tmp_path / "rows.csv", CLOUDS, NAMES)
    name = f"{__name__}:mean_cost"
    status, _, err = command("learn", "m", "rows.csv", "--target", "kind", "--set", f"cost={name}")
    assert (status, "make it in Python" in err) == (2, True)
    assert not (tmp_path / "m").exists()


def mean_cost(outputs, targets):
    return functional.cross_entropy(outputs, targets, reduction="none")


def test_one_process_at_a_time_writes_to_a_model(tmp_path, command):
    """Of two that learn from the same model, the second would replace what the first has saved."""
    write(tmp_path / "rows.csv", CLOUDS, NAMES)
    assert command("learn", "m", "rows.csv", "--target", "kind", "--set", "updates=1")[0] == 0
    learner = dpmcl.Learner.load(tmp_path / "m")
    with locked(tmp_path / "m"):
        status, _, err = command("learn", "m", "rows.csv")
        assert status == 2
        assert "m is being written to by process" in err
        refused(lambda: learner.save(tmp_path / "m"), "is being written to", error=FolderError)
        assert command("predict", "m", "rows.csv")[0] == 0
    assert command("learn", "m", "rows.csv")[0] == 0


def test_models_and_replicas_of_runs_are_exported(tmp_path, command):
    write(tmp_path / "rows.csv", CLOUDS, NAMES)
    run = {**TINY_SPEC, "replicas": 2, "methods": {"er": {}, "naive": {}}}
    result = dpmcl.run(run, out=tmp_path / "run")
    command("learn", "m", "rows.csv", "--target", "kind")
    assert command("export", "m", "--out", "m.onnx") == (
        0, "m.onnx: Learner(replay, mlp, 1 chunk, 54 rows, classes a, b, c)\n", ""
    )  # fmt: skip
    options = "--method", "er", "--seed", "1", "--out", "er.pt2"
    assert command("export", "run", *options)[0::2] == (0, "")
    program = torch.export.load("er.pt2").module()
    learner = result.learner("er", seed=1)
    x = np.random.default_rng(0).random((5, *learner._known.form.inputs.shape))
    np.testing.assert_allclose(
        program(torch.tensor(x)).numpy(), learner.predict_proba(x), atol=1e-5
    )
    for arguments, part in (
        (("run", "--out", "b.onnx"), "--method er; it has er, naive."),
        (("run", "--method", "ewc", "--out", "b.onnx"), "No method 'ewc'"),
        (("run", "--method", "er", "--seed", "7", "--out", "b.onnx"), "seeds [0, 1], got 7"),
        (("m", "--method", "er", "--out", "b.onnx"), "m is a model"),
        (("m", "--out", "b.pb"), ".pt2 or .onnx file"),
        (("none", "--out", "b.onnx"), "none"),
    ):
        status, out, err = command("export", *arguments)
        assert (status, out, err.count("\n")) == (2, "", 1), err
        assert part in err
    assert sorted(file.name for file in tmp_path.glob("*.*")) == ["er.pt2", "m.onnx", "rows.csv"]
