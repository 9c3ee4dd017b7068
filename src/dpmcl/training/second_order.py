"""Gradients through inner updates, which need second derivatives and lose digits in float32."""

import torch

from dpmcl.core.model import Theta
from dpmcl.core.part import parameters_of
from dpmcl.core.tree import leaves
from dpmcl.exceptions import ModelError, reason
from dpmcl.methods._method import Method
from dpmcl.optimisers.adagrad import Adagrad
from dpmcl.training.setup import Setup


def check_second_derivatives(setup: Setup) -> None:
    """Check that the network has second derivatives if the method needs them.

    Args:
        setup: Setup of the run.

    Raises:
        ModelError: A layer has no second derivative.
    """
    graph, model = setup.method.graph, setup.model
    if graph is None:
        return
    x, key = setup.stream.example(model.dtype), setup.seed.new_zeros(2)

    def cost(moved: Theta, theta: Theta) -> torch.Tensor:
        return model.predict({**theta, **moved}, x, key).sin().sum()

    def slope(theta: Theta) -> torch.Tensor:
        grads = torch.func.grad(cost)({part: theta[part] for part in graph.moves}, theta)
        return torch.stack([leaf.sum() for leaf in leaves(grads)]).sum()

    try:
        torch.func.grad(slope)(parameters_of(model.parts))
    except Exception as error:  # layers without second derivatives raise errors of many types
        raise ModelError(
            f"{graph.cause} needs second derivatives, and this network has none: {reason(error)}; "
            f"use {graph.instead}."
        ) from error


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
