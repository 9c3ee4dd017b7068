"""Recognise failed allocations of memory, and report them by one error."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dpmcl.exceptions import DeviceError

_PHRASES = ("allocate memory", "not enough memory")
_TOO_LARGE = "Storage size calculation overflowed"


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return True if an exception says that a GPU or the CPU has not enough memory.

    Args:
        error: Any exception, or None.
    """
    # On a CPU, PyTorch raises a plain RuntimeError.
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in _PHRASES)
    )


@contextmanager
def report_out_of_memory() -> Iterator[None]:
    """Raise DeviceError if a block, or a decorated function, needs more memory than there is."""
    try:
        yield
    except DeviceError:
        raise
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error) and _TOO_LARGE not in str(error):
            raise
        raise DeviceError(
            "This needs more memory than there is; use fewer replicas, a smaller batch or network, "
            "or fewer rows."
        ) from error
