"""Choose the engine, the group size and the device, from a run's settings and never by timing."""

import logging
from collections.abc import Callable
from dataclasses import replace

import torch

from dpmcl.core.choices import DeviceName, EngineName
from dpmcl.core.model import Model, Theta, has_convolution, initial_weights
from dpmcl.core.network_check import in_float64, scalar_cost
from dpmcl.core.network_layers import record_layers
from dpmcl.core.tree import at, equal, named_leaves
from dpmcl.engine.batched import Batched
from dpmcl.engine.contract import Engine
from dpmcl.engine.looped import Looped
from dpmcl.exceptions import ModelError, SpecError, reason

_LOG = logging.getLogger("dpmcl")
_NEAR = 1e-2  # relative tolerance; rounding is far below it, though kernels differ
_NOTHING = 1e-6  # share of the largest result below which a difference is rounding

_Results = tuple[list[torch.Tensor], list[torch.Tensor]]
"""Outputs of layers, and gradients of parameters."""

MAX_REPLICAS = {False: 13, True: 5}
"""Largest number of replicas batched at once on a CPU, without (False) and with convolutions."""

MAX_FLOPS = 85 * 10**12
"""Largest number of FLOPs of a job on a CPU, about half an hour of one core; a job of one replica
may have more. The longest job of the paper's studies, five replicas of DPMCL on Omniglot, has
81 * 10**12."""

LARGE_BATCH = 64
"""Batch size above which convolutions on a CPU are faster one replica after another than mapped."""


def choose(
    name: EngineName, model: Model, example: torch.Tensor, *, replicas: int, batch: int
) -> Engine:
    """Return the engine of a run.

    `auto` is looped for one replica, for networks that vmap cannot map, and for convolutions of
    more than LARGE_BATCH rows on a CPU (vmap makes grouped convolutions of them, which are slower
    there). Otherwise it is batched.

    Args:
        name: The setting `engine`.
        model: Model of the run.
        example: Inputs (n, ...) as the stream delivers them.
        replicas: Number of seeds.
        batch: Largest number of rows of a batch.

    Raises:
        ModelError: The setting is `batched`, and vmap cannot map the network.
    """
    on_cpu, convolves = model.device.type == "cpu", has_convolution(model)
    if name == "looped" or (name == "auto" and replicas == 1):
        return Looped()
    obstacle = _obstacle(model, example)
    if name == "batched" and obstacle:
        raise ModelError(f"This network {obstacle}; use engine = 'looped'.")
    if obstacle:
        message = f"Replicas are trained one after another, since the network {obstacle}."
        _LOG.warning(message, extra={"once": message})  # once in total, not once by each worker
    slow = on_cpu and convolves and batch > LARGE_BATCH
    if name == "auto" and (slow or obstacle):
        return Looped()
    return Batched(apart=on_cpu and convolves)


def group_size(engine: Engine, model: Model, replicas: int, flops: Callable[[], int]) -> int:
    """Return the number of replicas that are trained together as one job.

    On a GPU a job has all replicas, and with the looped engine one. With the batched engine on a
    CPU it has as many as the caches hold (MAX_REPLICAS) and MAX_FLOPS allows. For networks with
    convolutions the number of jobs is even, so that two or four cores have equal work. Small dense
    networks are not split further, since their updates take as long for five replicas as for ten.

    Args:
        engine: Engine of the run.
        model: Model of the run.
        replicas: Number of seeds.
        flops: Returns the FLOPs of one replica's training.
    """
    if model.device.type != "cpu":
        return replicas
    if engine.name == "looped" or replicas == 1:
        return 1
    convolves = has_convolution(model)
    largest = min(MAX_REPLICAS[convolves], max(1, MAX_FLOPS // max(1, flops())))
    groups = -(-replicas // largest)
    if convolves:
        groups += groups % 2
    return -(-replicas // groups)


def device_of(name: DeviceName) -> torch.device:
    """Return the device of a setting; `auto` is a GPU if PyTorch sees one, else the CPU.

    Args:
        name: The setting `device`.

    Raises:
        SpecError: The setting is "cuda", and PyTorch sees no GPU.
    """
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise SpecError("device = 'cuda' needs a CUDA GPU, and PyTorch sees none; use 'cpu'.")
    return torch.device("cuda" if name != "cpu" and available else "cpu")


def _obstacle(model: Model, example: torch.Tensor) -> str | None:
    """Return why vmap cannot map a network, as the end of "This network ...", or None if it can.

    Two replicas are differentiated and evaluated under vmap, one of them also without, and the
    results compared. Gradients are compared from the last parameter backwards, since the last one
    that differs is nearest to the cause.
    """
    for layer in model.parts["representation"].draws:
        return f"cannot be batched in {layer} (it draws from a global generator)"
    parts, example = in_float64(model.parts, example[:2])
    model = replace(model, parts=parts, dtype=example.dtype)
    model = model.holding(model.init_buffers())
    key = torch.zeros(2, 2, dtype=torch.int64, device=example.device)
    arguments = initial_weights(model, [0, 1]), torch.stack([example, example]), key
    entered: list[str] = []
    names: list[str] = []

    def one_replica(theta: Theta, x: torch.Tensor, key: torch.Tensor) -> _Results:
        with record_layers(model.parts, entered) as outputs:
            model.predict(theta, x, key)
            model.predict(theta, x)
            results = [(name, out) for name, out in outputs if isinstance(out, torch.Tensor)]
            grads = torch.func.grad(lambda theta: scalar_cost(model.predict(theta, x, key)))(theta)
        gradients = list(reversed(named_leaves(grads, "").items()))
        names[:] = [name for name, _ in results]
        names.extend(f"the gradient of {name[1:]}" for name, _ in gradients)
        return [out for _, out in results], [grad for _, grad in gradients]

    try:
        mapped = torch.func.vmap(one_replica)(*arguments)
    except Exception as error:  # layers raise exceptions of many kinds
        where = f"in {entered[-1]} ({reason(error)})" if entered else f"({reason(error)})"
        return f"cannot be batched {where}"
    alone = one_replica(*at(arguments, 1))
    same = [is_same for pair in zip(mapped, alone, strict=True) for is_same in _same(*pair)]
    if not all(same):
        name = names[same.index(False)]
        return f"cannot be batched in {name} (it gives other numbers when it is mapped)"
    return None


def _same(mapped: list[torch.Tensor], alone: list[torch.Tensor]) -> list[bool]:
    """Return which results of the second mapped replica are the same without mapping."""
    # Layers may also return masks, or complex numbers.
    pairs = [
        (a[1].to(torch.complex128), b.to(torch.complex128))
        for a, b in zip(mapped, alone, strict=True)
    ]
    least = min(_NEAR, _NOTHING * max(_size(b) for _, b in pairs))
    return [
        equal(a.isfinite(), b.isfinite()) and _size(a - b) <= _NEAR * _size(b) + least
        for a, b in pairs
    ]


def _size(result: torch.Tensor) -> float:
    """Return the norm of a result, without values that are not finite."""
    return float(torch.where(result.isfinite(), result, 0).norm())
