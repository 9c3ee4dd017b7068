"""Memory that the system does not give, said in one line."""

from collections.abc import Iterator
from contextlib import contextmanager

from dpmcl.exceptions import DeviceError

_WORDS = ("allocate memory", "not enough memory", "Storage size calculation overflowed")


@contextmanager
def allocating() -> Iterator[None]:
    """Raise DeviceError where a block, or a function, asks for more memory than there is."""
    try:
        yield
    except DeviceError:
        raise
    except (MemoryError, RuntimeError) as error:
        # On a CPU, PyTorch raises a plain RuntimeError.
        if isinstance(error, RuntimeError) and not any(words in str(error) for words in _WORDS):
            raise
        raise DeviceError(
            "This needs more memory than there is; use fewer replicas, a smaller batch or network, "
            "or fewer rows."
        ) from error
