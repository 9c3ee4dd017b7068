"""Progress bars, on a terminal's standard error or in a notebook."""

import functools
import importlib.util
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dpmcl.exceptions import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

LOG = logging.getLogger("dpmcl")

_BARS = 6
"""If there are more bars than this, a bar disappears when it is full."""


@functools.cache
def console() -> "Console":
    """Return the console on standard error, which progress bars and log lines share."""
    generator = random.getstate()  # Rich draws from it when it is imported
    from rich.console import Console

    random.setstate(generator)
    return Console(stderr=True, emoji=False)


@contextmanager
def bars() -> Iterator[Callable[[str, int, int], None]]:
    """Draw a progress bar for each method, from its first report on, with the time left."""
    if console().is_jupyter and importlib.util.find_spec("ipywidgets") is None:
        LOG.warning("A progress bar in a notebook needs ipywidgets: pip install ipywidgets")
        yield lambda method, done, total: None
        return
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    _, *columns = Progress.get_default_columns()  # the first column would interpret markup in names
    name, elapsed = TextColumn("{task.description:<10}", markup=False), TimeElapsedColumn()
    progress = Progress(name, *columns, TextColumn("left, spent"), elapsed, console=console())
    tasks: dict[str, TaskID] = {}

    def report(method: str, done: int, total: int) -> None:
        if not tasks:  # not earlier, so that an error before training is printed without bars
            progress.start()
        again = done == 0 < total and method in tasks and progress.tasks[tasks[method]].finished
        if method not in tasks or again:
            tasks[method] = progress.add_task(printable(method), total=total)
        progress.update(tasks[method], completed=done, total=total)
        if done == total and len(tasks) > _BARS:
            progress.update(tasks[method], visible=False)

    try:
        yield report
    finally:
        if tasks:
            progress.stop()
