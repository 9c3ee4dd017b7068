"""Redirect log lines, so that another process can send them to the user's."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def logged_to(receive: Callable[[str, str | None], None]) -> Iterator[None]:
    """Pass each line that is logged within a block to a function.

    Args:
        receive: Called as receive(line, mark). One line with the same mark is enough for a run;
            the mark is None if every line counts.
    """
    log, handler = logging.getLogger("dpmcl"), logging.Handler()
    handler.emit = lambda record: receive(  # type: ignore[method-assign]
        record.getMessage(), getattr(record, "once", None)
    )
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
