"""Checkpoints: everything comes back as it was, and what is damaged is passed over, not trusted."""

import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save

from dpmcl import plugins
from dpmcl.core import memory
from dpmcl.core.gradients import Work
from dpmcl.core.tree import leaves, tree_map
from dpmcl.exceptions import FolderError
from dpmcl.methods._method import State
from dpmcl.optimisers.sgd import SGD
from dpmcl.results.record import Divergence
from dpmcl.training.checkpoints import Checkpoints, Origin
from dpmcl.training.state import Position, RunState

REPLICAS = 2
HERE = Position(1, 0, 50)
ORIGIN = Origin("er", (3, 4), "abc", "batched", "cpu")


def snapshot(position: Position = HERE, optimiser: str = "adam", tasks: int = 3):
    """Every kind of leaf, with numbers that say where it was made."""
    rule = SGD(momentum=0.9) if optimiser == "sgd" else plugins.find("optimiser", optimiser)()
    generator = torch.Generator().manual_seed(sum(position))

    def drawn(leaf: torch.Tensor) -> torch.Tensor:
        return torch.randn(REPLICAS, *leaf.shape, generator=generator, dtype=leaf.dtype)

    parameters = {
        "representation": {"0.weight": torch.zeros(2, 3)},
        "prediction": {"bias": torch.ones(4)},
    }
    theta = tree_map(drawn, parameters)
    state = State(
        theta,
        tree_map(drawn, rule.init(parameters)),
        {
            "flag": torch.tensor([True, False]),
            "count": torch.tensor([2**62 + 1, -5]),
            "double": torch.tensor([[1e-300], [torch.pi]], dtype=torch.float64),
            "same": theta["prediction"]["bias"],  # leaves may share memory
            "none": torch.zeros(REPLICAS, 0),
        },
    )
    one = tree_map(lambda leaf: leaf.expand(REPLICAS, *leaf.shape), memory.empty(5))
    held = {"train": one, "validation": one}
    values = np.full((REPLICAS, 1 + tasks, tasks), np.nan)
    values[:, 0], values[:, 1, 0] = 0.25, [0.125, np.nan]  # the second replica has diverged
    work = Work(gradient_evaluations=7, rows_backpropagated=11)
    values = {"errors.test": values, "errors.train": values / 2, "readings": values[:, :1]}
    return RunState(position, state, held, work, {1: Divergence(0, 2, 17)}, values)


def blank(like: RunState) -> RunState:
    """Of the same form, with nothing in it."""
    return RunState(
        Position(),
        tree_map(torch.zeros_like, like.replicas),
        tree_map(torch.zeros_like, like.memories),
    )


