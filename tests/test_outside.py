"""One plugin of each kind from outside the package: a method, stream, network, metric, ...

Each is a module that a spec names as `module:Name`. A reader and an observer are used in Python.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import dpmcl
from conftest import setup_of, tiny_stream
from dpmcl import DataError, SpecError, plugins
from dpmcl.cli.show import list_
from dpmcl.methods.er import ER
from dpmcl.training.loop import train
from dpmcl.training.observer import Observer

MODULES = {
    "method": """
from dataclasses import dataclass
from dpmcl import Draw, Method, Phase, gradient

@dataclass(frozen=True, kw_only=True)
class Newest(Method):
    def phases(self, model, task):
        def update(state, batches, key):
            grads, J = gradient(model.cost)(state.theta, batches["new"], key[0])
            return self.descend(state, grads, J)
        return [Phase("train", self.updates_of(task), {"new": self.new_rows()}, update)]
""",
    "reader": """
import json
import numpy as np
from dpmcl.data.labelled import from_arrays

def read_lines(path):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    x = np.array([row["x"] for row in rows])
    return from_arrays(x, [row["y"] for row in rows], name="lines")
""",
    "stream": """
from dataclasses import dataclass
from pathlib import Path
from dpmcl import LabelledSettings
from OUTSIDE_reader import read_lines

@dataclass(frozen=True, kw_only=True)
class Lines(LabelledSettings):
    path: str
    places = ("path",)

    def read(self):
        return read_lines(Path(self.path))
""",
    "network": """
from dataclasses import dataclass
from torch import nn
from dpmcl import NetworkSettings

@dataclass(frozen=True, kw_only=True)
class Normed(NetworkSettings):
    hidden: int = 5

    def build(self, shape, outputs):
        h = nn.Sequential(nn.Linear(shape[0], self.hidden), nn.BatchNorm1d(self.hidden), nn.ReLU())
        return h, nn.Linear(self.hidden, outputs)
""",
    "metric": """
import numpy as np

def share_right(errors, predictions):
    return np.mean(predictions["test"] == predictions["test.target"], 1)
""",
    "cost": """
from torch.nn import functional

def squared(outputs, targets):
    return functional.cross_entropy(outputs, targets, reduction="none").square()
""",
    "optimiser": """
from dataclasses import dataclass
from dpmcl import Optimiser

@dataclass(frozen=True, kw_only=True)
class Signed(Optimiser):
    def slots(self, parameter):
        return {}

    def rule(self, parameter, grad, slots):
        return parameter - self.lr * grad.sign(), {}
""",
    "option": """
from dataclasses import dataclass
from dpmcl import Option, tree

@dataclass(frozen=True, kw_only=True)
class NearStart(Option):
    strength: float = 0.1

    def gradient(self, theta, grads, start):
        return tree.tree_map(lambda g, a, b: g + self.strength * (a - b), grads, theta, start)
""",
    "discount": """
from dataclasses import dataclass
from dpmcl import Discount

@dataclass(frozen=True, kw_only=True)
class Halved(Discount):
    def weights(self, s):
        return 0.5**s
""",
}


@pytest.fixture
def outside(tmp_path, monkeypatch) -> str:
    """Write the modules under names that no other test imports; return the names' prefix."""
    prefix = f"outside_{tmp_path.name}"
    for name, text in MODULES.items():
        (tmp_path / f"{prefix}_{name}.py").write_text(text.replace("OUTSIDE", prefix))
    monkeypatch.syspath_prepend(tmp_path)
    return prefix


def spec(prefix: str, folder: Path) -> dict:
    rng = np.random.default_rng(0)
    path = folder / "rows.jsonl"
    rows = [{"x": (rng.normal(size=3) + 2 * (i % 4)).tolist(), "y": f"c{i % 4}"} for i in range(80)]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return {
        "replicas": 2,
        "stream": {"name": f"{prefix}_stream:Lines", "path": str(path), "classes_per_task": 2},
        "network": {"name": f"{prefix}_network:Normed"},
        "training": {
            "updates": 30,
            "batch": 8,
            "lr": 0.01,
            "optimiser": f"{prefix}_optimiser:Signed",
            "discount": f"{prefix}_discount:Halved",
            "cost": f"{prefix}_cost:squared",
            "options": [{"name": f"{prefix}_option:NearStart", "strength": 0.01}],
        },
        "evaluation": {"predictions": True},
        "methods": {f"{prefix}_method:Newest": {}, "er": {}},
    }


