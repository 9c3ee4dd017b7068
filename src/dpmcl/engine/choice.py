"""Which engine and which device: fixed functions of what is known, never of a clock."""

from functools import partial

import torch

from dpmcl.core.choices import DeviceName, EngineName
from dpmcl.core.model import Model, Theta, has_convolution, initial
from dpmcl.core.tree import at, leaves
from dpmcl.engine.batched import Batched
from dpmcl.engine.contract import Engine
from dpmcl.engine.crew import Crew, available
from dpmcl.engine.grouped import Grouped
from dpmcl.engine.looped import Looped
from dpmcl.exceptions import ModelError, SpecError, reason

_NEAR = 1e-2  # rounding is far below, though kernels differ

MOST = {False: 13, True: 5}
"""Replicas that are batched at once on a CPU at most, without convolutions and with them."""

LARGE = 64
"""Rows a batch above which mapped convolutions are slower on a CPU than one after another."""


def choose(
    name: EngineName,
    model: Model,
    example: torch.Tensor,
    replicas: int,
    batch: int,
    workers: int | None = None,
) -> Engine:
    """The engine of a run.

    `auto` is a function of the network, the device, the number of replicas and the rows a batch:
    looped for one replica, for networks that cannot be mapped, and for convolutions of more than
    LARGE rows on a CPU (mapped, they become grouped convolutions, which are slower there); batched
    otherwise, on a CPU in groups. workers: processes that share the replicas on a CPU, None for
    one a core; they change no result.
    Raises ModelError when `batched` is asked for a network that cannot be mapped.
    """
    on_cpu, convolves = model.device.type == "cpu", has_convolution(model)
    many = workers or max(1, available() // torch.get_num_threads())
    if name == "looped":
        return _looped(many) if on_cpu else Looped()
    reason = _unmappable(model, example)
    if name == "batched" and reason:
        raise ModelError(f"This network cannot be batched ({reason}); use engine = 'looped'.")
    slow = on_cpu and convolves and batch > LARGE
    if name == "auto" and (replicas == 1 or slow or reason):
        return _looped(many) if on_cpu else Looped()
    if not on_cpu:
        return Grouped()
    make = partial(Batched, apart=convolves)
    return Grouped(make(), size=group_size(replicas, convolves), crew=Crew(make, many))


def group_size(replicas: int, convolves: bool) -> int:
    """How many replicas are batched at once on a CPU, whatever number of cores it has.

    Few enough for its caches (MOST), and an even number of groups, so that two cores, or four, have
    as much to do each.

    >>> group_size(50, convolves=False), group_size(50, convolves=True), group_size(10, False)
    (13, 5, 5)
    """
    groups = 2 * -(-replicas // (2 * MOST[convolves]))
    return max(2, -(-replicas // groups))


def _looped(workers: int) -> Engine:
    return Grouped(Looped(), size=1, crew=Crew(Looped, workers))


def device_of(name: DeviceName) -> torch.device:
    """The device of a setting; `auto` is a GPU where there is one.

    Raises SpecError when "cuda" is asked for and there is none.
    """
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise SpecError("device = 'cuda' needs a CUDA GPU, and PyTorch sees none; use 'cpu'.")
    return torch.device("cuda" if name != "cpu" and available else "cpu")


def _unmappable(model: Model, example: torch.Tensor) -> str | None:
    """Return why a network cannot be mapped, or None.

    Two replicas are differentiated and evaluated together, and one of them alone.
    """
    x = torch.stack([example[:2], example[:2]])
    key = torch.zeros(2, 2, dtype=torch.int64, device=example.device)

    def once(theta: Theta, x: torch.Tensor, key: torch.Tensor) -> list[torch.Tensor]:
        grads = torch.func.grad(lambda theta: model.predict(theta, x, key).sin().sum())(theta)
        return [model.predict(theta, x), *leaves(grads)]

    theta = initial(model, [0, 1])
    try:
        together = torch.func.vmap(once)(theta, x, key)
    except Exception as error:  # each layer has its own way to say no
        return reason(error)
    for many, one in zip(together, once(*at((theta, x, key), 1)), strict=True):
        if (many[1] - one).norm() > _NEAR * one.norm() + _NEAR:
            return "it gives other numbers when it is mapped"
    return None
