"""Trees of tensors: nested dicts and tuples, and functions that map them leaf by leaf.

Parameters, optimiser states and batches are trees. PyTorch's own tree module is not public in every
version that we support, and its Python form takes a third of the time of a small network's update.

>>> import torch
>>> theta = {"weight": torch.tensor([1.0, 2.0]), "bias": torch.tensor(0.5)}
>>> tree_map(lambda p, g: p - 0.5 * g, theta, theta)
{'weight': tensor([0.5000, 1.0000]), 'bias': tensor(0.2500)}
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def tree_map(function: Callable[..., Any], tree: T, *rest: Any) -> T:
    """Apply a function to the leaves of one or several trees, and return the tree of its results.

    Args:
        function: Takes a leaf of `tree`, and the subtree at the same position of each of `rest`.
        tree: Tree whose structure the result has. All that is not a dict or a tuple is a leaf.
        rest: Trees with the same keys; they may be deeper than `tree`.

    >>> tree_map(lambda a, b: a + b["c"], {"x": 1}, {"x": {"c": 2}})
    {'x': 3}
    """
    out: Any
    if isinstance(tree, dict):
        out = {k: tree_map(function, v, *(r[k] for r in rest)) for k, v in tree.items()}
    elif isinstance(tree, tuple):
        values = (tree_map(function, *pair) for pair in zip(tree, *rest, strict=True))
        out = type(tree)(*values) if hasattr(tree, "_fields") else tuple(values)
    else:
        out = function(tree, *rest)
    return out  # type: ignore[no-any-return]


def leaves(tree: Any) -> list[Any]:
    """Return the leaves of a tree, in a fixed order.

    Args:
        tree: Any tree; a single tensor is a leaf.
    """
    if isinstance(tree, dict | tuple):
        children = tree.values() if isinstance(tree, dict) else tree
        return [leaf for child in children for leaf in leaves(child)]
    return [tree]


def named_leaves(tree: Any, name: str) -> dict[str, Any]:
    """Return the leaves of a tree by their path, in the order of `leaves`.

    Args:
        tree: Any tree.
        name: Name of the tree, with which all paths begin.

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


def rebuilt(like: T, values: Sequence[Any]) -> T:
    """Return a tree with the structure of another one and new leaves.

    Args:
        like: Tree whose structure the result has.
        values: Leaves of the result, in the order of `leaves`.

    >>> rebuilt({"x": 1, "y": (2, 3)}, [4, 5, 6])
    {'x': 4, 'y': (5, 6)}
    """
    left = iter(values)
    return tree_map(lambda _: next(left), like)


def from_named(like: Any, name: str, tensors: Mapping[str, Tensor]) -> Any:
    """Return a tree like another one, with its leaves taken from tensors by name.

    Args:
        like: Tree whose structure, shapes, types and devices the result has.
        name: Name of the tree, as for `named_leaves`.
        tensors: Tensors by path, as `named_leaves` returns them; there may be others.

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


def contiguous_copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous copies on the CPU that share no memory, since safetensors takes no views.

    Args:
        tensors: Tensors by name.
    """
    memory_format = torch.contiguous_format
    return {
        name: leaf.detach().cpu().clone(memory_format=memory_format)
        for name, leaf in tensors.items()
    }


def inner(one: Any, other: Any) -> Tensor:
    """Return the inner product of two trees of tensors, taken as vectors.

    For J_theta and dtheta it is dJ to first order.

    Args:
        one, other: Trees of tensors with the same structure and shapes.
    """
    products = tree_map(lambda a, b: (a * b).sum(), one, other)
    return torch.stack(leaves(products)).sum()


def norm(tree: Any) -> Tensor:
    """Return the Euclidean norm of a tree of tensors, taken as a vector.

    Args:
        tree: A tree of tensors.
    """
    return inner(tree, tree).sqrt()


def stack(trees: Sequence[T]) -> T:
    """Return the trees of several replicas as one tree with a leading replica dimension.

    Args:
        trees: Trees of tensors with the same structure and shapes.
    """
    return tree_map(lambda *leaf: torch.stack(leaf), trees[0], *trees[1:])


def at(tree: T, index: int) -> T:
    """Return one replica of a stacked tree.

    Args:
        tree: A tree of tensors (replicas, ...).
        index: Index of the replica.
    """
    return tree_map(lambda leaf: leaf[index], tree)


def shapes(tree: Any) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Return the shape and the type of each leaf, in the order of `leaves`.

    Args:
        tree: A tree of tensors.
    """
    return [(tuple(leaf.shape), leaf.dtype) for leaf in leaves(tree)]


def equal(a: Any, b: Any) -> bool:
    """Return a == b; for tensors, True if type, shape and values are equal (NaN equals NaN).

    Args:
        a, b: Values of any kind.
    """
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return type(a) is type(b) and bool(a == b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())
