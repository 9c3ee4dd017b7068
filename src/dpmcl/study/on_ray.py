"""Execute jobs as tasks of a Ray cluster, or of Ray on this machine.

A job is a Ray task with one CPU, and one GPU if it trains on a GPU. Its checkpoints are in the run
folder, which all nodes must see under the same path, or on storage with an address. If a worker or
node dies, Ray starts the task again, and it resumes from its last checkpoint. If the driver dies,
the next call resumes the jobs in the same way. The stored results have the same bytes as those of
`executor.execute`.
"""

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import cloudpickle
import numpy as np
import torch

from dpmcl.core.threads import threads
from dpmcl.data.stream import Stream
from dpmcl.exceptions import DeviceError, DpmclError, Stopped, needed_for, reason
from dpmcl.study.executor import Assignment
from dpmcl.study.log_lines import logged_to
from dpmcl.study.starts import starts
from dpmcl.training.job import Job, Outcome, Trainer
from dpmcl.training.keeper import Keeping

_LOG = logging.getLogger("dpmcl")

ADDRESS = "DPMCL_RAY"
"""Environment variable with the address of a cluster, as "auto"; by default Ray runs here."""

_RETRIES = 3  # restarts of a task whose worker has died
_POLL = 0.5  # seconds to wait for results between checks of `keeping.stop`

_trainers: dict[bytes, Trainer] = {}
"""The trainer of a worker's last job, by the pickled function that made it."""


def execute_on_ray(assignments: Sequence[Assignment], keeping: Keeping) -> None:
    """Run jobs on Ray until all have finished, or one has failed.

    Progress is reported when a job is submitted and when it ends.

    Args:
        assignments: The jobs, in the order in which they start.
        keeping: When jobs are saved, and when all of them stop.

    Raises:
        DeviceError: A job's worker died after every restart; the other jobs have finished.
        Stopped: `keeping` asked the jobs to stop.
        DpmclError: Any error that a job raises, or Ray is not installed.
    """
    with _cluster() as ray:
        waiting = _submit(ray, assignments, keeping)
        for assignment in assignments:
            assignment.progress(0, 1)
        lost = set()
        try:
            while waiting:
                if keeping.stop():
                    raise Stopped()
                for reference in ray.wait(list(waiting), timeout=_POLL)[0]:
                    assignment = waiting.pop(reference)
                    outcome = _outcome(ray, reference)
                    if outcome is None:
                        lost.add(assignment.job.method)
                        continue
                    assignment.progress(1, 1)
                    assignment.finished(outcome)
        finally:
            for reference in waiting:
                ray.cancel(reference, force=True)
        if lost:
            raise DeviceError(
                f"Workers that trained {', '.join(sorted(lost))} died {_RETRIES + 1} times, most "
                "likely for want of memory; the others have finished. Run again to go on from the "
                "last checkpoints."
            )


def _submit(ray: Any, assignments: Sequence[Assignment], keeping: Keeping) -> dict[Any, Assignment]:
    """Submit all jobs to Ray, and return them by the references of their results."""
    train = ray.remote(num_cpus=1, max_retries=_RETRIES)(_train)
    on_gpu = train.options(num_gpus=1)
    trainers = [assignment.trainer for assignment in assignments]
    start_of = starts(trainers, lambda stream: ray.put(_bytes_of(stream)))
    waiting = {}
    for assignment in assignments:
        start, stream = start_of[assignment.trainer]
        task = train if assignment.trainer.device.type == "cpu" else on_gpu
        reference = task.remote(
            start, stream, assignment.job, seconds=keeping.seconds, path=tuple(sys.path)
        )
        waiting[reference] = assignment
    return waiting


def _bytes_of(stream: Stream) -> np.ndarray:
    """Return a saved stream as a uint8 array, which Ray's store shares between workers."""
    buffer = BytesIO()
    torch.save(stream, buffer, pickle_module=cloudpickle)
    return np.frombuffer(buffer.getbuffer(), dtype=np.uint8)


def _outcome(ray: Any, reference: Any) -> Outcome | None:
    """Return the outcome of a job and log its lines; return None if its workers died.

    Raises the error that the job raised.
    """
    worker_deaths = (
        ray.exceptions.WorkerCrashedError,
        ray.exceptions.NodeDiedError,
        ray.exceptions.OutOfMemoryError,
    )
    try:
        outcome, lines = cloudpickle.loads(ray.get(reference))
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, DpmclError):
            raise error.cause from None
        raise
    except worker_deaths as error:
        _LOG.info("A worker died: %s", reason(error))
        return None
    for line, once in lines:
        _LOG.warning(line, extra={"once": once})
    return outcome  # type: ignore[no-any-return]


@contextmanager
def _cluster() -> Iterator[Any]:
    """Connect to Ray; disconnect after the block unless the caller was connected before."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with needed_for("--on ray", "dpmcl[ray]"):
        import ray
    if ray.is_initialized():
        yield ray
        return
    address = os.environ.get(ADDRESS)
    options: dict[str, Any] = {"address": address} if address else {"include_dashboard": False}
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as error:
        raise DpmclError(
            f"Ray cannot be reached at {address or 'this machine'} ({reason(error)}); start it, or "
            f"correct {ADDRESS}."
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _train(
    start: bytes, stream: np.ndarray, job: Job, *, seconds: float, path: tuple[str, ...]
) -> bytes:
    """Run a job in a worker of Ray, from its last checkpoint.

    Returns the outcome and the logged lines, pickled.
    """
    sys.path += [entry for entry in path if entry not in sys.path]
    if start not in _trainers:
        _trainers.clear()  # frees the data of the previous run
        loaded = torch.load(BytesIO(stream.data), weights_only=False)
        _trainers[start] = cloudpickle.loads(start)(loaded)
    trainer = _trainers[start]
    if (checkpoints := trainer.checkpoints(job)) is not None:
        checkpoints.refuse_removed()  # fail early if this machine does not see the folder
    lines: list[tuple[str, str | None]] = []
    with threads(1), logged_to(lambda *line: lines.append(line)):
        outcome = trainer.run(job, Keeping(seconds))
    content: bytes = cloudpickle.dumps((outcome, lines))
    return content
