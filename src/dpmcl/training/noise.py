"""A warning where a gradient through inner updates loses its digits in float32."""

import torch

from dpmcl.methods._method import Method
from dpmcl.optimisers.adagrad import Adagrad


def noise(method: Method, dtype: torch.dtype) -> str | None:
    """Return the warning for a method whose gradients float32 makes noisy, or None.

    A fresh Adagrad's first step is lr times the gradient's sign, so its derivative is a difference
    of two large numbers that nearly cancel. Most of what is left is rounding, and in float32 it
    shows (`benchmarks/second_order_noise.py`).

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
