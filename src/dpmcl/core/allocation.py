"""Memory that the system does not give, said in one line."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dpmcl.exceptions import DeviceError

_WORDS = ("allocate memory", "not enough memory")
_TOO_LARGE = "Storage size calculation overflowed"


def out_of_memory(error: BaseException | None) -> bool:
    """Return True for an error of a device, or a CPU, that has no more memory to give.

    Args:
        error: Any exception, or None.
    """
    # On a CPU, PyTorch raises a plain RuntimeError.
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)
    )


@contextmanager
def allocating() -> Iterator[None]:
    """Raise DeviceError where a block, or a function, asks for more memory than there is."""
    try:
        yield
    except DeviceError:
        raise
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error) and _TOO_LARGE not in str(error):
            raise
        raise DeviceError(
            "This needs more memory than there is; use fewer replicas, a smaller batch or network, "
            "or fewer rows."
        ) from error
