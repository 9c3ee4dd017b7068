"""A lock of the threads of one process, which a forked process has anew."""

import os
import threading


class ProcessLock:
    """A reentrant lock that is free in a forked process, which lacks the thread that held it.

    Attributes:
        current: The lock of this process; enter it anew for each block.
    """

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        """Replace the lock."""
        self.current = threading.RLock()
