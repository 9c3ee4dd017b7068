"""Output of a running command, and how it is stopped."""

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
def stoppable(seconds: float, again: str) -> Iterator[tuple["Keeping", Callable[..., None]]]:
    """Draw bars, and stop after a checkpoint when asked to, saying what goes on from there.

    Args:
        seconds: Between checkpoints within a task.
        again: What goes on, in words.
    """
    from dpmcl.exceptions import Stopped
    from dpmcl.training.keeper import Keeping

    with _signals() as signals, bars() as progress:
        try:
            yield Keeping(seconds, stop=lambda: bool(signals)), progress
        except (Stopped, KeyboardInterrupt):
            LOG.info("Stopped; %s goes on from the last checkpoint.", again)
            raise typer.Exit(128 + (signals[0] if signals else signal.SIGINT)) from None


@contextmanager
def dispensable(what: str) -> Iterator[None]:
    """Go on without a figure where there is nothing to draw it with; a full disk is an error.

    Args:
        what: What is missing then, in a word.
    """
    try:
        yield
    except FolderError:
        raise
    except DpmclError as error:
        LOG.warning("No %s: %s", what, error)


@contextmanager
def logged_lines() -> Iterator[None]:
    """Show what the package logs, for the length of a command."""
    handler, level = _Lines(), LOG.level
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    try:
        yield
    finally:
        LOG.setLevel(level)
        LOG.removeHandler(handler)


def open_streams() -> None:
    """Make both outputs take any text: what their encoding lacks is written as its escape."""
    for name in ("stdout", "stderr"):
        output = getattr(sys, name)
        if output is None:  # closed, as by 2>&-
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        elif isinstance(output, TextIOWrapper):
            output.reconfigure(errors="backslashreplace")


def abandon_output() -> None:
    """Drop output that cannot be written: at exit it would fail again."""
    try:
        sys.stdout.flush()
    except OSError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect signals to stop in a list; the second one acts as it would without us."""
    received: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, _: object) -> None:
        received.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        LOG.info("Stopping after these updates; a second Ctrl-C leaves at once.")

    for number in before:
        signal.signal(number, note)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Lines(logging.Handler):
    """Writes each record as a line, above the progress bars where there are any."""

    def emit(self, record: logging.LogRecord) -> None:
        line = printable(record.getMessage())
        console().print(line, markup=False, highlight=False, soft_wrap=True)
