"""Write errors after each task to TensorBoard or MLflow while a job runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from filelock import FileLock

from dpmcl.core.choices import Tracker
from dpmcl.exceptions import SpecError, needed_for
from dpmcl.training.observer import Observer
from dpmcl.training.setup import Setup
from dpmcl.training.state import RunState

Write = Callable[[int, Mapping[str, float], bool], None]
"""write(step, values by name, whether it is the last step)."""


@dataclass(frozen=True)
class Tracking(Observer):
    """Passes the errors on test rows after each task to a writer, as means over the replicas.

    Must come after the observer that evaluates.

    Attributes:
        write: Called with the number of the task, from 0, and CME, NTE and the error on each task
            seen, by name; without those that this evaluation leaves out (`evaluate_every`).
    """

    write: Write

    def after_task(self, setup: Setup, run: RunState) -> RunState:
        task = run.position.task - 1
        errors = run.values["errors.test"][:, 1 + task, : task + 1]
        alive = errors[np.isfinite(errors[:, task])]
        values: dict[str, float] = {}
        if len(alive):
            means = alive.mean(0)
            values = {"CME": float(means.mean()), "NTE": float(means[task])}
            values |= {f"error/{setup.stream.tasks[k]}": e for k, e in enumerate(means.tolist())}
        evaluated = {name: value for name, value in values.items() if np.isfinite(value)}
        self.write(task, evaluated, run.position.task == setup.tasks)
        return run


def tracking(tracker: Tracker, folder: Path | None, name: str) -> Tracking:
    """Return an observer that writes errors into a run folder.

    Args:
        tracker: "tensorboard" writes events to FOLDER/tensorboard/NAME, "mlflow" a run NAME to
            FOLDER/mlflow.db.
        folder: The run folder.
        name: Name of the job.

    Raises:
        SpecError: There is no run folder.
        DpmclError: The package of the tracker is not installed.
    """
    if folder is None:
        raise SpecError(f"track = ['{tracker}'] writes into the run folder; give one with `out`.")
    write = _tensorboard if tracker == "tensorboard" else _mlflow
    with needed_for(f"track = ['{tracker}']", "dpmcl[tracking]"):
        return Tracking(write(folder, name))


def _tensorboard(folder: Path, name: str) -> Write:
    from torch.utils.tensorboard import SummaryWriter

    def write(step: int, values: Mapping[str, float], last: bool) -> None:
        with SummaryWriter(folder / "tensorboard" / name) as writer:
            for key, value in values.items():
                writer.add_scalar(key, value, step)

    return write


def _mlflow(folder: Path, name: str) -> Write:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "mlflow.db.lock"):  # jobs of a run may create the tables simultaneously
        client = MlflowClient(f"sqlite:///{(folder / 'mlflow.db').absolute()}")
        title = folder.absolute().name
        known = client.get_experiment_by_name(title)
        experiment = known.experiment_id if known else client.create_experiment(title)
        runs = client.search_runs([experiment], f"attributes.run_name = '{name}'", max_results=1)
        run = (runs or [client.create_run(experiment, run_name=name)])[0].info.run_id

    def write(step: int, values: Mapping[str, float], last: bool) -> None:
        metrics = [Metric(_metric_name(key), value, 0, step) for key, value in values.items()]
        client.log_batch(run, metrics)
        if last:
            client.set_terminated(run)

    return write


def _metric_name(key: str) -> str:
    """Return a key as a name that MLflow accepts."""
    return "".join(c if c.isalnum() or c in "_-. /" else "_" for c in key)
