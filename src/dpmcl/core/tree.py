"""Trees of tensors: nested dicts and tuples, mapped leaf by leaf.

Parameters, optimiser states and batches are trees. PyTorch's own tree module has no public name in
every version that we support, and its Python form costs a third of a small network's update.

>>> import torch
>>> theta = {"weight": torch.tensor([1.0, 2.0]), "bias": torch.tensor(0.5)}
>>> tree_map(lambda p, g: p - 0.5 * g, theta, theta)
{'weight': tensor([0.5000, 1.0000]), 'bias': tensor(0.2500)}
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def tree_map(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Return a tree whose leaves are a function of the leaves of one tree or several.

    Args:
        function: Takes a leaf of `tree`, and the subtree at the same position of each of `rest`.
        tree: Sets the form of the result. Anything that is not a dict or a tuple is a leaf.
        rest: Trees that have the same keys; they may go deeper than `tree`.

    >>> tree_map(lambda a, b: a + b["c"], {"x": 1}, {"x": {"c": 2}})
    {'x': 3}
    """
    if isinstance(tree, dict):
        return {k: tree_map(function, v, *(r[k] for r in rest)) for k, v in tree.items()}
    if isinstance(tree, tuple):
        values = (tree_map(function, *pair) for pair in zip(tree, *rest, strict=True))
        return type(tree)(*values) if hasattr(tree, "_fields") else tuple(values)
    return function(tree, *rest)


def leaves(tree: Any) -> list[Any]:
    """Return the leaves of a tree, in a fixed order.

    Args:
        tree: Any tree; a tensor alone is one leaf.
    """
    if isinstance(tree, dict | tuple):
        children = tree.values() if isinstance(tree, dict) else tree
        return [leaf for child in children for leaf in leaves(child)]
    return [tree]


def named_leaves(tree: Any, name: str) -> dict[str, Any]:
    """Return the leaves of a tree by their way through it, in the order of `leaves`.

    Args:
        tree: Any tree.
        name: Its own name, with which all begin.

    >>> named_leaves({"x": 1, "y": (2, 3)}, "tree")
    {'tree.x': 1, 'tree.y.0': 2, 'tree.y.1': 3}
    """
    if not isinstance(tree, dict | tuple):
        return {name: tree}
    keys = getattr(tree, "_fields", range(len(tree))) if isinstance(tree, tuple) else tree
    children = zip(keys, tree.values() if isinstance(tree, dict) else tree, strict=True)
    return {
        k: v for key, child in children for k, v in named_leaves(child, f"{name}.{key}").items()
    }


def rebuilt(like: Any, values: Sequence[Any]) -> Any:
    """Return a tree of the form of another one.

    Args:
        like: Sets the form.
        values: The leaves of the result, in the order of `leaves`.

    >>> rebuilt({"x": 1, "y": (2, 3)}, [4, 5, 6])
    {'x': 4, 'y': (5, 6)}
    """
    left = iter(values)
    return tree_map(lambda _: next(left), like)


def from_named(like: Any, name: str, tensors: Mapping[str, Tensor]) -> Any:
    """Return a tree of the form of another one from tensors by name, on the devices of its own.

    Args:
        like: Sets the form, the shapes and the types.
        name: Name of the tree, as for `named_leaves`.
        tensors: By name, its leaves among them.

    Raises:
        KeyError: A leaf is missing.
        ValueError: A leaf has another shape or type.
    """
    values = []
    for key, leaf in named_leaves(like, name).items():
        if tensors[key].shape != leaf.shape or tensors[key].dtype != leaf.dtype:
            raise ValueError(f"{key} has the shape {tuple(tensors[key].shape)}")
        values.append(tensors[key].to(leaf.device))
    return rebuilt(like, values)


def whole(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies on the CPU, each of which has memory of its own: safetensors takes no views.

    Args:
        tensors: By name.
    """
    form = torch.contiguous_format
    return {name: leaf.detach().cpu().clone(memory_format=form) for name, leaf in tensors.items()}


def inner(one: Any, other: Any) -> Tensor:
    """Return the inner product of two trees of tensors, taken as vectors.

    Args:
        one: A tree of tensors; J_theta, say.
        other: One of the same form; dtheta, whose product with J_theta is dJ to first order.
    """
    products = tree_map(lambda a, b: (a * b).sum(), one, other)
    return torch.stack(leaves(products)).sum()


def norm(tree: Any) -> Tensor:
    """Return the Euclidean norm of a tree of tensors, taken as a vector.

    Args:
        tree: A tree of tensors.
    """
    return inner(tree, tree).sqrt()


def stack(trees: Sequence[Any]) -> Any:
    """Return the trees of several replicas as one tree with a leading replica dimension.

    Args:
        trees: Trees of tensors of one form.
    """
    return tree_map(lambda *leaf: torch.stack(leaf), trees[0], *trees[1:])


def at(tree: Any, index: int) -> Any:
    """Return one replica of a stacked tree.

    Args:
        tree: A tree of tensors (replicas, ...).
        index: Which replica.
    """
    return tree_map(lambda leaf: leaf[index], tree)


def shapes(tree: Any) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Return shape and type of each leaf, in the order of `leaves`.

    Args:
        tree: A tree of tensors.
    """
    return [(tuple(leaf.shape), leaf.dtype) for leaf in leaves(tree)]
