"""Set the number of threads that PyTorch uses within an operation."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Set PyTorch's threads for a block, or for each call of a decorated function.

    Small networks run slower on two threads than on one, and many times slower if another process
    uses the second core. Nor does a pool of threads survive a fork: a child process that needs it
    hangs. Functions called from outside the package therefore use one thread.

    Args:
        number: Number of threads.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
