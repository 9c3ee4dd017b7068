"""A replica that diverges is frozen where it last was finite, and the others never know."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

import dpmcl
from conftest import interrupt, refused, same_bits, tiny_run
from dpmcl.core import keys
from dpmcl.core.batch import Batch
from dpmcl.core.gradients import gradient
from dpmcl.core.tree import at, tree_map
from dpmcl.data.sampling import Draw
from dpmcl.engine import Batched, Looped
from dpmcl.exceptions import DivergenceError
from dpmcl.methods._method import Method, Phase, State
from dpmcl.results import figures
from dpmcl.results.record import Divergence

ENGINES = {
    "batched": Batched,
    "static": lambda: Batched(static=True),
    "looped": Looped,
}
SEEDS = (0, 1, 2)
SEGMENT, UPDATES = 5, 7


@pytest.fixture(scope="module", autouse=True)
def short_segments():
    """Segments of a few updates, so that phases of a few more have two."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpmcl.training.loop.UPDATES_AT_ONCE", SEGMENT)
        yield


def broken(how: str, hit: torch.Tensor, before: State, after: State) -> State:
    """A step that is broken where `hit` is true.

    "heals" is infinite for one update alone; "halts", the oracle, keeps theta from there on.
    """

    def replaced(tree: Any, value: float) -> Any:
        return tree_map(lambda leaf: torch.where(hit, leaf * 0 + value, leaf), tree)

    theta, mark = after.theta, after.extra["mark"]
    match how:
        case "nan":
            theta = replaced(theta, math.nan)
        case "one":  # a single number among all
            bias = theta["prediction"]["2.bias"]
            bias = torch.where(hit & (torch.arange(len(bias)) == 0), -math.inf, bias)
            theta = {**theta, "prediction": {**theta["prediction"], "2.bias": bias}}
        case "optimiser":
            after = after._replace(optimiser=replaced(after.optimiser, math.inf))
        case "algebra":  # raises an exception for NaN
            matrix = torch.where(hit, math.nan, torch.eye(2, dtype=torch.float64))
            zero = 0 * torch.linalg.svdvals(matrix).sum()
            theta = tree_map(lambda leaf: leaf + zero, theta)
        case "heals":
            mark = torch.where(hit, math.inf, 0.0)
        case "halts":
            mark = torch.where(hit, 1.0, mark)
            theta = tree_map(lambda a, b: torch.where(mark > 0, b, a), theta, before.theta)
    return after._replace(theta=theta, extra={"mark": mark})


@dataclass(frozen=True, kw_only=True)
class Falls(Method):
    """Naive, in two phases; breaks at (seed, task, phase, update), from 0, in each way."""

    falls: dict[str, list[list[int]]] = field(default_factory=dict)

    def start(self, theta: Any, task: Any) -> State:
        zero = torch.zeros((), dtype=torch.float64)
        return super().start(theta, task)._replace(extra={"mark": zero})

    def phases(self, model: Any, task: Any) -> Sequence[Phase]:
        return [self._phase(model, task, 0), self._phase(model, task, 1)]

    def _phase(self, model: Any, task: Any, phase: int) -> Phase:
        marked = {
            how: [
                keys.derive(seed, keys.Purpose.DROPOUT, task.number, phase, step=update)
                for seed, k, p, update in where
                if (k, p) == (task.number, phase)
            ]
            for how, where in self.falls.items()
        }

        def update(state: State, batches: Mapping[str, Batch], key: torch.Tensor) -> State:
            grads, _ = gradient(model.cost)(state.theta, batches["new"], key[0])
            new = self.descend(state, grads)
            for how, own in marked.items():
                hit = (key[0] == torch.stack(own or [torch.tensor([-1, -1])])).all(-1).any()
                new = broken(how, hit, state, new)
            return new

        return Phase("train", self.updates, {"new": Draw("new", self.batch)}, update)


def falls(*where: tuple[int, int, int, int], how: str = "nan", **settings: Any) -> Falls:
    own = {"optimiser": "adagrad", "lr": 0.05, "batch": 4, "updates": UPDATES, **settings}
    return Falls(**{"falls": {how: [list(w) for w in where]}, **own})


def outcome(method: Method, engine: str, seeds: tuple[int, ...] = SEEDS, **options: Any) -> Any:
    return tiny_run(method, seeds, ENGINES[engine](), **{"tasks": 2, **options})


