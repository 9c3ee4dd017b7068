"""An exported program predicts what its learner predicts, for any number of rows."""

import json

import numpy as np
import pytest
import torch
from test_learner import CLOUDS, NAMES, learner
from torch import nn

from conftest import refused
from dpmcl import Learner, SpecError

TIMES = 1.7e9 + np.arange(60.0)


def images():
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten()), nn.Linear(12, 3)
    )


def rows():
    return {"when": TIMES, "colour": np.repeat(["red", "blue"], 30), "size": CLOUDS[:, 0]}


PIXELS = np.random.default_rng(0).integers(0, 256, (60, 1, 4, 4), dtype=np.uint8)
KINDS = {
    "two replicas, room for classes": (lambda: learner(replicas=2), CLOUDS, NAMES),
    "times and categories": (lambda: learner(), rows(), NAMES),
    "regression": (lambda: learner(scale=True), CLOUDS, CLOUDS[:, 0] * 100 + 7),
    "images, running statistics": (lambda: Learner(images(), updates=3), PIXELS, NAMES),
    "frozen": (lambda: Learner(images(), updates=3, frozen=["0"]), PIXELS, NAMES),
    "a gate": (lambda: Learner(method="anml", n_meta=2, n_grad=2), CLOUDS, NAMES),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_predicts_the_same(kind, tmp_path):
    make, x, y = KINDS[kind]
    one = make().learn(x, y)
    one.export(tmp_path / "model.pt2")
    extra = {"dpmcl.json": ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=extra).module()
    told = json.loads(extra["dpmcl.json"])
    values = one._known.form.inputs.read(x)
    values = values if told["input"] == "uint8" else values.double()
    for n in (1, 60):
        answer = program(values[:n]).numpy()
        if kind == "regression":
            np.testing.assert_allclose(answer[:, 0], one.predict(x[:n]), rtol=1e-4, atol=1e-3)
        else:
            some = (
                {name: column[:n] for name, column in x.items()} if isinstance(x, dict) else x[:n]
            )
            np.testing.assert_allclose(answer, one.predict_proba(some), atol=1e-5)
            assert told["labels"] == one.classes_.tolist()
    if kind == "times and categories":
        assert told["columns"] == ["when", "colour=blue", "colour=red", "size"]


def test_what_cannot_be_exported_is_refused(tmp_path):
    one = learner().learn(CLOUDS, NAMES)
    refused(lambda: one.export(tmp_path / "model.onnx"), ".pt2", error=SpecError)
    refused(lambda: learner().export(tmp_path / "model.pt2"), "learn(x, y) first", error=SpecError)
    assert not list(tmp_path.iterdir())
