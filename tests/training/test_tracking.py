"""Errors after each task, in TensorBoard's files and in MLflow's database."""

import logging

import numpy as np
import pytest

import dpmcl
from dpmcl.exceptions import DpmclError

FEW = {"training.updates": 2, "network.hidden": 4, "stream.tasks": 3}


def run(tracker, out=None, **more):
    settings = {**FEW, "track": [tracker], **more}
    return dpmcl.run("digits", methods=["er"], replicas=2, settings=settings, out=out)


@pytest.fixture
def expected(tmp_path):
    """CME after each task, mean over replicas, of a run without a tracker."""
    errors = dpmcl.run("digits", methods=["er"], replicas=2, settings=FEW).errors["er"].after
    return [float(errors[:, k, : k + 1].mean()) for k in range(3)]


def test_tensorboard(tmp_path, expected):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run("tensorboard", tmp_path / "run")
    events = accumulator.EventAccumulator(str(tmp_path / "run/tensorboard/er seeds 0-1"))
    events.Reload()
    np.testing.assert_allclose([e.value for e in events.Scalars("CME")], expected, rtol=1e-6)
    assert [e.step for e in events.Scalars("error/0")] == [0, 1, 2]
    assert [e.step for e in events.Scalars("error/2")] == [2]
    run("tensorboard", tmp_path / "rare", **{"evaluation.evaluate_every": 3})
    events = accumulator.EventAccumulator(str(tmp_path / "rare/tensorboard/er seeds 0-1"))
    events.Reload()
    assert [e.step for e in events.Scalars("CME")] == [0, 2]  # after task 1 only task 1
    assert [e.step for e in events.Scalars("NTE")] == [0, 1, 2]


def test_mlflow(tmp_path, expected):
    mlflow = pytest.importorskip("mlflow")
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    run("mlflow", tmp_path / "run")
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'run/mlflow.db'}")
    (stored,) = client.search_runs([client.get_experiment_by_name("run").experiment_id])
    assert stored.info.status == "FINISHED"
    history = client.get_metric_history(stored.info.run_id, "CME")
    np.testing.assert_allclose([metric.value for metric in history], expected)
    dpmcl.run(tmp_path / "run", replicas=3)  # a tracker may be left out, and asked for again
    assert dpmcl.load(tmp_path / "run").rows()[0]["replicas"] == 3


def test_a_tracker_needs_a_folder_and_a_name_that_is_known():
    with pytest.raises(DpmclError, match="writes into the run folder; give one"):
        run("tensorboard")
    with pytest.raises(DpmclError, match="track"):
        run("wandb")