def assert_bits(first: Any, second: Any) -> None:
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def check(
    result: Any, healthy: Any, halted: Any, expected: dict[int, Divergence], seeds: Any = SEEDS
) -> None:
    """Frozen ones as expected, and nobody else touched."""
    assert result.diverged == expected
    for i, seed in enumerate(seeds):
        values, well = result.errors["test"].values[i], healthy.errors["test"].values[i]
        if seed not in expected:
            assert_bits(at(result.theta, i), at(healthy.theta, i))
            np.testing.assert_array_equal(values, well)
            continue
        assert_bits(at(result.theta, i), at(halted.theta, i))
        task = expected[seed].task
        np.testing.assert_array_equal(values[: 1 + task], well[: 1 + task])
        assert np.isnan(values[1 + task :]).all()


CASES = {
    "phases": (
        (3, 8, 5, 1, 9),
        [(3, 0, 0, 0), (8, 0, 0, SEGMENT - 1), (5, 0, 0, SEGMENT), (1, 1, 1, UPDATES - 1)],
        {},
    ),
    "two in one segment and two in one update": (
        (0, 1, 2, 3),
        [(0, 0, 1, 1), (1, 0, 1, 3), (2, 0, 1, 3)],
        {},
    ),
    "all": (SEEDS, [(0, 0, 0, 3), (1, 0, 1, 6), (2, 1, 0, 0)], {}),
    "the first counts": (SEEDS, [(1, 0, 0, 2), (1, 0, 0, 4), (1, 1, 0, 2)], {}),
    "a single number": (SEEDS, [(1, 1, 0, 3)], {"how": "one"}),
    "an optimiser that starts anew": (
        SEEDS,
        [(2, 0, 1, 5)],
        {"how": "optimiser", "reset_at_task": True},
    ),
}


@pytest.mark.parametrize(
    ("case", "engine"),
    [*((case, "batched") for case in CASES), ("phases", "static"), ("phases", "looped")],
)
def test_several_are_frozen_each_at_its_own_update(case, engine):
    seeds, where, settings = CASES[case]
    expected = {s: Divergence(k, p, u + 1) for s, k, p, u in reversed(where)}
    result = outcome(falls(*where, **settings), engine, seeds)
    healthy = outcome(falls(**settings), engine, seeds)
    halted = outcome(falls(*where, **{**settings, "how": "halts"}), engine, seeds)
    assert not healthy.diverged
    assert not same_bits(healthy.theta, halted.theta)
    check(result, healthy, halted, expected, seeds)


@pytest.mark.parametrize("engine", ["batched", "looped"])
@pytest.mark.parametrize("where", [[(1, 0, 0, 3), (2, 0, 1, 5)], [(0, 0, 1, 0), (2, 0, 1, 5)]])
def test_linear_algebra_that_fails_for_one_replica_does_not_end_the_others(
    where, engine, log_lines
):
    result = outcome(falls(*where, how="algebra"), engine)
    halted = outcome(falls(*where, how="halts"), engine)
    assert result.diverged == {s: Divergence(k, p, u + 1) for s, k, p, u in where}
    assert result.work == halted.work
    torch.testing.assert_close(result.theta, halted.theta, rtol=1e-12, atol=1e-12)
    assert any("an update fails, as of numbers that diverge" in line for line in log_lines)


@dataclass(frozen=True, kw_only=True)
class Restarts(Falls):
    """Each task from the initial weights."""

    restarts = True


def test_with_a_method_that_starts_anew():
    """Frozen in the first task, it does not rise again in the second."""

    own = {"lr": 0.05, "batch": 4, "updates": UPDATES}
    result = outcome(Restarts(falls={"nan": [[0, 0, 1, 2]]}, **own), "batched")
    healthy = outcome(Restarts(**own), "batched")
    assert result.diverged == {0: Divergence(0, 1, 3)}
    assert np.isnan(result.errors["test"].values[0, 1:]).all()
    assert not torch.equal(
        at(result.theta, 0)["prediction"]["2.bias"], at(healthy.theta, 0)["prediction"]["2.bias"]
    )
    for i in (1, 2):
        assert_bits(at(result.theta, i), at(healthy.theta, i))
        np.testing.assert_array_equal(
            result.errors["test"].values[i], healthy.errors["test"].values[i]
        )


