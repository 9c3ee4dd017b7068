"""A worker process: runs jobs that come through its standard input.

Messages in both directions are pickles, one after another. The parent sends jobs, each with the
file of a pickled `Start`, and None to stop; a job is answered by any number of "progress" and "log"
messages and one "finished" or "failed".
"""

import logging
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import cloudpickle
import torch

from dpmcl.data.stream import Stream
from dpmcl.exceptions import DpmclError
from dpmcl.training.job import Job, Trainer
from dpmcl.training.keeper import Keeping
from dpmcl.training.spec import Spec


@dataclass(frozen=True, eq=False)
class Start:
    """Settings and data of a run, which a worker learns before its first job.

    Attributes:
        spec: That of the run.
        stream: File of the stream (`torch.save`), mapped into memory by all workers.
        digest: Fingerprint of the data.
        folder: The run folder, or None.
        seconds: Between checkpoints within a task.
    """

    spec: Spec
    stream: Path
    digest: str
    folder: Path | None
    seconds: float


class _ToParent(logging.Handler):
    """Sends log records to the parent process, which logs them."""

    def __init__(self, out: "_Out") -> None:
        super().__init__()
        self._out = out

    def emit(self, record: logging.LogRecord) -> None:
        self._out.send("log", (record.getMessage(), getattr(record, "once", None)))


class _Out:
    """Messages to the parent process."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def send(self, kind: str, content: Any) -> None:
        self._file.write(cloudpickle.dumps((kind, content)))
        self._file.flush()


def main() -> None:
    """Run jobs until the parent closes the standard input, or asks to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's affair
    out = _Out(os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)  # what a user's module prints must not mix with messages
    log = logging.getLogger("dpmcl")
    log.addHandler(_ToParent(out))
    log.propagate = False
    jobs: queue.SimpleQueue[tuple[Path, Job]] = queue.SimpleQueue()
    stopped = threading.Event()
    threading.Thread(target=_listen, args=(jobs, stopped), daemon=True).start()
    before, trainer, seconds = None, None, 0.0
    while True:
        start, job = jobs.get()
        try:
            if trainer is None or start != before:
                trainer = None  # so that two runs' data are not held at once
                trainer, seconds = _begun(start)
                before = start
            keeping = Keeping(seconds, stopped.is_set)
            outcome = trainer.run(job, keeping, lambda *done: out.send("progress", done))
        except BaseException as error:
            if not isinstance(error, DpmclError):
                error.add_note(f"In a worker process:\n{traceback.format_exc().rstrip()}")
            out.send("failed", error.with_traceback(None))
        else:
            out.send("finished", outcome)


def _begun(path: Path) -> tuple[Trainer, float]:
    """Return the trainer of a run, and the seconds between its checkpoints."""
    start: Start = pickle.loads(path.read_bytes())
    stream: Stream = torch.load(start.stream, mmap=True, weights_only=False)
    trainer = Trainer(
        start.spec,
        stream,
        digest=start.digest,
        folder=start.folder,
    )
    return trainer, start.seconds


def _listen(jobs: "queue.SimpleQueue[tuple[Path, Job]]", stopped: threading.Event) -> None:
    """Take the parent's messages; end this process when the parent has gone."""
    while True:
        try:
            message = pickle.load(sys.stdin.buffer)
        except EOFError:
            os._exit(0)
        if message is None:
            stopped.set()
        else:
            jobs.put(message)
