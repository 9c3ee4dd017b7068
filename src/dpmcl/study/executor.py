"""Execute the jobs of one or more runs, in this process and in worker processes.

Each job runs in a single process, and its results do not depend on which one. This process runs
jobs too. Workers are started only after it has worked for `WORTH_SECONDS` and jobs are still
waiting, so short studies do not pay for their start.
"""

import logging
import pickle
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import loky
import torch

from dpmcl.data.stream import Stream
from dpmcl.engine import device_of
from dpmcl.exceptions import DeviceError, Stopped
from dpmcl.study.starts import starts
from dpmcl.study.worker import Order
from dpmcl.training.job import Job, Outcome, Trainer
from dpmcl.training.keeper import Keeping
from dpmcl.training.progress import ProgressCallback
from dpmcl.training.spec import Spec

_LOG = logging.getLogger("dpmcl")

WORTH_SECONDS = 3.0
"""Time for which this process works before it starts workers, about as long as a start takes."""

_Inbox = queue.SimpleQueue[tuple["Assignment", str, Any]]

_COMMAND = "import sys; sys.path[:] = {path!r}; from dpmcl.study.worker import main; main()"


@dataclass(frozen=True, eq=False)
class Assignment:
    """A job of a run, and the functions that receive its progress and its outcome.

    Both are called in the thread that called `execute`.

    Attributes:
        trainer: Trainer of the run.
        job: The job.
        progress: Called as progress(done, total), in updates of all replicas of the job.
        finished: Called with the outcome when the job has finished.
    """

    trainer: Trainer
    job: Job
    progress: ProgressCallback
    finished: Callable[[Outcome], None]


