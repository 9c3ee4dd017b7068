"""Anytime and micro accuracy, confusion, and the error of rows as they arrive."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import dpmcl
from conftest import interrupt, tiny_stream
from dpmcl import Draw
from dpmcl.core.errors import Errors
from dpmcl.exceptions import DpmclError, SpecError
from dpmcl.methods.naive import Naive
from dpmcl.metrics._confusion import confusion
from dpmcl.metrics.accuracy_micro import accuracy_micro
from dpmcl.metrics.anytime_accuracy import anytime_accuracy
from dpmcl.metrics.nte_path import nte_path
from dpmcl.results.record import Divergence

NAN = np.nan
E = np.array([
    [[1, 1, 1], [0.2, NAN, NAN], [0.4, 0.0, NAN], [0.6, 0.3, 0.0]],
    [[1, 1, 1], [0.0, NAN, NAN], [NAN, 0.0, NAN], [0.3, 0.3, 0.3]],
])  # fmt: skip
ERRORS = Errors((0, 1), E, np.array([[10, 20, 30], [10, 20, 30]]))


def test_anytime_and_micro_accuracy():
    np.testing.assert_allclose(anytime_accuracy(ERRORS), [(0.8 + 0.8 + 0.7) / 3, NAN])
    micro = [0.8, 1 - 4 / 30, 1 - 12 / 60]
    np.testing.assert_allclose(anytime_accuracy(ERRORS, micro=True), [np.mean(micro), NAN])
    np.testing.assert_allclose(accuracy_micro(ERRORS), [0.8, 0.7])


SETTINGS = {"workers": 1, "network.hidden": 8, "training.batch": 5, "training.lr": 0.05,
            "training.passes": 1}  # fmt: skip


def run(methods, **settings):
    changes = {**SETTINGS, **{key.replace("__", "."): v for key, v in settings.items()}}
    return dpmcl.run(tiny_stream(), methods=methods, replicas=2, settings=changes)


def test_a_confusion_matrix_counts_the_final_predictions(tmp_path):
    result = run(["naive"], evaluation__confusion=True)
    counts = confusion(result.records["naive"].predictions, 6)
    assert counts.sum((1, 2)).tolist() == [36, 36]
    assert (counts.sum(2) == 6).all()
    right = counts.diagonal(axis1=1, axis2=2).sum(1) / 36
    np.testing.assert_allclose(right, accuracy_micro(result.errors["naive"]))
    figure = result.plot(tmp_path / "confusion.png", what="confusion")
    shown = figure.axes[0].images[0].get_array()
    np.testing.assert_allclose(shown, counts.sum(0) / 12)
    assert (counts[0] != counts[1]).any()
    diverged = replace(result.records["naive"], diverged={1: Divergence(2, 0, 17)})
    figure = replace(result, records={"naive": diverged}).plot(what="confusion")
    np.testing.assert_allclose(figure.axes[0].images[0].get_array(), counts[0] / 6)
    with pytest.raises(DpmclError, match="needs predictions, and this run has kept none"):
        run(["naive"]).plot(what="confusion")
    numbers = replace(result, stream=replace(result.stream, kind="regression"))
    with pytest.raises(DpmclError, match="counts classes, and a regression has none"):
        numbers.plot(what="confusion")
    with pytest.raises(SpecError, match="confusion counts classes, and a regression has none"):
        dpmcl.run("sine", methods=["er"], tasks=2, settings={"evaluation.confusion": True})


@dataclass(frozen=True, kw_only=True)
class Uneven(dpmcl.StreamSettings):
    """Seed s has s rows more in its first task than in its second."""

    def build(self, seeds):
        task = torch.stack([(torch.arange(36) >= 18 + s).long() for s in seeds])
        row = torch.arange(task.numel()).view_as(task)
        x = torch.arange(36.0).repeat(len(seeds))[:, None]
        return dpmcl.Stream("uneven", "regression", x, x, row, task, ("a", "b"), (), 1)


def test_predictions_need_as_many_test_rows_in_each_replica():
    settings = {"training.updates": 1, "evaluation.predictions": True}
    with pytest.raises(SpecError, match="the same number of test rows, got 7 and 8"):
        dpmcl.run(Uneven(), methods=["naive"], replicas=2, settings=settings)
    limited = {**settings, "evaluation.test_rows": 3}
    kept = dpmcl.run(Uneven(), methods=["naive"], replicas=2, settings=limited).records["naive"]
    assert kept.predictions["test.task"].tolist() == [[0, 0, 0, 1, 1, 1]] * 2


@pytest.mark.parametrize("engine", ["looped", "batched"])
def test_rows_are_tested_before_they_are_trained_on(engine):
    """With no step to speak of, the error of the rows as they come is that of training rows."""
    table = {"evaluation__arriving": True, "evaluation__train": True, "engine": engine}
    still = run(["naive"], training__lr=1e-30, **table).records["naive"].errors
    task = np.arange(3)
    assert still["arriving"].examples.tolist() == [[36] * 3] * 2
    np.testing.assert_allclose(
        still["arriving"].after[:, task, task], still["train"].after[:, task, task]
    )
    whole = {"training__batch": 36, "training__lr": 0.5, "evaluation__future": True}  # one update
    one = run(["naive"], **table, **whole).records["naive"].errors
    np.testing.assert_allclose(
        one["arriving"].after[:, task, task], one["train"].values[:, task, task]
    )
    result = run(["naive", "er_ace", "ewc", "er"], **table)
    for name in ("naive", "er_ace", "ewc"):
        errors = result.records[name].errors["arriving"]
        assert (errors.examples == 36).all()
        assert (nte_path(errors) > nte_path(result.errors[name])).all()
    assert "arriving" not in result.records["er"].errors


@dataclass(frozen=True, kw_only=True)
class Still(Naive):
    """Evaluated are the initial weights."""

    def start(self, theta, task):
        return super().start(theta, task)._replace(extra=theta)

    def evaluated(self, state):
        return state._replace(theta=state.extra)


def test_rows_that_arrive_are_tested_on_the_model_that_is_evaluated():
    table = {"evaluation__arriving": True, "evaluation__train": True, "training__lr": 0.5}
    errors = run([Still], **table).records[f"{__name__}:Still"].errors
    task = np.arange(3)
    np.testing.assert_allclose(
        errors["arriving"].after[:, task, task], errors["train"].after[:, task, task]
    )


def test_a_run_that_was_stopped_or_is_extended_has_the_same_error_of_arriving_rows(tmp_path):
    own = {"methods": ["naive", "er"], "settings": {"evaluation.arriving": True, **SETTINGS}}
    whole = dpmcl.run(tiny_stream(), replicas=3, **own)
    own["out"] = tmp_path / "run"
    interrupt(tiny_stream(), 6, replicas=2, checkpoint_seconds=0, **own)
    for replicas in (2, 3):
        again = dpmcl.run(tiny_stream(), replicas=replicas, **own)
    for result in (again, dpmcl.load(tmp_path / "run")):
        one, other = (r.records["naive"].errors["arriving"] for r in (whole, result))
        np.testing.assert_allclose(one.values, other.values, atol=1e-12)
        assert np.array_equal(one.examples, other.examples)


class Again(Naive):
    """Draws new rows with replacement, also where `passes` says otherwise."""

    def new_rows(self, block=None):
        return Draw("new", self.batch, block=block)


def test_rows_that_come_twice_have_no_first_time():
    with pytest.raises(SpecError, match=r"'new' of '.*Again' is with replacement"):
        run([Again], evaluation__arriving=True)
    with pytest.raises(SpecError, match=r"needs training\.passes = 1, got 2"):
        run(["naive"], training__passes=2, evaluation__arriving=True)
    for name, own in (("dpmcl", {"kappa": 9}), ("oml", {"n_grad": 9, "n_meta": 1})):
        with pytest.raises(SpecError, match=f"'{name}' makes 9 updates at task 0 .*one pass has 8"):
            run({name: own}, evaluation__arriving=True)


def test_rows_that_arrive_need_a_model_to_be_tested_on():
    """The original OML chooses one of its rates before each evaluation."""
    own = {"reading": "original", "pretraining": "none"}
    with pytest.raises(SpecError, match="'cml' chooses the model that is evaluated only before an"):
        run({"cml": own}, evaluation__arriving=True)
    result = run({"cml": {**own, "rates": [0.1]}}, evaluation__arriving=True)
    assert np.isfinite(nte_path(result.records["cml"].errors["arriving"])).all()
