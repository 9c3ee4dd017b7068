"""Output of a running command, and signals that stop it."""

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import TYPE_CHECKING

import typer

from dpmcl.exceptions import DpmclError, FolderError, printable
from dpmcl.study.bars import bars, console

if TYPE_CHECKING:
    from dpmcl.training.keeper import Keeping

LOG = logging.getLogger("dpmcl")


@contextmanager
def stoppable(seconds: float, command: str) -> Iterator[tuple["Keeping", Callable[..., None]]]:
    """Draw progress bars; after a signal, stop at a checkpoint and report how to resume.

    Args:
        seconds: Seconds between checkpoints within a task.
        command: The command that resumes, for the message.
    """
    from dpmcl.exceptions import Stopped
    from dpmcl.training.keeper import Keeping

    with _signals() as signals, bars() as progress:
        try:
            yield Keeping(seconds, stop=lambda: bool(signals)), progress
        except (Stopped, KeyboardInterrupt):
            LOG.info("Stopped; %s goes on from the last checkpoint.", command)
            raise typer.Exit(128 + (signals[0] if signals else signal.SIGINT)) from None


@contextmanager
def dispensable(name: str) -> Iterator[None]:
    """Warn and continue if a figure cannot be drawn. A FolderError, as of a full disk, is raised.

    Args:
        name: The word for the figure in the warning.
    """
    try:
        yield
    except FolderError:
        raise
    except DpmclError as error:
        LOG.warning("No %s: %s", name, error)


@contextmanager
def logged_lines() -> Iterator[None]:
    """Print the package's log lines during a command."""
    handler, level = _LineHandler(), LOG.level
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    try:
        yield
    finally:
        LOG.setLevel(level)
        LOG.removeHandler(handler)


def open_streams() -> None:
    """Make both outputs accept any text: characters outside their encoding are escaped."""
    for name in ("stdout", "stderr"):
        output = getattr(sys, name)
        if output is None:  # closed, as by 2>&-
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        elif isinstance(output, TextIOWrapper):
            output.reconfigure(errors="backslashreplace")


def abandon_output() -> None:
    """Discard output that cannot be written, which would fail again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect signals to stop in a list; a second signal has its default effect."""
    received: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def receive(number: int, _: object) -> None:
        received.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        LOG.info("Stopping after these updates; a second Ctrl-C leaves at once.")

    for number in handlers:
        signal.signal(number, receive)
    try:
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


class _LineHandler(logging.Handler):
    """Prints each log record as a line, above the progress bars if there are any."""

    def emit(self, record: logging.LogRecord) -> None:
        line = printable(record.getMessage())
        console().print(line, markup=False, highlight=False, soft_wrap=True)
