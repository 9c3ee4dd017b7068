"""Runs the jobs of one or more runs, in this process and in worker processes beside it.

A job runs whole in one process, and its numbers do not depend on which. This process takes jobs
too; workers are started once it has worked for a while and others are waiting, so short studies
never pay for them.
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
from collections.abc import Callable, Sequence
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
from dpmcl.study.starts import Starts
from dpmcl.study.worker import Order
from dpmcl.training.job import Job, Outcome, Trainer
from dpmcl.training.keeper import Keeping
from dpmcl.training.spec import Spec

_LOG = logging.getLogger("dpmcl")

WORTH_SECONDS = 3.0
"""Work of this process before others are started, which take as long to come up."""

_Inbox = queue.SimpleQueue[tuple["Assignment", str, Any]]

_COMMAND = "import sys; sys.path[:] = {path!r}; from dpmcl.study.worker import main; main()"


@dataclass(frozen=True, eq=False)
class Assignment:
    """A job, and the trainer of its run."""

    trainer: Trainer
    job: Job


@dataclass(frozen=True)
class Listener:
    """Is told of jobs, always in the thread that called `execute`.

    Attributes:
        progress: Called as progress(assignment, done, total), in updates of all of its replicas.
        finished: Called as finished(assignment, outcome).
    """

    progress: Callable[[Assignment, int, int], None]
    finished: Callable[[Assignment, Outcome], None]


def processes_of(spec: Spec) -> int:
    """Return how many processes may run jobs, this one included.

    One on a GPU. On a CPU the spec's `workers`, or as many as there are cores: after affinity and
    a container's limit, and PyTorch's threads within an operation.

    Args:
        spec: That of the jobs, or of the first ones.
    """
    if device_of(spec.device).type != "cpu":
        return 1
    return spec.workers or max(1, int(loky.cpu_count()) // spec.threads)


def execute(assignments: Sequence[Assignment], keeping: Keeping, listener: Listener) -> None:
    """Run jobs until all have finished, or one has failed.

    A job whose worker dies is lost until the next call, which takes it up at its last checkpoint;
    the others go on. Any other failure, or a request to stop, ends all of them, after a checkpoint.

    Args:
        assignments: The jobs, in the order in which they are begun.
        keeping: When jobs are saved, and when all of them stop.
        listener: Told of progress and of results.

    Raises:
        DeviceError: A worker process was ended from outside.
        Stopped: They were told to stop.
        DpmclError: Whatever a job raises.
    """
    _Execution(assignments, keeping, listener).run()


class _Execution:
    """One call of `execute`."""

    def __init__(
        self, assignments: Sequence[Assignment], keeping: Keeping, listener: Listener
    ) -> None:
        self._keeping, self._listener = keeping, listener
        self._waiting = deque(assignments)
        self._processes = min(processes_of(assignments[0].trainer.spec), len(assignments))
        self._began = time.monotonic()
        self._inbox: _Inbox = queue.SimpleQueue()
        self._workers: list[_Worker] | None = None
        self._error: BaseException | None = None
        self._lost: list[Job] = []

    def run(self) -> None:
        with tempfile.TemporaryDirectory(prefix="dpmcl-") as scratch:
            self._starts = Starts(partial(_saved, Path(scratch)))
            try:
                while self._waiting:  # again, where a worker gave one back
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
        """Run jobs in this process, while any wait."""
        keeping = Keeping(self._keeping.seconds, self._stops)
        while (one := self._next()) is not None:
            try:
                outcome = one.trainer.run(one.job, keeping, self._progress_of(one))
            except Exception as error:
                self._fail(error)
            else:
                self._listener.finished(one, outcome)
            self._receive()

    def _progress_of(self, one: Assignment) -> Callable[[int, int], None]:
        def tell(done: int, total: int) -> None:
            self._listener.progress(one, done, total)
            self._receive()
            if self._workers is None and time.monotonic() - self._began > WORTH_SECONDS:
                self._start_workers()

        return tell

    def _wait(self) -> None:
        """Wait for the workers' jobs."""
        while any(worker.busy for worker in self._workers or ()) or not self._inbox.empty():
            if self._stops() and self._error is None:
                self._fail(Stopped("The run was stopped; what it had done is kept."))
            try:
                self._handle(*self._inbox.get(timeout=0.1))
            except queue.Empty:
                continue

    def _next(self) -> Assignment | None:
        """Return the next job; the deque is the only thing that threads share."""
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    def _order(self, one: Assignment) -> Order:
        start, stream = self._starts.of(one.trainer)
        return Order(start, stream, one.job, self._keeping.seconds)

    def _stops(self) -> bool:
        return self._error is not None or self._keeping.stop()

    def _fail(self, error: BaseException) -> None:
        """Take down the first error, and have everything else stop."""
        self._error = self._error or error
        self._waiting.clear()
        for worker in self._workers or ():
            worker.stop()

    def _receive(self) -> None:
        while not self._inbox.empty():
            self._handle(*self._inbox.get())

    def _handle(self, one: Assignment, kind: str, content: Any) -> None:
        if kind == "progress":
            self._listener.progress(one, *content)
        elif kind == "log":
            line, once = content
            _LOG.warning(line, extra={"once": once})
        elif kind == "finished":
            self._listener.finished(one, content)
        elif kind == "died":
            self._lost.append(one.job)
        elif kind == "unsent":
            _LOG.info("No worker process for %s: %s", one.job.method, content)
            self._waiting.appendleft(one)
        elif not isinstance(content, Stopped) or self._error is None:
            self._fail(content)

    def _start_workers(self) -> None:
        """Start a process for each job that waits, as far as the spec and the cores allow."""
        many = min(self._processes - 1, len(self._waiting))
        self._workers = []
        try:
            for _ in range(many):
                self._workers.append(_Worker(self._next, self._order, self._inbox))
        except OSError as error:  # no process to be had
            _LOG.info("No worker processes: %s", error)


