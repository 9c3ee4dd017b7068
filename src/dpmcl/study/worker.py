"""A worker process, which runs the jobs that it reads from standard input.

Messages in both directions are pickles, one after another. The parent sends orders, and None to
stop; the worker answers an order with any number of "progress" and "log" messages, then with one
"finished" or "failed".
"""

import logging
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import cloudpickle
import torch

from dpmcl.exceptions import DpmclError
from dpmcl.study.log_lines import logged_to
from dpmcl.training.job import Job
from dpmcl.training.keeper import Keeping


class Order(NamedTuple):
    """A job to run.

    Attributes:
        start: Pickled function that returns the trainer of the job's run (`study.starts`).
        stream: File of the stream (`torch.save`), mapped into memory by all workers.
        job: The job.
        seconds: Seconds between checkpoints within a task.
    """

    start: bytes
    stream: Path
    job: Job
    seconds: float


def main() -> None:
    """Run jobs until the parent closes standard input. A request to stop ends the present job."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints of a user's module go to standard error, not among the messages
    logging.getLogger("dpmcl").propagate = False

    def send(kind: str, content: Any) -> None:
        out.write(cloudpickle.dumps((kind, content)))
        out.flush()

    with logged_to(lambda *line: send("log", line)):
        _work(send)


def _work(send: Callable[[str, Any], None]) -> NoReturn:
    """Run jobs one after another, and send their outcomes."""
    orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
    stopped = threading.Event()
    threading.Thread(target=_listen, args=(orders, stopped), daemon=True).start()
    last_start, trainer = None, None
    while True:
        order = orders.get()
        try:
            if trainer is None or order.start != last_start:
                trainer = None  # frees the data of the previous run
                stream = torch.load(order.stream, mmap=True, weights_only=False)
                trainer = pickle.loads(order.start)(stream)
                last_start = order.start
            keeping = Keeping(order.seconds, stopped.is_set)
            outcome = trainer.run(order.job, keeping, lambda *done: send("progress", done))
        except BaseException as error:
            if not isinstance(error, DpmclError):
                error.add_note(f"In a worker process:\n{traceback.format_exc().rstrip()}")
            send("failed", error.with_traceback(None))
        else:
            send("finished", outcome)


def _listen(orders: "queue.SimpleQueue[Order]", stopped: threading.Event) -> None:
    """Receive the parent's messages; end this process when the parent has ended."""
    while True:
        try:
            message = pickle.load(sys.stdin.buffer)
        except EOFError:
            os._exit(0)
        if message is None:
            stopped.set()
        else:
            orders.put(message)
