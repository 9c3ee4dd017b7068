"""Set the number of threads that PyTorch uses within an operation."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Set PyTorch's threads for a block, or for each call of a decorated function.

    Small networks run slower on two threads than on one, and many times slower where another
    process wants the second core. A pool of threads does not survive a fork either: a child that
    needs it waits for ever. Functions called from outside the package therefore use one thread.

    Args:
        number: Number of threads.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
