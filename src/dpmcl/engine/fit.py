"""Whether differentiating through inner updates fits in memory, asked before training starts.

All else that a run holds is small, or grows with what the user sees (rows, replicas). This grows
with a product of settings, and would end a run with an out-of-memory error, or with no word at all.
"""

from collections import Counter
from functools import partial
from typing import Any

import torch
from torch import nn

from dpmcl.core.model import Model, Theta
from dpmcl.core.part import own
from dpmcl.core.tree import leaves
from dpmcl.data.stream import Stream
from dpmcl.exceptions import ModelError, reason
from dpmcl.methods._method import Graph, Method

# Copies of its values that an inner update leaves in memory, as measured for OML, CML, ANML and
# DPMCL on LeNet, MLP and OmniNet, batches of 8 and 64 (peaks of live tensors, torch 2.14).
# Of each activation: its forward value and its backward value (found: 1.1 to 2.2).
_OF_AN_ACTIVATION = 2
# Of each parameter: its gradient and its new value (SGD: 2.0) ...
_OF_A_PARAMETER = 2
# ... and, where the optimiser has a state, what the rule's own derivative needs: sum of squares,
# root, scale, change, and the products that go back through them (Adagrad: 15, Adam: 13).
_OF_A_PARAMETER_WITH_STATE = 15


def check_fit(method: Method, model: Model, stream: Stream, replicas_at_once: int) -> None:
    """Check that a method's differentiation through inner updates is possible, and fits in memory.

    Methods that do not differentiate through inner updates always pass.

    Args:
        method: The method.
        model: The method's own, as `prepare` returns it.
        stream: What it trains on.
        replicas_at_once: Replicas that are in memory at the same time.

    Raises:
        ModelError: The graph needs more than is free, or a layer knows no second derivative.
    """
    graph = method.graph
    if graph is None:
        return
    _check_twice(graph, model, stream)
    needed, free = needed_bytes(method, model, stream, replicas_at_once), free_bytes(model)
    if needed <= free:
        return
    many = replicas_at_once > 1
    ways = [f"fewer inner updates ({graph.fewer})", "a smaller batch"]
    ways += ["fewer replicas", "engine = 'looped'"] if many else []
    raise ModelError(
        f"{graph.cause} through {graph.updates} inner updates needs about {_gib(needed)} for "
        f"{replicas_at_once if many else 'one'} replica{'s' if many else ''}, and {_gib(free)} "
        f"are free; use {', '.join(ways)}, or {graph.instead}."
    )


def _check_twice(graph: Graph, model: Model, stream: Stream) -> None:
    x, key = stream.example(model.dtype), torch.zeros(2, dtype=torch.int64, device=model.device)

    def cost(moved: Theta, theta: Theta) -> torch.Tensor:
        return model.predict({**theta, **moved}, x, key).sin().sum()

    def slope(theta: Theta) -> torch.Tensor:
        grads = torch.func.grad(cost)({part: theta[part] for part in graph.moves}, theta)
        return torch.stack([leaf.sum() for leaf in leaves(grads)]).sum()

    try:
        torch.func.grad(slope)(own(model.parts))
    except Exception as error:  # each layer has its own way to say no
        raise ModelError(
            f"{graph.cause} needs second derivatives, and this network has none: {reason(error)}; "
            f"use {graph.instead}."
        ) from error


def needed_bytes(method: Method, model: Model, stream: Stream, replicas_at_once: int) -> int:
    """Return about how many bytes a method's graph takes, within a factor of two or so.

    Each inner update keeps its values; the outer update keeps one more set, of all parts.

    Args:
        method: One that differentiates through inner updates.
        model: Its model.
        stream: Its stream.
        replicas_at_once: Replicas that are in memory at the same time.
    """
    graph = method.graph
    assert graph is not None
    parameters, activations = _sizes(model, stream, graph.rows)
    state = method.rule.slots(torch.zeros(()))
    copies = _OF_A_PARAMETER_WITH_STATE if state else _OF_A_PARAMETER

    def kept(moves: tuple[str, ...], runs: tuple[str, ...]) -> int:
        moved, ran = sum(parameters[p] for p in moves), sum(activations[p] for p in runs)
        return copies * moved + _OF_AN_ACTIVATION * ran

    everything = tuple(model.parts)
    values = graph.updates * kept(graph.moves, graph.runs) + kept(everything, everything)
    return replicas_at_once * values * model.dtype.itemsize


def free_bytes(model: Model) -> int:
    """Memory that the model's device has left, what PyTorch holds in reserve included.

    Args:
        model: Whose device is asked.
    """
    if model.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(model.device)
        reserve = torch.cuda.memory_reserved(model.device)
        return int(free) + reserve - torch.cuda.memory_allocated(model.device)
    import psutil

    return int(psutil.virtual_memory().available)


def _sizes(model: Model, stream: Stream, rows: int) -> tuple[Counter[str], Counter[str]]:
    """By part: parameters, and values that its layers give for a batch of so many rows."""
    parameters: Counter[str] = Counter()
    activations: Counter[str] = Counter()

    def add(part: str, _layer: nn.Module, _given: Any, out: Any) -> None:
        tensors = [leaf for leaf in leaves(out) if isinstance(leaf, torch.Tensor)]
        activations[part] += sum(tensor.numel() for tensor in tensors)

    theta = own(model.parts)
    hooks = []
    for name, part in model.parts.items():
        parameters[name] = sum(p.numel() for p in theta[name].values())
        hooks += [
            layer.register_forward_hook(partial(add, name))
            for layer in part.training.modules()
            if not list(layer.children())
        ]
    try:
        with torch.no_grad():
            x = stream.example(model.dtype)[:1]
            key = torch.zeros(2, dtype=torch.int64, device=model.device)
            model.predict(theta, x.expand(rows, *x.shape[1:]), key)
    finally:
        for hook in hooks:
            hook.remove()
    return parameters, activations


def _gib(size: int) -> str:
    gib = size / 2**30
    return f"{gib:.0f} GiB" if gib >= 10 else f"{gib:.2g} GiB"
