"""The global random generators of PyTorch, NumPy and Python."""

import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def forked(seed: int) -> Iterator[None]:
    """Seeds PyTorch's, NumPy's and Python's global generators for a block, and puts them back."""
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
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
