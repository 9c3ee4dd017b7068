"""Seed and restore the global random generators of PyTorch, NumPy and Python."""

import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from dpmcl.core.not_public import pyfunctorch
from dpmcl.core.process_lock import ProcessLock

_lock = ProcessLock()


@contextmanager
def forked(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed PyTorch's, NumPy's and Python's global generators for a block, then restore them.

    Only one thread at a time can be in such a block, since two would draw from the same generators.

    Args:
        seed: Seed of all generators.
        device: GPU whose generator is seeded too; None or a CPU for none.
    """
    gpus = [device] if device is not None and device.type == "cuda" else []
    with _lock.current, torch.random.fork_rng(devices=gpus):
        numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
        torch.default_generator.manual_seed(seed)
        if gpus:
            torch.cuda.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)


def states() -> dict[str, bytes]:
    """Return the state of each global generator, by its name in messages."""
    # Within torch.func.grad a new tensor would have no values to read.
    with pyfunctorch.temporarily_clear_interpreter_stack():
        state = torch.random.get_rng_state().numpy().tobytes()
    out = {
        "PyTorch's": state,
        "NumPy's": pickle.dumps(np.random.get_state()),  # noqa: NPY002
        "Python's": pickle.dumps(random.getstate()),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        out["PyTorch's CUDA"] = torch.cuda.get_rng_state().numpy().tobytes()
    return out
