"""Lines that are logged for the user where nobody reads them: in another process."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def logged_to(tell: Callable[[str, str | None], None]) -> Iterator[None]:
    """Hand each line that is logged in a block to a function.

    Args:
        tell: Called with the line, and with its mark if one such line is enough for a run.
    """
    log, handler = logging.getLogger("dpmcl"), logging.Handler()
    handler.emit = lambda record: tell(  # type: ignore[method-assign]
        record.getMessage(), getattr(record, "once", None)
    )
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