def test_one_of_each_in_one_run(outside, tmp_path):
    """Run batched, stored and loaded; the network has BatchNorm, the metric reads predictions."""
    table = spec(outside, tmp_path)
    result = dpmcl.run(table, out=tmp_path / "run")
    name = f"{outside}_method:Newest"
    assert list(result.records) == [name, "er"]
    metric = f"{outside}_metric:share_right"
    rows = {row["method"]: row for row in dpmcl.load(tmp_path / "run").rows([metric])}
    for row in rows.values():
        assert row[f"{metric}_mean"] == pytest.approx(1 - row["cme_micro_mean"])
    assert rows["er"]["cme_mean"] < rows[name]["cme_mean"]  # "Newest" forgets
    looped = dpmcl.run({**table, "engine": "looped"})
    for method, record in result.records.items():
        np.testing.assert_allclose(
            record.test.values, looped.records[method].test.values, atol=0.051
        )


INSTALLED = """
from dataclasses import dataclass
from dpmcl import StreamSettings
from dpmcl.methods.er import ER

class Other(ER):
    '''Another method.'''

@dataclass(frozen=True, kw_only=True)
class Empty(StreamSettings):
    '''A stream of nothing.'''

    fails: bool = False

    def build(self, seeds):
        if self.fails:
            raise KeyError("no such file")
"""


@pytest.fixture
def installed(tmp_path, monkeypatch) -> Iterator[str]:
    """Install a package with entry points, of which one is broken; return its module's name."""
    name = f"installed_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(INSTALLED)
    about = tmp_path / f"{name}-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        f"[dpmcl.methods]\ner = {name}:Other\nother = {name}:Other\nbroken = {name}:Missing\n"
        f"[dpmcl.streams]\nempty = {name}:Empty\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for known in (plugins._installed, plugins._entry_points):
        known.cache_clear()
    yield name
    for known in (plugins._installed, plugins._entry_points):
        known.cache_clear()


def test_an_installed_package_is_treated_as_a_module_of_one_s_own(installed, capsys, caplog):
    tiny = {"replicas": 2, "training": {"updates": 2}, "methods": ["other"]}
    assert dpmcl.run({**tiny, "stream": {"name": "digits", "tasks": 1}}).records.keys() == {"other"}
    with pytest.raises(SpecError, match=r"method 'broken' cannot be imported: .*Missing"):
        dpmcl.run("digits", methods="broken")
    with pytest.raises(DataError, match=r"'empty' cannot be built: KeyError: 'no such file'"):
        dpmcl.run({**tiny, "stream": {"name": "empty", "fails": True}})
    with pytest.raises(DataError, match=r"'empty' must promise that `build` returns a Stream"):
        dpmcl.run({**tiny, "stream": "empty"})
    assert f"'er' of an installed package ({installed}:Other) is not used" in caplog.text
    list_()
    lines = {line.strip().partition(" ")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "cannot be imported" in lines["broken"]
    assert lines["er"].endswith(plugins.summary("method", "er"))


def test_an_observer(monkeypatch):
    """An observer can keep its own values in the state without changes of other files."""

    class Norms(Observer):
        def after_task(self, setup, run):
            bias = run.replicas.theta["prediction"]["2.bias"].norm(dim=1).numpy()
            seen = run.values.get("norms", np.empty((len(setup.seeds), 0)))
            return replace(run, values={**run.values, "norms": np.column_stack([seen, bias])})

    run = train(setup_of(ER(updates=3, batch=4), tiny_stream()), [Norms()])
    assert run.values["norms"].shape == (2, 3)
    assert (run.values["norms"] > 0).all()


def test_these_are_all_kinds(outside):
    assert set(plugins.KINDS) | {"reader"} == set(MODULES)
    assert f"{outside}_method" not in sys.modules  # plugins are imported only when they are needed
