"""An exported program predicts what its learner predicts, for any number of rows."""

import json
import logging
import subprocess
import sys

import numpy as np
import onnxruntime
import pytest
import torch
from test_learner import CLOUDS, NAMES, make_learner
from torch import nn

from conftest import Layer, full_disk, refused
from dpmcl import Learner, ModelError, SpecError
from dpmcl.exceptions import FolderError
from dpmcl.learner import export
from dpmcl.learner.answers import answers

TIMES = 1.7e9 + np.arange(60.0)


def images():
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten()), nn.Linear(12, 3)
    )


def recurrent():
    """A recurrent layer's last output."""
    gru = nn.GRU(3, 5, batch_first=True)
    return Layer(lambda self, x: self.gru(x)[0][:, -1], gru=gru)


def counting():
    """A recurrent layer whose first state has a fixed number of rows in a program."""
    return Layer(lambda self, x: self.cell(x, torch.zeros(len(x), 5)), cell=nn.GRUCell(3, 5))


def net(representation):
    return representation, nn.Linear(5, 3)


def rows():
    return {"when": TIMES, "colour": np.repeat(["red", "blue"], 30), "size": CLOUDS[:, 0]}


PIXELS = np.random.default_rng(0).integers(0, 256, (60, 1, 4, 4), dtype=np.uint8)
STEPS = np.random.default_rng(0).normal(size=(60, 4, 3))
KINDS = {
    "two replicas, room for classes": (
        lambda: make_learner(replicas=2, scale=True),
        CLOUDS,
        NAMES,
    ),
    "times and categories": (lambda: make_learner(), rows(), NAMES),
    "regression": (lambda: make_learner(scale=True), CLOUDS, CLOUDS[:, 0] * 100 + 7),
    "images, running statistics": (lambda: Learner(images(), updates=3), PIXELS, NAMES),
    "frozen": (lambda: Learner(images(), updates=3, frozen=["0"]), PIXELS, NAMES),
    "recurrent": (lambda: Learner(net(recurrent()), updates=3), STEPS, NAMES),
    "a gate": (lambda: Learner(method="anml", n_meta=2, n_grad=2), CLOUDS, NAMES),
}


def loaded(file):
    """A file as a function of float64 or uint8 rows, and what it says of itself."""
    if file.suffix == ".onnx":
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        description = session.get_modelmeta().custom_metadata_map["dpmcl.json"]
        return lambda x: session.run(["answers"], {"rows": x})[0], json.loads(description)
    extra = {"dpmcl.json": ""}
    program = torch.export.load(file, extra_files=extra).module()
    return lambda x: program(torch.from_numpy(x)).numpy(), json.loads(extra["dpmcl.json"])


def encoded(description, x):
    """Rows as a program takes them, by what its file says alone."""
    if not description["fields"]:
        return x.astype(description["input"])
    columns = []
    for field in description["fields"]:
        values = x[field["name"]]
        if field["kind"] == "categories":
            columns.extend(values == category for category in field["categories"])
        else:
            columns.append(values)
    return np.stack([column.astype(description["input"]) for column in columns], axis=1)


@pytest.mark.parametrize(
    ("kind", "suffix"),
    [
        *((kind, ".onnx") for kind in KINDS),  # made of the program that a .pt2 file holds
        ("times and categories", ".pt2"),
        ("images, running statistics", ".pt2"),
        ("two replicas, room for classes", ".pt2"),
    ],
)
def test_a_program_predicts_the_same(kind, suffix, tmp_path, capfd, caplog, recwarn):
    make, x, y = KINDS[kind]
    learner = make().learn(x, y)
    capfd.readouterr()
    caplog.clear()
    recwarn.clear()
    with caplog.at_level(logging.INFO):
        learner.export(tmp_path / f"model{suffix}")
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list
    assert not caplog.records
    assert b"dpmcl/learner/" not in (tmp_path / f"model{suffix}").read_bytes()  # no path of ours
    answer, description = loaded(tmp_path / f"model{suffix}")
    values = encoded(description, x)
    for n in (1, 60):
        some = {name: column[:n] for name, column in x.items()} if isinstance(x, dict) else x[:n]
        if kind == "regression":
            expected = learner.predict(some)[:, None]
            np.testing.assert_allclose(answer(values[:n]), expected, rtol=1e-4, atol=1e-3)
        else:
            np.testing.assert_allclose(answer(values[:n]), learner.predict_proba(some), atol=1e-5)
            assert description["labels"] == learner.classes_.tolist()
    if kind == "times and categories":
        assert description["columns"] == ["when", "colour=blue", "colour=red", "size"]
        assert np.ptp(answer(values)[:30], axis=0).max() > 1e-3  # the rows are told apart


def test_what_cannot_be_exported_is_refused(tmp_path, monkeypatch):
    learner = make_learner().learn(CLOUDS, NAMES)
    refused(lambda: learner.export(tmp_path / "model.pb"), ".pt2 or .onnx", error=SpecError)
    refused(
        lambda: make_learner().export(tmp_path / "model.pt2"), "learn(x, y) first", error=SpecError
    )
    fixed = Learner(net(counting()), updates=2).learn(CLOUDS, NAMES)
    for name in ("model.pt2", "model.onnx"):
        refused(lambda name=name: fixed.export(tmp_path / name), "GRUCell", error=ModelError)
        with full_disk():
            words = ("cannot be written", "File too large")
            refused(lambda name=name: learner.export(tmp_path / name), *words, error=FolderError)
    monkeypatch.setattr(export, "answers", lambda *given: answers(*given) + 1e-3)
    for name in ("model.pt2", "model.onnx"):
        refused(lambda name=name: learner.export(tmp_path / name), "not close", error=ModelError)
    small = nn.Linear(3, 1, bias=False)
    nn.init.constant_(small.weight, 1e-6)
    one = Learner((nn.Identity(), small), updates=1, lr=1e-9).learn(CLOUDS, 1e-6 * CLOUDS[:, :1])
    monkeypatch.setattr(export, "answers", lambda *given: 2 * answers(*given))
    refused(lambda: one.export(tmp_path / "model.pt2"), "not close", error=ModelError)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    refused(lambda: learner.export(tmp_path / "model.onnx"), "dpmcl[onnx]", error=SpecError)
    assert not list(tmp_path.iterdir())


def test_a_user_without_a_name_exports(tmp_path):
    make_learner().learn(CLOUDS, NAMES).save(tmp_path / "m")
    code = """
import os, sys
for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "TORCHINDUCTOR_CACHE_DIR"):
    os.environ.pop(name, None)
os.getuid = lambda: 54321            # has no entry in the password file
sys.modules["torchvision"] = None    # the exporter says so for each of its operators
from dpmcl import Learner
for name in ("m.pt2", "m.onnx"):
    Learner.load("m").export(name)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "m.onnx").exists()
