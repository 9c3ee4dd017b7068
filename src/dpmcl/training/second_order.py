"""Gradients through inner updates, which need second derivatives and lose digits in float32."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from dpmcl.core.model import Theta
from dpmcl.core.network_check import in_float64, scalar_cost
from dpmcl.core.part import parameters_of
from dpmcl.core.tree import inner, leaves, tree_map
from dpmcl.exceptions import ModelError, reason
from dpmcl.methods._method import Method
from dpmcl.optimisers.adagrad import Adagrad
from dpmcl.training.setup import Setup


def check_second_derivatives(setup: Setup) -> None:
    """Check that the network has second derivatives if the method needs them.

    Logs a warning if they are not those of its gradient, by finite differences. PyTorch takes what
    a backward function leaves out (once_differentiable, detach) as 0.

    Args:
        setup: Setup of the run.

    Raises:
        ModelError: A layer has no second derivative.
    """
    graph, model = setup.method.graph, setup.model
    if graph is None:
        return
    parts, x = in_float64(model.parts, setup.stream.example(model.dtype))
    model, key = replace(model, parts=parts, dtype=x.dtype), setup.seed.new_zeros(2)

    def cost(moved: Theta, theta: Theta) -> Tensor:
        return scalar_cost(model.predict({**theta, **moved}, x, key).square())

    def slope(theta: Theta) -> Tensor:
        grads = torch.func.grad(cost)({part: theta[part] for part in graph.moves}, theta)
        return torch.stack([leaf.sum() for leaf in leaves(grads)]).sum()

    theta = parameters_of(parts)
    try:
        curvature = torch.func.grad(slope)(theta)
    except Exception as error:  # layers without second derivatives raise errors of many types
        raise ModelError(
            f"{graph.cause} needs second derivatives, and this network has none: {reason(error)}; "
            f"use {graph.instead}."
        ) from error
    if x.dtype == torch.float64 and not _is_gradient(curvature, slope, theta):
        setup.warn(
            f"{graph.cause} needs second derivatives, and those of the network are not the changes "
            "of its gradient; if a backward function of its own is not differentiable "
            f"(once_differentiable, detach), write it in PyTorch's functions, or use "
            f"{graph.instead}.",
            once="second",
        )


def _is_gradient(gradient: Theta, function: Callable[[Theta], Tensor], theta: Theta) -> bool:
    """Return True if a gradient agrees with central differences in one of three directions.

    A difference may be wrong where it crosses a kink, as that of ReLU.
    """
    generator, step = torch.Generator().manual_seed(0), 1e-7
    nothing = 1e-4 * function(theta).abs()
    for _ in range(3):
        move = tree_map(
            lambda leaf: (
                torch.randn(leaf.shape, generator=generator).to(leaf)
                * (leaf.square().mean().sqrt() + 1e-3)
            ),
            theta,
        )
        ahead, behind = (
            function(tree_map(lambda leaf, by, s=sign: leaf + s * step * by, theta, move))
            for sign in (1, -1)
        )
        expected = (ahead - behind) / (2 * step)
        difference = (inner(gradient, move) - expected).abs()
        if not difference > 1e-3 * expected.abs() + nothing:
            return True
    return False


def noise_warning(method: Method, dtype: torch.dtype) -> str | None:
    """Return a warning if float32 makes the gradients of a method noisy, or None.

    The first step of a fresh Adagrad is lr times the gradient's sign, so its derivative is a
    difference of two large numbers that nearly cancel. What is left is mostly rounding error, which
    is visible in float32 (`benchmarks/second_order_noise.py`).

    Args:
        method: The method.
        dtype: Type of the parameters.
    """
    graph, rule = method.graph, method.rule
    if graph is None or not graph.fresh or dtype == torch.float64:
        return None
    if not isinstance(rule, Adagrad) or rule.initial_accumulator > 0:
        return None
    return (
        f"{graph.cause} differentiates through a fresh Adagrad, which is noisy in float32; take "
        f"dtype = 'float64', optimiser = 'sgd' for this method, or {graph.instead}."
    )
