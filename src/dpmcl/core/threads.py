"""PyTorch's threads within an operation."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Set PyTorch's threads for a block, or for each call of a function; then as they were.

    Networks this small run slower on two threads than on one, and many times slower where another
    process wants the second core. A pool of threads does not survive a fork either: a child waits
    for it for ever, unless it works on one thread, as all that is called from outside does here.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
