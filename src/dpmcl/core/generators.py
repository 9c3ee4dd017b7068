"""The global random generators of PyTorch, NumPy and Python."""

import os
import pickle
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_lock = threading.RLock()


def _renew_lock() -> None:
    global _lock  # the thread that held it does not exist in the child
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


@contextmanager
def forked(seed: int) -> Iterator[None]:
    """Seeds PyTorch's, NumPy's and Python's global generators for a block, and puts them back.

    One thread at a time: two runs at once would draw from each other's.
    """
    with _lock, torch.random.fork_rng(devices=[]):
        numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)


def states() -> dict[str, bytes]:
    """Return the state of each global generator, by the name that a message gives it."""
    found = {
        "PyTorch's": torch.random.get_rng_state().numpy().tobytes(),
        "NumPy's": pickle.dumps(np.random.get_state()),  # noqa: NPY002
        "Python's": pickle.dumps(random.getstate()),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found["PyTorch's CUDA"] = torch.cuda.get_rng_state().numpy().tobytes()
    return found