def assert_same(loaded: RunState | None, expected: RunState) -> None:
    assert loaded is not None
    for name in ("position", "work", "diverged"):
        assert getattr(loaded, name) == getattr(expected, name)
    trees = (leaves((tuple(run.replicas), run.memories)) for run in (loaded, expected))
    for a, b in zip(*trees, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    assert loaded.values.keys() == expected.values.keys()
    for name, values in expected.values.items():
        np.testing.assert_array_equal(loaded.values[name], values)


@pytest.fixture
def root(tmp_path) -> Path:
    """A run folder."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "spec.toml").write_text("")
    return folder


@pytest.fixture
def checkpoints(root, log_lines) -> Checkpoints:
    return Checkpoints(root, ORIGIN)


def load(checkpoints: Checkpoints, like: RunState) -> RunState | None:
    saved = checkpoints.newest()
    return saved and saved.state(like, 3)


def files(root: Path) -> list[Path]:
    return sorted((root / "checkpoints").rglob("*.safetensors"))


@pytest.mark.parametrize("optimiser", plugins.names("optimiser"))
def test_every_part_comes_back(optimiser, checkpoints, log_lines):
    run = snapshot(optimiser=optimiser)
    checkpoints.save(run)
    assert_same(load(checkpoints, blank(run)), run)
    assert checkpoints.newest().about.origin == ORIGIN
    assert log_lines == []


def test_the_last_two_stay_and_numbers_go_on_after_a_restart(checkpoints, root, log_lines):
    for update in range(3):
        checkpoints.save(snapshot(Position(0, 0, update)))
    assert [path.name for path in files(root)] == ["00000002.safetensors", "00000003.safetensors"]
    again = Checkpoints(root, ORIGIN)
    again.save(snapshot(Position(0, 0, 3)))
    assert [path.name for path in files(root)] == ["00000003.safetensors", "00000004.safetensors"]
    assert load(again, snapshot()).position == Position(0, 0, 3)
    shutil.copy(files(root)[-1], files(root)[-1].with_name("99999999.safetensors"))
    again.save(snapshot(Position(0, 0, 4)))
    assert load(again, snapshot()).position == Position(0, 0, 4)


class Payload:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def header_digit(content: bytes) -> bytes:
    """The header stays well formed, and says another number."""
    assert b"gradient_evaluations" in content
    return content.replace(b'gradient_evaluations\\":7', b'gradient_evaluations\\":8')


DAMAGES = {
    "cut": lambda content: content[: len(content) * 9 // 10],
    "another number in the header": header_digit,
    "pickle": lambda content: pickle.dumps(Payload(Path("ran"))),
    "another safetensors file": lambda content: save({"a": torch.zeros(3)}),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_newest_is_named_and_the_one_before_used(
    damage, checkpoints, root, log_lines, monkeypatch
):
    monkeypatch.chdir(root)
    first, second = snapshot(Position(0, 0, 50)), snapshot(Position(1))
    checkpoints.save(first)
    Checkpoints(root, replace(ORIGIN, engine="looped")).save(second)
    newest = files(root)[-1]
    newest.write_bytes(damage(newest.read_bytes()))
    again = Checkpoints(root, ORIGIN)
    saved = again.newest()
    assert saved.about.origin == ORIGIN
    assert_same(saved.state(blank(first), 3), first)
    assert len(log_lines) == 1
    assert str(newest) in log_lines[0]
    assert "damaged" in log_lines[0]
    assert "\n" not in log_lines[0]
    assert not (root / "ran").exists()
    again.save(second)
    assert_same(load(again, blank(first)), second)


def test_every_byte_counts(checkpoints, root, log_lines):
    """A flip anywhere is seen: tensors, header, padding."""
    checkpoints.save(snapshot())
    (path,) = files(root)
    content = path.read_bytes()
    expected = snapshot()
    for index in range(0, len(content), 37):
        path.write_bytes(content[:index] + bytes([content[index] ^ 4]) + content[index + 1 :])
        loaded = load(checkpoints, blank(expected))
        if loaded is not None:  # such as the case of a letter of an escape
            assert_same(loaded, expected)


def with_state(run: RunState, **changes) -> RunState:
    return replace(run, replicas=run.replicas._replace(**changes))


def doubled(leaf: torch.Tensor) -> torch.Tensor:
    return torch.cat([leaf, leaf], -1) if leaf.dim() > 1 else leaf


FORMS = {
    "another shape": lambda s: with_state(s, theta=tree_map(doubled, s.replicas.theta)),
    "another type": lambda s: with_state(s, theta=tree_map(torch.Tensor.double, s.replicas.theta)),
    "more leaves": lambda s: with_state(s, extra={**s.replicas.extra, "z": torch.zeros(REPLICAS)}),
    "fewer leaves": lambda s: with_state(s, extra={}),
    "another memory": lambda s: replace(s, memories=tree_map(doubled, s.memories)),
    "no validation rows": lambda s: replace(s, memories={"train": s.memories["train"]}),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_another_form_is_not_used(form, checkpoints, root, log_lines):
    checkpoints.save(snapshot())
    assert load(checkpoints, form(snapshot())) is None
    assert any(str(files(root)[0]) in line for line in log_lines)


def test_a_removed_run_folder_is_an_error_and_stays_removed(checkpoints, root):
    checkpoints.save(snapshot())
    shutil.rmtree(root)
    with pytest.raises(FolderError, match=r"was removed") as caught:
        checkpoints.save(snapshot())
    assert str(root) in str(caught.value)
    assert not root.exists()
    assert load(checkpoints, snapshot()) is None
    checkpoints.clear()


def test_clear_takes_one_method_s_alone(checkpoints, root, log_lines):
    other = Checkpoints(root, replace(ORIGIN, method="my_module:Mine"))
    checkpoints.save(snapshot())
    other.save(snapshot())
    checkpoints.clear()
    checkpoints.clear()
    assert load(checkpoints, snapshot()) is None
    assert load(other, snapshot()) is not None
    other.clear()
    assert not (root / "checkpoints").exists()
    assert (root / "spec.toml").exists()