def processes_of(spec: Spec) -> int:
    """Return the number of processes that may run jobs, this one included.

    On a GPU it is one. On a CPU it is the spec's `workers`, or by default the number of available
    cores, as limited by affinity and a container, divided by the spec's `threads`.

    Args:
        spec: Spec of the jobs, or of the first of several runs.
    """
    if device_of(spec.device).type != "cpu":
        return 1
    return spec.workers or max(1, int(loky.cpu_count()) // spec.threads)


def execute(assignments: Sequence[Assignment], keeping: Keeping) -> None:
    """Run jobs until all have finished, or one has failed.

    If a worker dies, its job is left to the next call, which resumes it from its last checkpoint,
    and the other jobs continue. Any other failure, and a request to stop, ends all jobs after a
    checkpoint.

    Args:
        assignments: The jobs, in the order in which they start.
        keeping: When jobs are saved, and when all of them stop.

    Raises:
        DeviceError: A worker process was ended from outside.
        Stopped: `keeping` asked the jobs to stop.
        DpmclError: Any error that a job raises.
    """
    _Execution(assignments, keeping).run()


class _Execution:
    """One call of `execute`."""

    def __init__(self, assignments: Sequence[Assignment], keeping: Keeping) -> None:
        self._keeping = keeping
        self._waiting = deque(assignments)
        self._processes = min(processes_of(assignments[0].trainer.spec), len(assignments))
        self._began = time.monotonic()
        self._inbox: _Inbox = queue.SimpleQueue()
        self._workers: list[_Worker] | None = None
        self._error: BaseException | None = None
        self._lost: list[Job] = []

    def run(self) -> None:
        with tempfile.TemporaryDirectory(prefix="dpmcl-") as scratch:
            self._scratch = Path(scratch)
            try:
                self._take_jobs()
                self._wait()
            finally:
                for worker in self._workers or ():
                    worker.end()
        if self._error is not None:
            raise self._error
        if self._lost:
            lost = ", ".join(sorted({job.method for job in self._lost}))
            raise DeviceError(
                f"A worker process was ended while it trained {lost}, most likely for want of "
                "memory; the others have finished. Run again to go on from its last checkpoint, "
                "with fewer workers, as in --set workers=1."
            )

    def _take_jobs(self) -> None:
        """Run jobs in this process while any are waiting."""
        keeping = Keeping(self._keeping.seconds, self._should_stop)
        while (assignment := self._next_assignment()) is not None:
            report = self._progress_of(assignment)
            try:
                outcome = assignment.trainer.run(assignment.job, keeping, report)
            except Exception as error:
                self._fail(error)
            else:
                assignment.finished(outcome)
            self._receive()

    def _progress_of(self, assignment: Assignment) -> ProgressCallback:
        def report(done: int, total: int) -> None:
            assignment.progress(done, total)
            self._receive()
            if self._workers is None and time.monotonic() - self._began > WORTH_SECONDS:
                self._start_workers()

        return report

    def _wait(self) -> None:
        """Wait until the workers have finished their jobs."""
        while any(worker.busy for worker in self._workers or ()) or not self._inbox.empty():
            if self._should_stop() and self._error is None:
                self._fail(Stopped())
            try:
                self._handle(*self._inbox.get(timeout=0.1))
            except queue.Empty:
                continue

    def _next_assignment(self) -> Assignment | None:
        """Return the next job, or None. Several threads call it: `popleft` is atomic."""
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    def _should_stop(self) -> bool:
        return self._error is not None or self._keeping.stop()

    def _fail(self, error: BaseException) -> None:
        """Keep the first error, and stop all other jobs."""
        self._error = self._error or error
        self._waiting.clear()
        for worker in self._workers or ():
            worker.stop()

    def _receive(self) -> None:
        while not self._inbox.empty():
            self._handle(*self._inbox.get())

    def _handle(self, assignment: Assignment, kind: str, content: Any) -> None:
        if kind == "progress":
            assignment.progress(*content)
        elif kind == "log":
            line, once = content
            _LOG.warning(line, extra={"once": once})
        elif kind == "finished":
            assignment.finished(content)
        elif kind == "died":
            self._lost.append(assignment.job)
        elif not isinstance(content, Stopped) or self._error is None:
            self._fail(content)

    def _start_workers(self) -> None:
        """Start a process for each waiting job, up to the number of processes."""
        count = min(self._processes - 1, len(self._waiting))
        self._workers = []
        try:
            trainers = [assignment.trainer for assignment in self._waiting]
            start_of = starts(trainers, partial(_save_stream, self._scratch))
            orders = {
                assignment: Order(
                    *start_of[assignment.trainer], assignment.job, self._keeping.seconds
                )
                for assignment in self._waiting
            }
            for _ in range(count):
                self._workers.append(_Worker(self._next_assignment, orders, self._inbox))
        except Exception as error:  # a user's object cannot be pickled, or the system refuses
            _LOG.info("No worker processes: %s", error)


def _save_stream(folder: Path, stream: Stream) -> Path:
    """Save a stream to a file in a folder, for all workers to map into memory; return the file."""
    path = folder / f"stream-{len(list(folder.iterdir()))}"
    torch.save(stream, path, pickle_module=cloudpickle)
    return path


class _Worker:
    """A worker process, and the thread that gives it one job after another.

    Args:
        take: Returns the next job, or None.
        orders: The message with which a worker runs each job.
        inbox: Queue for the worker's messages, each with its job.
    """

    def __init__(
        self,
        take: Callable[[], Assignment | None],
        orders: Mapping[Assignment, Order],
        inbox: _Inbox,
    ) -> None:
        command = [sys.executable, "-c", _COMMAND.format(path=sys.path)]
        self._take, self._orders, self._inbox = take, orders, inbox
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Return True while the worker may still get a job or send a message."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Ask the worker to stop after a checkpoint."""
        self._send(None)

    def end(self) -> None:
        """End the process at once; its job, if any, is lost."""
        self._process.kill()
        self._process.wait()

    def _serve(self) -> None:
        """Give the process jobs, and the inbox its messages, until it dies or no job waits."""
        while (assignment := self._take()) is not None:
            try:
                self._run_job(assignment)
            except (EOFError, pickle.UnpicklingError, OSError):
                self.end()
                self._inbox.put((assignment, "died", None))
                return

    def _run_job(self, assignment: Assignment) -> None:
        """Send a job to the process, and its messages to the inbox, until the job has ended."""
        self._send(self._orders[assignment])
        kind = ""
        while kind not in ("finished", "failed"):
            assert self._process.stdout is not None
            kind, content = pickle.load(self._process.stdout)
            self._inbox.put((assignment, kind, content))

    def _send(self, message: Any) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # it has died, which the reading thread will notice
            self._process.stdin.write(pickle.dumps(message))
            self._process.stdin.flush()
