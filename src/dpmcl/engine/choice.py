"""Choose the engine, the groups and the device: by what is known of a run, never by a clock."""

import logging
from collections.abc import Callable
from dataclasses import replace

import torch

from dpmcl.core.choices import DeviceName, EngineName
from dpmcl.core.model import Model, Theta, has_convolution, initial
from dpmcl.core.network_layers import entering
from dpmcl.core.part import converted, parameters_of
from dpmcl.core.tree import at, named_leaves
from dpmcl.engine.batched import Batched
from dpmcl.engine.contract import Engine
from dpmcl.engine.looped import Looped
from dpmcl.exceptions import ModelError, SpecError, reason

_LOG = logging.getLogger("dpmcl")
_NEAR = 1e-2  # rounding is far below, though kernels differ

MOST = {False: 13, True: 5}
"""Replicas that are batched at once on a CPU at most, without convolutions and with them."""

MOST_FLOPS = 85 * 10**12
"""FLOPs of a job on a CPU at most, unless one replica has more: about half an hour of one core. The
longest job of the paper's studies, five replicas of DPMCL on Omniglot, has 81 * 10**12."""

LARGE = 64
"""Rows a batch above which mapped convolutions are slower on a CPU than one after another."""


def choose(
    name: EngineName, model: Model, example: torch.Tensor, *, replicas: int, batch: int
) -> Engine:
    """Return the engine of a run.

    `auto` is looped for one replica, for networks that cannot be mapped, and for convolutions of
    more than LARGE rows on a CPU (mapped, they become grouped convolutions, which are slower
    there); batched otherwise.

    Args:
        name: The setting.
        model: The network.
        example: Inputs as the stream delivers them, (n, ...).
        replicas: Seeds that are asked for.
        batch: Most rows of a batch.

    Raises:
        ModelError: `batched` is asked for a network that cannot be mapped.
    """
    on_cpu, convolves = model.device.type == "cpu", has_convolution(model)
    if name == "looped" or (name == "auto" and replicas == 1):
        return Looped()
    obstacle = _unmappable(model, example)
    if name == "batched" and obstacle:
        raise ModelError(f"This network {obstacle}; use engine = 'looped'.")
    if obstacle:
        line = f"Replicas are trained one after another, since the network {obstacle}."
        _LOG.warning(line, extra={"once": line})  # not by each worker again
    slow = on_cpu and convolves and batch > LARGE
    if name == "auto" and (slow or obstacle):
        return Looped()
    return Batched(apart=on_cpu and convolves)


def group_size(engine: Engine, model: Model, replicas: int, flops: Callable[[], int]) -> int:
    """Return how many replicas are trained together, as one job.

    On a GPU all of them; looped, one. Batched on a CPU as many as its caches hold (MOST), and as
    stay below MOST_FLOPS. Networks with convolutions make an even number of groups, so that two
    cores, or four, have as much to do each. Small dense ones are not split further: their updates
    cost as much for five replicas as for ten.

    Args:
        engine: The run's.
        model: The network.
        replicas: Seeds that are asked for.
        flops: Counts the FLOPs of a replica's whole training.
    """
    if model.device.type != "cpu":
        return replicas
    if engine.name == "looped":
        return 1
    if replicas == 1:
        return 1
    convolves = has_convolution(model)
    most = min(MOST[convolves], max(1, MOST_FLOPS // max(1, flops())))
    groups = -(-replicas // most)
    if convolves:
        groups += groups % 2
    return -(-replicas // groups)


def device_of(name: DeviceName) -> torch.device:
    """Return the device of a setting; `auto` is a GPU where there is one.

    Args:
        name: The setting.

    Raises:
        SpecError: "cuda" is asked for and there is none.
    """
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise SpecError("device = 'cuda' needs a CUDA GPU, and PyTorch sees none; use 'cpu'.")
    return torch.device("cuda" if name != "cpu" and available else "cpu")


def _unmappable(model: Model, example: torch.Tensor) -> str | None:
    """Return why a network cannot be mapped, or None.

    Two replicas are differentiated and evaluated together, and one of them alone. The last
    parameter whose gradient differs is nearest to where it came about.
    """
    for layer in model.parts["representation"].draws:
        return f"cannot be batched in {layer} (it draws from a global generator)"
    model, example = _widened(model.holding(model.init_buffers()), example[:2])
    key = torch.zeros(2, 2, dtype=torch.int64, device=example.device)
    both = initial(model, [0, 1]), torch.stack([example, example]), key
    entered: list[str] = []
    names: list[str] = []

    def once(theta: Theta, x: torch.Tensor, key: torch.Tensor) -> list[torch.Tensor]:
        with entering(model.parts, entered) as passed:
            model.predict(theta, x, key)
            model.predict(theta, x)
            results = [(name, out) for name, out in passed if isinstance(out, torch.Tensor)]
            grads = torch.func.grad(lambda theta: model.predict(theta, x, key).sin().sum())(theta)
        for name, grad in reversed(named_leaves(grads, "").items()):
            results.append((f"the gradient of {name[1:]}", grad))
        names[:] = [name for name, _ in results]
        return [out for _, out in results]

    try:
        together = torch.func.vmap(once)(*both)
    except Exception as error:  # each layer has its own way to say no
        where = f"in {entered[-1]} ({reason(error)})" if entered else f"({reason(error)})"
        return f"cannot be batched {where}"
    for name, many, one in zip(names, together, once(*at(both, 1)), strict=True):
        if (many[1] - one).double().norm() > _NEAR * one.double().norm() + _NEAR:
            return f"cannot be batched in {name} (it gives other numbers when it is mapped)"
    return None


def _widened(model: Model, x: torch.Tensor) -> tuple[Model, torch.Tensor]:
    """Return a model and inputs in float64, where no difference is rounding.

    A network that names a type of its own stays as it is.
    """
    parts = {name: converted(part, torch.float64) for name, part in model.parts.items()}
    wide = replace(model, parts=parts, dtype=torch.float64)
    wide = wide.holding(wide.init_buffers())
    try:
        for key in (None, torch.zeros(2, dtype=torch.int64, device=x.device)):
            wide.predict(parameters_of(parts), x.double(), key)
    except Exception:  # it mixes types
        return model, x
    return wide, x.double()
