"""A learner that was saved goes on to the same bits, and a folder of somebody else's is data."""

import copy
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from test_learner import CLOUDS, NAMES, make_learner, parameters
from torch import nn

from conftest import refused, same_bits
from dpmcl import Learner, ModelError, Optimiser, SpecError
from dpmcl.core.atomic import atomic
from dpmcl.exceptions import FolderError
from dpmcl.learner import artefact
from dpmcl.methods.er import ER
from dpmcl.networks.mlp import MLP
from python_process import PythonProcess

GO_ON = """
import numpy as np
from dpmcl import Learner
data = np.load("rows.npz")
for folder in ("0", "1"):
    one = Learner.load(folder)
    before = one.predict_proba(data["x"])
    one.learn(data["x"], data["y"]).save(folder)
    np.savez(folder + "/told.npz", before=before, after=one.predict_proba(data["x"]))
"""

KINDS = [
    {"memory": 11, "optimiser": "adam", "replicas": 2, "engine": "looped"},
    {"method": "dpmcl", "zeta": 1, "memory": 30, "scale": True, "discount": "exponential"},
]


def test_in_a_new_process_a_learner_goes_on_as_if_never_stopped(tmp_path):
    learners = [make_learner(**kind, updates=7).learn(CLOUDS[:40], NAMES[:40]) for kind in KINDS]
    folders = [learner.save(tmp_path / str(k)) for k, learner in enumerate(learners)]
    np.savez(tmp_path / "rows.npz", x=CLOUDS[15:], y=NAMES[15:])
    before = [learner.predict_proba(CLOUDS[15:]) for learner in learners]
    for learner in learners:
        learner.learn(CLOUDS[15:], NAMES[15:])
    assert PythonProcess("-c", GO_ON, folder=tmp_path).end().status == 0
    for learner, folder, old in zip(learners, folders, before, strict=True):
        told, again = np.load(folder / "told.npz"), Learner.load(folder)
        assert (told["before"] == old).all()
        assert (told["after"] == learner.predict_proba(CLOUDS[15:])).all()
        assert same_bits(parameters(learner), parameters(again))
        assert repr(again) == repr(learner)


@pytest.mark.parametrize("method", ["derpp", "ewc", "gdumb"])
def test_notes_copies_and_growth_go_on_too(method, tmp_path):
    """Logits beside rows, Fisher information, a policy of its own; then more classes than room."""
    learner = make_learner(method=method, memory=9, updates=3)
    learner.learn(CLOUDS[:20], np.arange(20) % 3).learn(CLOUDS[20:40], np.arange(20) % 4 + 3)
    other = Learner.load(learner.save(tmp_path))
    for each in (learner, other):
        each.learn(CLOUDS[40:], np.arange(20) % 5 + 7)
    assert learner.predict_proba(CLOUDS).shape == (60, 12)
    assert (learner.predict_proba(CLOUDS) == other.predict_proba(CLOUDS)).all()


