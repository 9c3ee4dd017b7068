"""Which engine and which device: fixed functions of what is known, never of a clock."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from dpmcl.engine.contract import Engine
from dpmcl.engine.grouped import Grouped
from dpmcl.engine.looped import Looped
from dpmcl.exceptions import ModelError, SpecError
from dpmcl.model import Model, has_convolution, initial

EngineName = Literal["auto", "batched", "looped"]
DeviceName = Literal["auto", "cpu", "cuda"]


def choose(name: EngineName, model: Model, example: torch.Tensor, replicas: int) -> Engine:
    """The engine of a run.

    `auto` is a function of the network, the device and the number of replicas: looped for one
    replica, for networks that cannot be mapped, and for convolutions on a CPU (mapped, they
    become grouped convolutions, which are slower there); batched otherwise.
    Raises ModelError when `batched` is asked for a network that cannot be mapped.
    """
    if name == "looped":
        return Looped()
    reason = _unmappable(model, example)
    if name == "batched":
        if reason:
            raise ModelError(f"This network cannot be batched ({reason}); use engine = 'looped'.")
        return Grouped()
    slow = model.device.type == "cpu" and has_convolution(model)
    return Looped() if replicas == 1 or slow or reason else Grouped()


def device_of(name: DeviceName) -> torch.device:
    """The device of a setting; `auto` is a GPU where there is one.

    Raises SpecError when "cuda" is asked for and there is none.
    """
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise SpecError("device = 'cuda' needs a CUDA GPU, and PyTorch sees none; use 'cpu'.")
    return torch.device("cuda" if name != "cpu" and available else "cpu")


@contextmanager
def threads(number: int) -> Iterator[None]:
    """PyTorch's threads within an operation, for a block; then as they were.

    Networks this small run slower on two threads than on one, and many times slower where another
    process wants the second core.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _unmappable(model: Model, example: torch.Tensor) -> str | None:
    """Why a network cannot be mapped, or None: tried once, on two rows of two replicas."""
    theta = initial(model, [0, 1])
    x = torch.stack([example, example])
    key = torch.zeros(2, 2, dtype=torch.int64, device=example.device)
    try:
        torch.func.vmap(model.predict)(theta, x, key)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        return str(error).split("\n")[0]
    return None