def test_what_heals_within_a_segment_is_the_same_alone_and_beside_one_that_falls():
    """Whether it counts as diverged cannot depend on another replica."""
    where = {"heals": [[1, 0, 0, 1]], "nan": [[2, 0, 0, 3]]}
    alone, beside = (
        outcome(falls(falls={how: where[how] for how in hows}), "batched")
        for hows in (["heals"], ["heals", "nan"])
    )
    assert beside.diverged[2] == Divergence(0, 0, 4)
    assert beside.diverged.get(1) == alone.diverged.get(1)
    assert_bits(at(beside.theta, 1), at(alone.theta, 1))
    np.testing.assert_array_equal(beside.errors["test"].values[1], alone.errors["test"].values[1])


# studies

NAME = f"{__name__}:Falls"


def spec(where: Sequence[Sequence[int]] = ((1, 1, 0, 3),), **top: Any) -> dict[str, Any]:
    return {
        "replicas": 3,
        "stream": {"name": "digits", "tasks": 3},
        "network": {"name": "mlp", "hidden": 4},
        "training": {"updates": UPDATES, "batch": 4, "lr": 0.05},
        "methods": {"naive": {}, NAME: {"falls": {"nan": [list(w) for w in where]}}},
        "device": "cpu",
        "engine": "batched",
        **top,
    }


def values(result: dpmcl.Result) -> np.ndarray:
    return result.errors[NAME].values


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run in which seed 1 fell in the second task."""
    path = tmp_path_factory.mktemp("divergence") / "run"
    dpmcl.run(spec(), out=path)
    return path


def test_the_folder_says_who_fell_and_where(folder):
    assert json.loads((folder / "divergence.json").read_text()) == {
        NAME: {"1": {"task": 1, "phase": 0, "update": 4, "cause": "not finite"}}
    }
    result = dpmcl.load(folder)
    assert result.records[NAME].diverged == {1: Divergence(1, 0, 4)}
    assert result.records["naive"].diverged == {}
    assert np.isnan(values(result)[1, 2:]).all()
    assert np.isfinite(values(result)[1, 1, 0])
    assert np.isfinite(values(result)[0, 3]).all()


@pytest.mark.filterwarnings("error")
def test_all_seeds_may_fall_in_a_stored_run_with_its_table_and_figure(folder, tmp_path):
    result = dpmcl.run(spec([(s, 0, 0, 0) for s in range(3)]), out=tmp_path / "all")
    row = next(row for row in result.rows() if row["method"] == NAME)
    assert row["cme_mean"] is None
    assert "nan" not in result.table("json").lower()
    np.testing.assert_array_equal(values(dpmcl.load(tmp_path / "all")), values(result))
    result.plot(tmp_path / "all.png", 2.0)
    result = dpmcl.load(folder)
    assert "1 of all 6 diverged" in figures.curves(result.records, result.stream).get_suptitle()


def test_stopping_there_names_it_and_freezing_goes_on(tmp_path, caplog):
    words = (NAME, "seed 1 ", "update 4 ", "phase 0 ", "task 1 ", "training.lr", "freeze")
    stops = {"out": tmp_path / "run", "checkpoint_seconds": 0}
    refused(lambda: dpmcl.run(spec(on_divergence="stop"), **stops), *words, error=DivergenceError)
    assert NAME not in dpmcl.load(tmp_path / "run").records
    done: list[int] = []
    with caplog.at_level("WARNING", "dpmcl"):
        result = dpmcl.run(
            spec(), out=tmp_path / "run", progress=lambda name, n, _: done.append(n) or None
        )
    assert next(n for n in done if n) > 2 * UPDATES  # it goes on in the second task
    assert any("seed 1 is not finite after update 4" in line for line in caplog.messages)
    np.testing.assert_array_equal(values(result), values(dpmcl.run(spec())))


def test_stop_counts_for_a_replica_that_fell_before_the_checkpoint(tmp_path):
    """Interrupted after the fall with "freeze", then run with "stop": it stops."""
    report = itertools.count(1)
    interrupt(
        spec(), lambda name, done, _: name == NAME and done > 0 and next(report) == 7,
        out=tmp_path, checkpoint_seconds=0,
    )  # fmt: skip
    with pytest.raises(DivergenceError, match="seed 1 is not finite after update 4"):
        dpmcl.run(spec(on_divergence="stop"), out=tmp_path)