def test_a_learner_whose_saving_fails_leaves_the_old_one_whole(tmp_path, monkeypatch):
    learner = make_learner().learn(CLOUDS, NAMES)
    learner.save(tmp_path)
    before = learner.predict_proba(CLOUDS)
    learner.learn(CLOUDS, NAMES)
    monkeypatch.setattr(artefact, "write_text", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        learner.save(tmp_path)
    assert (Learner.load(tmp_path).predict_proba(CLOUDS) == before).all()
    monkeypatch.undo()
    names = ("state-0.safetensors", artefact.FILE, ".lock.json")
    killed = [atomic(tmp_path / name) for name in names]
    assert all(save.__enter__().exists() for save in killed)
    learner.save(tmp_path)
    left = {path.name.partition("-")[0] for path in tmp_path.iterdir()}
    assert left == {".lock", artefact.FILE, "state"}


def test_a_folder_that_is_saved_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    old, new = (make_learner(updates=k).learn(CLOUDS, NAMES) for k in (1, 2))
    old.save(tmp_path)
    read_bytes = Path.read_bytes

    def saved_meanwhile(path):
        content = read_bytes(path)
        if path.name == artefact.FILE:
            new.save(tmp_path)
        return content

    monkeypatch.setattr(Path, "read_bytes", saved_meanwhile)
    loaded = Learner.load(tmp_path)
    assert (loaded.predict_proba(CLOUDS) == new.predict_proba(CLOUDS)).all()


def test_without_its_memory_no_row_is_written(tmp_path, log_lines):
    learner = make_learner(method="er").learn(CLOUDS, NAMES)
    learner.save(tmp_path / "with")
    learner.save(tmp_path / "without", memory=False)
    assert any("without its memory" in line for line in log_lines)
    kept, left = (
        load_file(next((tmp_path / n).glob("*.safetensors"))) for n in ("with", "without")
    )
    assert len(kept["held.x"]) == 60
    assert not any(name.startswith("memory.") for name in left)
    assert len(left["held.x"]) == 0
    other = Learner.load(tmp_path / "without")
    assert (other.predict(CLOUDS) == learner.predict(CLOUDS)).all()
    assert other.learn(CLOUDS, NAMES).evaluate(CLOUDS, NAMES) < 0.1


class Mine(ER):
    """A user's method."""


class Plain(Optimiser):
    """A user's optimiser."""

    def slots(self, parameter):
        return {}

    def rule(self, parameter, grad, slots):
        return parameter - self.lr * grad, slots


class Small(MLP):
    """A user's network."""


@pytest.mark.parametrize(
    "own",
    [{"model": "mlp", "optimiser": f"{__name__}:Plain"}, {"model": f"{__name__}:Small"}],
    ids=str,
)
def test_a_learner_with_a_part_of_ones_own_by_name_is_copied(own):
    learner = Learner(**own, updates=2).learn(CLOUDS, NAMES)
    other = copy.deepcopy(learner)
    assert (other.predict_proba(CLOUDS) == learner.predict_proba(CLOUDS)).all()


def test_what_is_the_users_own_is_brought_again(tmp_path):
    def network(shape, outputs):
        return MLP(hidden=3).build(shape, outputs)

    learner = Learner(network, method=Mine, updates=5).learn(CLOUDS, NAMES)
    learner.save(tmp_path)
    refused(lambda: Learner.load(tmp_path), "network", "model=", error=SpecError)
    refused(lambda: Learner.load(tmp_path, model=network), "method=Mine", error=SpecError)
    for method, said in [(Mine(updates=9), "the method's class"), (ER, "not one of the package")]:
        refused(
            lambda m=method: Learner.load(tmp_path, model=network, method=m), said, error=SpecError
        )
    other = Learner.load(tmp_path, model=network, method=Mine)
    assert (other.predict_proba(CLOUDS) == learner.predict_proba(CLOUDS)).all()
    wider = MLP(hidden=4)
    refused(
        lambda: Learner.load(tmp_path, model=wider, method=Mine), "not the one", "shape",
        error=ModelError,
    )  # fmt: skip
    other = nn.Linear(3, 8), nn.Linear(8, 8)
    refused(
        lambda: Learner.load(tmp_path, model=other, method=Mine),
        "'state.theta.representation.weight' is not among what was saved",
        error=ModelError,
    )


@pytest.mark.parametrize("y", [NAMES, CLOUDS[:, 0]], ids=["classes", "values"])
def test_a_cost_that_has_changed_is_refused(y, tmp_path):
    def cost(outputs, targets, size=1.0):
        if targets.is_floating_point():
            return nn.functional.huber_loss(outputs, targets, reduction="none", delta=size).mean(1)
        weight = torch.tensor([1.0, 1.0, size])
        return nn.functional.cross_entropy(outputs, targets, weight=weight, reduction="none")

    make_learner(cost=cost, updates=2).learn(CLOUDS, y).save(tmp_path)
    Learner.load(tmp_path, cost=lambda outputs, targets: cost(outputs, targets))
    changed = partial(cost, size=0.5)
    refused(lambda: Learner.load(tmp_path, cost=changed), "cost is not the one", error=SpecError)


class Tokens(nn.Module):
    """Mean of the embeddings of a row's tokens, of which 0 is padding, and a linear layer."""

    def __init__(self, seed, limit=9):
        super().__init__()
        torch.manual_seed(seed)
        self.limit, self.embedding = limit, nn.Embedding(10, 5, padding_idx=0)
        self.head = nn.Linear(5, 2)

    def forward(self, x):
        return self.head(self.embedding(x.long().clamp(max=self.limit)).mean(1))


@pytest.mark.parametrize(
    ("frozen", "other", "why"),
    [(["embedding"], {"seed": 1}, "frozen"), ([], {"seed": 0, "limit": 3}, "other answers")],
)
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_network_that_differs_for_the_rows_learned_alone_is_refused(
    frozen, other, why, replicas, tmp_path
):
    x = np.random.default_rng(0).integers(0, 10, (40, 4))
    learner = Learner(Tokens(0), frozen=frozen, classes=[0, 1], replicas=replicas, updates=5)
    learner.learn(x, x[:, 0] % 2).save(tmp_path)
    again = Learner.load(tmp_path, model=Tokens(0), frozen=frozen)
    assert (again.predict_proba(x) == learner.predict_proba(x)).all()
    refused(
        lambda: Learner.load(tmp_path, model=Tokens(**other), frozen=frozen), why, error=ModelError
    )


def test_a_network_whose_answers_have_a_small_unit_is_told_apart(tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 3))

    def network(activation):
        torch.manual_seed(0)
        last = nn.Linear(3, 2, bias=False)
        nn.init.normal_(last.weight, std=1e-6)
        return nn.Sequential(nn.Linear(3, 3), activation, last)

    learner = Learner(network(nn.Tanh()), updates=2, lr=1e-8).learn(x, 1e-6 * x[:, :2])
    learner.save(tmp_path)
    again = Learner.load(tmp_path, model=network(nn.Tanh()))
    assert (again.predict(x) == learner.predict(x)).all()
    other = network(nn.Softplus())
    refused(lambda: Learner.load(tmp_path, model=other), "other answers", error=ModelError)