def _saved(folder: Path, stream: Stream) -> Path:
    """Save a stream in a folder, and return its file, which all workers map into memory."""
    path = folder / f"stream-{len(list(folder.iterdir()))}"
    torch.save(stream, path, pickle_module=cloudpickle)
    return path


class _Worker:
    """A worker process, and the thread that gives it one job after another.

    Args:
        take: Gives the next job, or None.
        order: Returns what a worker needs to run a job; raises what a user's object that cannot be
            sent raises, or a full disk.
        inbox: Takes the worker's messages, with the job that they are about.
    """

    def __init__(
        self,
        take: Callable[[], Assignment | None],
        order: Callable[[Assignment], Order],
        inbox: _Inbox,
    ) -> None:
        self._command = [sys.executable, "-c", _COMMAND.format(path=sys.path)]
        self._take, self._order, self._inbox = take, order, inbox
        self._stopped = self._ended = False
        self._process = self._started()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Return True while it has a job."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Ask the worker to stop after a checkpoint."""
        self._stopped = True
        self._send(None)

    def end(self) -> None:
        """End the process at once: it has no job, or nobody waits for it."""
        self._ended = True
        self._process.kill()
        self._process.wait()

    def _started(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def _serve(self) -> None:
        """Give the process jobs, and pass its messages on, until there are no more jobs."""
        while not self._ended and (one := self._take()) is not None:
            try:
                order = self._order(one)
            except Exception as error:
                self._inbox.put((one, "unsent", error))
                return
            try:
                if self._process.poll() is not None:  # it died over the job before
                    self._process = self._started()
                self._pass_on(one, order)
            except (EOFError, pickle.UnpicklingError, OSError):
                self._process.kill()
                self._process.wait()
                self._inbox.put((one, "died", None))

    def _pass_on(self, one: Assignment, order: Order) -> None:
        """Give the process a job, and pass on what it sends until the job has ended."""
        self._send(order)
        if self._stopped:
            self._send(None)
        kind = ""
        while kind not in ("finished", "failed"):
            assert self._process.stdout is not None
            kind, content = pickle.load(self._process.stdout)
            self._inbox.put((one, kind, content))

    def _send(self, message: Any) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # it has died, which the reading thread will find out
            self._process.stdin.write(pickle.dumps(message))
            self._process.stdin.flush()