class Padded(Tokens):
    """Tokens that begin with `start`, or with anything; a row of padding alone is an error."""

    def __init__(self, start):
        super().__init__(0)
        self.start = start

    def forward(self, x):
        tokens = x.long()
        if not (tokens != 0).any(1).all() or self.start not in (None, *tokens[:1, 0].tolist()):
            raise ValueError("no tokens")
        return super().forward(x)


@pytest.mark.parametrize("start", [None, 7])
def test_a_network_of_tokens_is_saved_and_loaded_that_takes_no_padding_alone(start, tmp_path):
    x = np.random.default_rng(0).integers(1, 10, (40, 4)) * [[1, 1, 1, 0]]
    x[:, 0] = 7
    learner = Learner(Padded(start), before="head" if start else None, updates=3)
    learner.learn(x, x[:, 1] % 2).save(tmp_path)
    again = Learner.load(tmp_path, model=Padded(start), before="head" if start else None)
    assert (again.predict_proba(x) == learner.predict_proba(x)).all()
    if start:
        refused(
            lambda: learner.save(tmp_path, memory=False),
            "save it with memory=True",
            error=ModelError,
        )
        Learner.load(tmp_path, model=Padded(start), before="head")


CHANGES = {
    "method.name": "os:system",
    "method.optimiser": "os:system",
    "method.discount": {"name": "os:system"},
    "method.options": ["os:system"],
    "method.memory": 10**12,
    "network.name": "os:system",
    "network.hidden": 10**9,
    "sum": "../" + "0" * 61,
    "state.outputs": 10**9,
    "state.form.inputs.shape": [10**9],
    "state.form.labels.dtype": "object",
    "arguments.replicas": 10**6,
    "arguments.scale": "no",
    "more": 1,
}


@pytest.mark.parametrize("path", CHANGES)
def test_a_hostile_folder_is_refused_in_one_line(path, tmp_path):
    make_learner(memory=9).learn(CLOUDS, NAMES).save(tmp_path)
    about = json.loads((tmp_path / "learner.json").read_text())
    *inside, last = path.split(".")
    table = about
    for key in inside:
        table = table[key]
    table[last] = CHANGES[path]
    (tmp_path / "learner.json").write_text(json.dumps(about))
    with pytest.raises((FolderError, SpecError, ModelError)) as caught:
        Learner.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_tensors_of_another_form_are_refused(tmp_path):
    import hashlib

    make_learner(memory=9).learn(CLOUDS, NAMES).save(tmp_path)
    about = json.loads((tmp_path / "learner.json").read_text())
    tensors = load_file(next(tmp_path.glob("*.safetensors")))
    for name, wrong in (
        ("held.row.train", tensors["held.row.train"] + 100),
        ("memory.train.filled", tensors["memory.train.filled"] + 100),
        ("first_task", tensors["first_task"][:2]),
        ("first_task", tensors["first_task"] + 9),
        ("held.x", tensors["held.x"][:, :2]),
    ):
        save_file({**tensors, name: wrong.contiguous()}, tmp_path / "state.safetensors")
        content = (tmp_path / "state.safetensors").read_bytes()
        about["sum"] = hashlib.sha256(content).hexdigest()
        (tmp_path / f"state-{about['sum'][:16]}.safetensors").write_bytes(content)
        (tmp_path / "learner.json").write_text(json.dumps(about))
        refused(lambda: Learner.load(tmp_path), "damaged", error=FolderError)
    refused(lambda: Learner.load(tmp_path / "none"), "no learner", error=FolderError)
